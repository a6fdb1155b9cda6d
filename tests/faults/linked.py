"""The training of a worker of Ray Train without Ray: in this process, or in two linked ones, many in a row.

Two processes are started once for all trainings, because what takes time is their imports. Its own file
because spawned processes import it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pipelines.config import RunConfig
from pipelines.errors import InputError
from pipelines.local_training import LocalCheckpoints
from pipelines.manifest import read_manifest
from pipelines.metric_log import MetricLog
from pipelines.storage import Location
from pipelines.stream import StepBatch, StreamSpec, _BatchMaker
from pipelines.train_job import ENCODER_FOLDER, Training
from pipelines.train_links import Links
from pipelines.train_worker import _Worker
from tests.faults.training import Outcome

_NUM_PROCESSES = 2


@dataclasses.dataclass(frozen=True)
class Linked:
    """A training of linked workers: `ranks` has a digest of each one's model at the end, or its error."""

    config: RunConfig
    ranks: list[str]
    outcome: Outcome | None

    @property
    def finished(self) -> Outcome:
        """The outcome of a training that came to its end."""
        assert self.outcome is not None, self.ranks
        return self.outcome


def train_alone(config: RunConfig) -> Linked:
    """A training of one worker, in this process."""
    return _read(config, [_train(config, rank=0, world_size=1)])


def train_in_two(configs: Mapping[str, RunConfig], folder: Path) -> dict[str, Linked]:
    """A training of two workers for every configuration, one after the other in the same two processes."""
    wanted = dict(configs)
    torch.multiprocessing.spawn(_run_rank, args=(str(folder), wanted), nprocs=_NUM_PROCESSES)
    ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(_NUM_PROCESSES)]
    return {name: _read(config, [found[name] for found in ranks]) for name, config in wanted.items()}


def _run_rank(rank: int, folder: str, configs: Mapping[str, RunConfig]) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=_NUM_PROCESSES
    )
    found = {name: _train(config, rank=rank, world_size=_NUM_PROCESSES) for name, config in configs.items()}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def _train(config: RunConfig, *, rank: int, world_size: int) -> str:
    """Trains to the end; a digest of the model in this process's memory, or what the user is told."""
    workspace = Location.parse(config.workspace)
    storage = workspace / "training" / "linked"
    job = Training.of(config, workspace, read_manifest(workspace / "tokens"), storage=storage)
    links = Links(
        rank=rank,
        world_size=world_size,
        device=torch.device("cpu"),
        checkpoints=_SharedCheckpoints(storage, rank=rank, world_size=world_size),
        metrics=MetricLog.silent(),
        open_stream=_Stream,
        show=lambda _: None,
    )
    with tempfile.TemporaryDirectory() as best:
        worker = _Worker(job, links, best=Path(best))
        try:
            worker.run()
        except InputError as error:
            return str(error)
    digest = hashlib.sha256()
    for name, value in sorted(worker.parallel.weights().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().numpy().tobytes())
    return digest.hexdigest()


def _read(config: RunConfig, ranks: list[str]) -> Linked:
    encoder = next(
        (Path(config.workspace) / "training/linked").glob(f"*/{ENCODER_FOLDER}/training_log.json"), None
    )
    return Linked(config, ranks, None if encoder is None else Outcome.at(encoder.parent, config))


class _Stream:
    """The batches of one of several workers, made when they are asked for (a `train_links.Stream`)."""

    tokens_waiting = 0

    def __init__(self, spec: StreamSpec):
        self._spec = spec

    def __iter__(self) -> Iterator[StepBatch]:
        spec = self._spec
        lanes = range(spec.rank, spec.plan.num_lanes, spec.world_size)
        maker = _BatchMaker(spec.plan, spec.rows, spec.objective, lanes, [spec.work], spec.max_batch_tokens)
        for chunk in spec.work:
            yield from maker.make_chunk(chunk)

    def close(self) -> None:
        """Nothing goes on behind."""


class _SharedCheckpoints(LocalCheckpoints):
    """Checkpoints that the first worker writes while the others wait; all of them are kept."""

    def __init__(self, storage: Location, *, rank: int, world_size: int):
        super().__init__(storage)
        self._rank, self._world_size = rank, world_size

    def report(self, step: int, write: Any) -> None:
        """As `train_links.CheckpointKeeper`."""
        if self._rank == 0:
            super().report(step, write)
        if self._world_size > 1:
            dist.barrier()
        self.step = step

    def _remove_all_but(self, name: str) -> None:
        """Tests compare weights in the middle of a training."""
