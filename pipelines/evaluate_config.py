"""The configuration of the evaluate stage: its tasks, how many hits are kept, what is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pipelines.collection_config import require
from pipelines.system_config import FITTED, SystemConfig

# `retrieval` is judged over the run's documents; the others carry their own texts (readers.TASK_KINDS).
Kind: TypeAlias = Literal[
    "retrieval",
    "askubuntu",
    "cqadupstack",
    "twitterpara",
    "scidocs",
    "beir",
    "sts",
    "pairs",
    "rerank",
]


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """A task: where its files are and by which protocol it is scored.

    folder: the task's folder, or file for kinds that are one (pairs, rerank, sts).
    qrels: file of judgements relative to the folder; None takes `qrels/<split>.tsv` or `qrels.tsv`, or the
        same names with `.parquet`.
    split: test, dev or valid, where the data has several.
    """

    name: str
    folder: str
    kind: Kind = "retrieval"
    qrels: str | None = None
    split: str = "test"


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Evaluation: tasks, how many hits are kept, how many examples are shown for each task.

    systems: rows that need no training; with any, they are what is evaluated, and nothing is trained.
    map_column: a column of the searched documents that colours the report's map; None: clusters.
    """

    tasks: tuple[TaskConfig, ...] = ()
    systems: tuple[SystemConfig, ...] = ()
    top_k: int = 100
    num_examples: int = 3
    map_column: str | None = None

    def __post_init__(self) -> None:
        require(self.top_k >= 1, "top_k must be at least 1")
        require(self.num_examples >= 0, "num_examples must not be negative")
        names = [task.name for task in self.tasks]
        require(len(set(names)) == len(names), f"tasks need different names, got {', '.join(names)}")
        names = [system.name for system in self.systems]
        require(len(set(names)) == len(names), f"systems need different names, got {', '.join(names)}")
        require(not self.systems or bool(self.tasks), "systems need tasks to be compared on")

    @property
    def needs_corpus(self) -> bool:
        """Whether a system is fitted on the corpus, or a task is judged over the run's documents."""
        fitted = any(system.kind in FITTED for system in self.systems)
        return fitted or any(task.kind == "retrieval" for task in self.tasks)
