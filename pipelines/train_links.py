"""What joins a training loop to its surroundings: other workers, checkpoints, data, and who watches.

Filled by `train_worker` for the workers of Ray Train and by `local_training` for a loop inside one task.
Knows nothing of steps, models or files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from pipelines.metric_log import MetricLog
from pipelines.storage import Location
from pipelines.stream import StepBatch, StreamSpec
from tsdae_core.checkpoint import TrainingState
from tsdae_core.encoder import SentenceEncoder


class Stream(Protocol):
    """The batches of one worker, in order; iterated once, closed when not read to its end."""

    @property
    def tokens_waiting(self) -> int:
        """Tokens of batches that are made and not handed out yet."""

    def __iter__(self) -> Iterator[StepBatch]: ...

    def close(self) -> None:
        """Ends what makes batches."""


class CheckpointKeeper(Protocol):
    """Writes and finds the checkpoints of a run (see `train_checkpoint`)."""

    def latest(self, *, best: Path | None) -> TrainingState | None:
        """The newest state, or None; the best encoder beside it, if any, is copied to the folder `best`."""

    def report(self, step: int, write: Callable[[Path], None] | None) -> None:
        """Keeps a checkpoint that `write` fills; all workers meet here, None on those that write nothing.

        Raises:
            InputError: there is no room for it.
        """

    def describe(self) -> str:
        """Names the newest checkpoint, for an error message."""

    def encoder(self) -> Location | None:
        """The folder of the newest checkpoint's encoder; None before the first."""


@dataclass(frozen=True, kw_only=True)
class Links:
    """The surroundings of one worker.

    show: takes what a person is to see, as plain values.
    after_step: called with the number of finished steps and the encoder, in train mode as it is; what it
        does must leave both as they were. None for nothing.
    """

    rank: int
    world_size: int
    device: torch.device
    checkpoints: CheckpointKeeper
    metrics: MetricLog
    open_stream: Callable[[StreamSpec], Stream]
    show: Callable[[dict[str, Any]], None]
    after_step: Callable[[int, SentenceEncoder], None] | None = None
