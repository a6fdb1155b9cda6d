"""The configuration of early stopping, and of the task that a training may be validated on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipelines.collection_config import require

# Of these the readers know a part for development; `auto` finds the kind by the files.
Kind = Literal["auto", "askubuntu", "cqadupstack", "scidocs", "beir", "sts", "pairs", "rerank"]


@dataclass(frozen=True, kw_only=True)
class ValidationTask:
    """A task with texts of its own whose main score, on its development part, follows the training.

    folder: the task's folder, or file for kinds that are one (pairs, rerank, sts).
    kind: its protocol, as in `evaluate.tasks`. TwitterPara has a test part only: make a file of pairs.
    split: dev (also called valid), train or another part that is not the one to be reported.
    qrels: for beir, another file of judgements relative to the folder.
    """

    folder: str
    kind: Kind = "auto"
    split: str = "dev"
    qrels: str | None = None

    def __post_init__(self) -> None:
        require(bool(self.folder), "folder must name a task's folder or file")


@dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """When a training may end before its last step, off in the paper for TSDAE.

    metric: `retrieval` (the halves of held-out texts find each other, higher is better), `validation_loss`
    (lower is better) or `task` (the main score of `task`, higher is better); also what `train.keep: best`
    goes by.
    task: scored at every validation, whatever the metric.
    patience: stop after this many validations in a row without a gain of more than min_delta; 0 never stops.
    """

    metric: Literal["retrieval", "validation_loss", "task"] = "retrieval"
    task: ValidationTask | None = None
    patience: int = 0
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        require(self.patience >= 0, "patience must not be negative; 0 never stops early")
        require(self.min_delta >= 0, "min_delta must not be negative")
        require(
            self.metric != "task" or self.task is not None,
            "metric task needs a task: early_stopping.task.folder",
        )
