"""The scores of a cell on its tasks, as files: the values, and the rows that they are made of.

Owns those files. Must not know how a cell came by its encoder.
"""

from __future__ import annotations

from dataclasses import dataclass

from indexing.evaluation.pair_rows import PairRow, read_pair_rows, write_pair_rows
from indexing.evaluation.rows import PerQueryRow, read_rows, write_rows
from indexing.evaluation.scorers import Scorer
from indexing.evaluation.scoring import score_task
from indexing.evaluation.task_values import task_values
from pipelines.storage import Location
from pipelines.task_source import TaskSource

SCORES_FOLDER = "scores"


@dataclass(frozen=True)
class CellTask:
    """A task of a study: its name there, where it comes from, and the fingerprint of its contents."""

    name: str
    source: TaskSource
    key: str

    @staticmethod
    def of(name: str, source: TaskSource) -> CellTask:
        """With the fingerprint of the task's files."""
        return CellTask(name, source, source.fingerprint()[:20])


def scores_place(cell: Location, task: CellTask, step: int | None = None) -> Location:
    """Where the values of a cell on a task are, at the end or after so many steps."""
    suffix = "" if step is None else f"-step-{step}"
    return cell / SCORES_FOLDER / f"{task.key}{suffix}.json"


def rows_place(cell: Location, task: CellTask) -> Location:
    """Where the rows of a cell on a task are."""
    return cell / SCORES_FOLDER / f"{task.key}.parquet"


def score_into(cell: Location, task: CellTask, scorer: Scorer, step: int | None = None) -> None:
    """Scores a system and writes the values, at the end of a training with the rows before them.

    Raises:
        InputError: the task's files are gone. ValueError: a malformed task, NaN among the scores.
    """
    scores = score_task(task.source.load(), scorer, system="cell")
    if step is None:
        with rows_place(cell, task).write_atomically() as target:
            if scores.pair_rows:
                write_pair_rows(target.filesystem, target.path, scores.pair_rows)
            else:
                write_rows(target.filesystem, target.path, scores.rows)
    values = task_values(scores.rows, scores.pair_rows)
    scores_place(cell, task, step).write_json(
        {"main_measure": next(iter(values)), "values": values, "is_pairs": bool(scores.pair_rows)}
    )


def read_any_rows(place: Location, *, is_pairs: bool) -> tuple[list[PerQueryRow], list[PairRow]]:
    """Rows that `score_into` wrote, one of the two lists empty."""
    if is_pairs:
        return [], read_pair_rows(place.filesystem, place.path)
    return read_rows(place.filesystem, place.path), []
