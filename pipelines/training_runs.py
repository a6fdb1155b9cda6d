"""The folders of a workspace's trainings, one below `training/` for each fingerprint: which may go, and when.

Knows where checkpoints lie and not what is in them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import pyarrow.fs as pafs

from pipelines.storage import Location

TRAINING_FOLDER = "training"
CHECKPOINT_PREFIX = "checkpoint_"


@dataclass(frozen=True)
class TrainingRun:
    """One training's folder; `changed_ns` is the time of its newest checkpoint file, None without one."""

    place: Location
    changed_ns: int | None


def training_runs(workspace: Location) -> list[TrainingRun]:
    """Every training that left a folder, that with the newest checkpoint last."""
    storage = workspace / TRAINING_FOLDER
    newest: dict[str, int | None] = {}
    selector = pafs.FileSelector(storage.path, recursive=True, allow_not_found=True)
    for info in storage.filesystem.get_file_info(selector):
        name, _, rest = str(info.path).removeprefix(f"{storage.path}/").partition("/")
        if not rest and info.type != pafs.FileType.Directory:
            continue
        known = newest.setdefault(name, None)
        if info.is_file and rest.startswith(CHECKPOINT_PREFIX):
            newest[name] = max(known or 0, int(info.mtime_ns or 0))
    runs = [TrainingRun(storage / name, changed) for name, changed in newest.items()]
    return sorted(runs, key=lambda run: (run.changed_ns is not None, run.changed_ns or 0, run.place.name))


def remove_other_runs(workspace: Location, *, current: str, start: str, is_finished: bool) -> None:
    """Deletes the checkpoints of other settings that nobody can need any more.

    What stays: the training in the folder `current`; the one that holds `start`, which every rerun reads
    again; and, until the current training is finished, the last other one that got as far as a checkpoint,
    so that a second failure does not cost what the first had left.

    Args:
        workspace: the training's own.
        current: folder name of the training that runs, or has run, now.
        start: as `model.start`.
        is_finished: whether the current training's encoder is safe.
    """
    others = [run for run in training_runs(workspace) if run.place.name != current]
    kept = {run.place.name for run in others if _is_inside(start, run.place)}
    with_checkpoint = [run for run in others if run.changed_ns is not None]
    if not is_finished and with_checkpoint:
        kept.add(with_checkpoint[-1].place.name)
    for run in others:
        if run.place.name not in kept:
            run.place.delete()


def _is_inside(start: str, folder: Location) -> bool:
    """Whether the place (a hub name is none) lies below the folder, by whatever links it is written."""
    place = Location.parse(start)
    if not folder.is_local:
        return place.path.startswith(f"{folder.path}/")
    return os.path.realpath(place.path).startswith(f"{os.path.realpath(folder.path)}{os.sep}")
