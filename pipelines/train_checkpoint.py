"""Writing and finding the checkpoints of a run through Ray Train, and what to tell when that fails.

A checkpoint is one folder: `state/` (weights, optimizer, history), `encoder/` (the encoder of that step, a
folder that can be the start of another training; with the last step the result) and `best/` (the best encoder
so far, where that is asked for). Ray Train takes it for valid only once it is there whole, so a failure in
the middle leaves the one before.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import ray.train
from safetensors import SafetensorError
from torch import Tensor

from pipelines.errors import InputError
from pipelines.storage import Location
from pipelines.train_job import BEST_FOLDER, ENCODER_FOLDER, STATE_FOLDER
from pipelines.training_runs import CHECKPOINT_PREFIX
from tsdae_core.checkpoint import TrainingState, read_state
from tsdae_core.encoder import SentenceEncoder

_PROBE = "a"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Checkpoints:
    """The checkpoints of one run, seen from one worker.

    Attributes:
        step: of the newest one; None before the first.
    """

    def __init__(self, storage: Location):
        self.storage = storage
        self.step: int | None = None

    def latest(self, *, best: Path | None) -> TrainingState | None:
        """The newest state, or None; the best encoder beside it, if any, is copied to the folder `best`."""
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is None:
            return None
        with checkpoint.as_directory() as folder:
            if best is not None and (Path(folder) / BEST_FOLDER).is_dir():
                shutil.copytree(Path(folder) / BEST_FOLDER, best, dirs_exist_ok=True)
            state = read_state(Path(folder) / STATE_FOLDER)
        self.step = state.step
        return state

    def report(self, step: int, write: Callable[[Path], None] | None) -> None:
        """Reports a step to Ray Train; all workers meet here.

        write: fills the checkpoint's folder; None on the workers that have nothing to write.

        Raises:
            InputError: there is no room for it.
        """
        name = checkpoint_name(step)
        with tempfile.TemporaryDirectory(prefix="tsdae-checkpoint-") as folder:
            checkpoint = None
            if write is not None:
                with told_when_full(step, folder, self.describe()):
                    write(Path(folder))
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            try:
                with told_when_full(step, str(self.storage), self.describe()):
                    ray.train.report({"step": step}, checkpoint=checkpoint, checkpoint_dir_name=name)
            except InputError:
                with contextlib.suppress(OSError):  # the error that is under way says more
                    (self.storage / name).delete()
                raise
        self.step = step

    def describe(self) -> str:
        """Names the newest checkpoint, for an error message."""
        return last_checkpoint(self.storage, self.step)

    def encoder(self) -> Location | None:
        """The folder of the newest checkpoint's encoder; None before the first."""
        return checkpoint_encoder(self.storage, self.step)


@contextmanager
def told_when_full(step: int, place: str, last: str) -> Iterator[None]:
    """Names the place where there was no room for a checkpoint, and the last one that there is.

    Raises:
        InputError: the body ran out of room.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        if not _is_full(error):
            raise
        raise InputError(
            f"no room to write the checkpoint of step {step} in '{place}' ({error}); {last}; "
            "make room and run the same command again, it goes on from there"
        ) from error


def last_checkpoint(storage: Location, step: int | None) -> str:
    """Names the newest checkpoint below `storage`, for an error message; None before the first."""
    if step is None:
        return "there is no checkpoint yet"
    return f"the last good checkpoint is that of step {step}, '{storage / checkpoint_name(step)}'"


def checkpoint_encoder(storage: Location, step: int | None) -> Location | None:
    """Where the encoder of a step's checkpoint is; None before the first."""
    return None if step is None else storage / checkpoint_name(step) / ENCODER_FOLDER


def broken_part(weights: dict[str, Tensor], encoder: SentenceEncoder | None) -> str | None:
    """What is not finite, if anything: a rate far too high can break weights by a gradient that still was.

    encoder: has these weights, which may be finite and yet too large for any vector; None for one in shards,
    which is looked at by its weights alone.
    """
    for name, value in weights.items():
        if not bool(value.isfinite().all()):
            return name
    if encoder is not None and not np.isfinite(encoder.encode([_PROBE])).all():
        return "too large for any vector"
    return None


def advice(encoder: Location | None) -> str:
    """What to change after a loss that is not finite; the settings can be given as they stand here."""
    lower = "Lower train.optim.lr or warm up longer"
    if encoder is None:
        return lower
    from_there = f"with model.start='{encoder}' from the encoder of that checkpoint"
    return f"{lower}: training then begins anew, {from_there}"


def checkpoint_name(step: int) -> str:
    """The folder of a step's checkpoint; names sort like steps."""
    return f"{CHECKPOINT_PREFIX}step_{step:010d}"


def _is_full(error: OSError | SafetensorError) -> bool:
    """Whether a disk, a quota or a file size limit is at its end; safetensors tells it in its text only."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    return any(f"os error {number}" in str(error).lower() for number in _FULL)
