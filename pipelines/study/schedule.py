"""The cells of a study on Ray: one task each, worker processes reused, lost ones tried again.

A cell that the user has to mend does not stop the others. Cells whose training wants several workers run on
the driver, one after the other, as the train stage of a run. Must not know what a cell does or what it means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ray

from pipelines.config import RunConfig
from pipelines.phases import train_phases
from pipelines.prepare import prepare
from pipelines.progress import Reporter
from pipelines.shards import user_error_in
from pipelines.storage import Location
from pipelines.study.live import StudyView, new_cell_board, read_notes
from pipelines.study.run_cell import CellJob, run_cell
from pipelines.train_job import ENCODER_FOLDER

_LOOK_S = 1.0
_MAX_RETRIES = 3
_OWN_TRAINING = "training/run"


def run_cells(
    jobs: Sequence[CellJob],
    view: StudyView,
    *,
    on_done: Callable[[CellJob], str],
    reporter: Reporter,
) -> dict[str, str]:
    """Runs cells on the connected cluster; returns the reasons of those that failed, by key.

    on_done: called when a cell is done; returns its scores in words.

    Raises:
        Exception: a defect of ours in a cell, once all others are done.
    """
    board = new_cell_board()
    defects: list[BaseException] = []
    failed: dict[str, str] = {}

    def finish(job: CellJob, error: BaseException | None) -> None:
        if error is None:
            view.finished(job.key, on_done(job))
            return
        mended = user_error_in(error)
        if mended is None:
            defects.append(error)
        failed[job.key] = str(mended or error).strip().split("\n")[0]
        view.failed(job.key, failed[job.key])

    with view.shown():
        waiting = {_start(job, board): job for job in jobs if not job.cell.is_large}
        large = [job for job in jobs if job.cell.is_large]
        while waiting or large:
            if not waiting:
                started = _start_large(large.pop(0), board, finish, reporter)
                waiting |= started
                continue
            ready, _ = ray.wait(list(waiting), timeout=_LOOK_S)
            for reference in ready:
                finish(waiting.pop(reference), _error_of(reference))
            view.running(read_notes(board))
    if defects:
        raise defects[0]
    return failed


def _start(job: CellJob, board: Any) -> Any:
    train = job.cell.config.train
    options: dict[str, Any] = {"num_cpus": train.cpus_per_worker, "max_retries": _MAX_RETRIES}
    if job.cell.is_large:
        options["num_cpus"] = 1
    if train.gpus_per_worker and job.cell.system.kind in ("trained", "start", "encoder"):
        options["num_gpus"] = train.gpus_per_worker
    remote: Any = ray.remote(**options)(_run)
    return remote.remote(job, board)


def _run(job: CellJob, board: Any) -> None:
    def show(note: str) -> None:
        board.write.remote(job.key, note)

    run_cell(job, show)


def _start_large(
    job: CellJob,
    board: Any,
    finish: Callable[[CellJob, BaseException | None], None],
    reporter: Reporter,
) -> dict[Any, CellJob]:
    """Trains on Ray Train here, then starts the cell that scores the encoder."""
    config = replace(job.cell.config, workspace=str(job.place / _OWN_TRAINING))
    try:
        encoder = _train_large(config, job.place / _OWN_TRAINING, reporter)
    except ValueError as error:
        finish(job, error)
        return {}
    job = replace(job, encoder=encoder)
    return {_start(job, board): job}


def _train_large(config: RunConfig, workspace: Location, reporter: Reporter) -> Location:
    corpus = prepare("corpus", config.corpus, workspace, reporter=reporter)
    train_phases(config, workspace, corpus, reporter=reporter)
    return workspace / ENCODER_FOLDER


def _error_of(reference: Any) -> BaseException | None:
    try:
        ray.get(reference)
    except Exception as error:  # noqa: BLE001 - one cell's failure must not end the others
        return error
    return None
