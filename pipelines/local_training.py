"""A training inside one process, without Ray Train: the same loop, objective, batches and checkpoints.

For the many small trainings of a study, where starting workers would take longer than training. Owns the
stream made on the spot and checkpoints that are folders with a pointer. Knows nothing of studies.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import torch

from pipelines.metric_log import MetricLog
from pipelines.storage import Location
from pipelines.stream import StepBatch, StreamSpec, steps_of
from pipelines.token_shards import RowSource
from pipelines.train_checkpoint import checkpoint_encoder, checkpoint_name, last_checkpoint, told_when_full
from pipelines.train_job import BEST_FOLDER, ENCODER_FOLDER, STATE_FOLDER, Training
from pipelines.train_links import Links
from pipelines.train_worker import train_linked
from tsdae_core.checkpoint import TrainingState, read_state
from tsdae_core.encoder import SentenceEncoder

_NEWEST = "newest.json"
# Corpora of so many rows are held in memory: reading them once per epoch costs more than training on them.
_ROWS_IN_MEMORY = 1 << 18


def train_here(
    job: Training,
    *,
    device: torch.device,
    show: Callable[[dict[str, Any]], None],
    after_step: Callable[[int, SentenceEncoder], None] | None = None,
) -> Location:
    """Trains from the newest checkpoint in `job.storage` to the end; returns the folder of the encoder.

    Every step, weight and figure is that of one worker of Ray Train.

    Raises:
        InputError: settings, data or disk are unfit.
    """
    checkpoints = LocalCheckpoints(job.storage)
    links = Links(
        rank=0,
        world_size=1,
        device=device,
        checkpoints=checkpoints,
        metrics=MetricLog.silent(),
        open_stream=LocalStream,
        show=show,
        after_step=after_step,
    )
    train_linked(job, links)
    return checkpoints.newest() / ENCODER_FOLDER


class LocalStream:
    """All batches of one worker, made when they are asked for (a `train_links.Stream`)."""

    def __init__(self, spec: StreamSpec):
        assert (spec.rank, spec.world_size) == (0, 1)
        self._spec = spec
        is_small = spec.rows.num_rows <= _ROWS_IN_MEMORY
        self._rows: RowSource = spec.rows.in_memory() if is_small else spec.rows

    @property
    def tokens_waiting(self) -> int:
        """Nothing is made ahead."""
        return 0

    def __iter__(self) -> Iterator[StepBatch]:
        spec = self._spec
        for chunk in spec.work:
            yield from steps_of(
                [chunk], spec.plan, self._rows, spec.objective, max_batch_tokens=spec.max_batch_tokens
            )

    def close(self) -> None:
        """Nothing goes on behind."""


class LocalCheckpoints:
    """Checkpoints as folders below one place; `newest.json` is written last and names the one that counts."""

    def __init__(self, storage: Location):
        self.storage = storage
        self.step: int | None = None

    def newest(self) -> Location:
        """The folder of the newest checkpoint; there must be one."""
        name: str = (self.storage / _NEWEST).read_json()["name"]
        return self.storage / name

    def latest(self, *, best: Path | None) -> TrainingState | None:
        """As `train_links.CheckpointKeeper`."""
        if not (self.storage / _NEWEST).exists():
            return None
        with self.newest().as_local_folder() as folder:
            if best is not None and (folder / BEST_FOLDER).is_dir():
                shutil.copytree(folder / BEST_FOLDER, best, dirs_exist_ok=True)
            state = read_state(folder / STATE_FOLDER)
        self.step = state.step
        return state

    def report(self, step: int, write: Callable[[Path], None] | None) -> None:
        """As `train_links.CheckpointKeeper`; the checkpoint before is removed once this one counts."""
        assert write is not None
        name = checkpoint_name(step)
        with (
            tempfile.TemporaryDirectory(prefix="tsdae-checkpoint-") as folder,
            told_when_full(step, f"{folder}' or '{self.storage}", self.describe()),
        ):
            write(Path(folder))
            (self.storage / name).upload_folder(Path(folder))
            (self.storage / _NEWEST).write_json({"name": name})
        self.step = step
        self._remove_all_but(name)

    def describe(self) -> str:
        """As `train_links.CheckpointKeeper`."""
        return last_checkpoint(self.storage, self.step)

    def encoder(self) -> Location | None:
        """As `train_links.CheckpointKeeper`."""
        return checkpoint_encoder(self.storage, self.step)

    def _remove_all_but(self, name: str) -> None:
        filesystem = self.storage.filesystem
        for info in filesystem.get_file_info(pafs.FileSelector(self.storage.path, allow_not_found=True)):
            if info.type == pafs.FileType.Directory and info.base_name != name:
                filesystem.delete_dir(info.path)
