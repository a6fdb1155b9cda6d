"""Tiny trainings for the tests of faults: a corpus, a base workspace to copy, and what is compared."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from rich.console import Console
from safetensors.numpy import load_file

from pipelines.collection_config import CollectionConfig
from pipelines.config import RunConfig
from pipelines.model_config import ModelConfig
from pipelines.progress import Reporter
from pipelines.run import run_stages
from pipelines.train_config import TrainConfig
from tsdae_core.optim import OptimConfig
from tsdae_core.scratch import ScratchConfig

Weights = dict[str, np.ndarray[Any, Any]]

# Divides by no batch, so that the last steps of an epoch are short and lanes are uneven.
NUM_ROWS = 131
_WORDS = [
    f"{first}{second}" for first in ("ba", "ko", "mi", "tu", "se") for second in ("la", "rin", "po", "da")
]


def base_config(folder: Path, **train: Any) -> RunConfig:
    """A training of seconds: one layer of 16, dropout off, two workers; long enough to be hit midway."""
    settings: dict[str, Any] = {
        "batch_size": 8,
        "num_lanes": 4,
        "num_steps": 60,
        "num_workers": 2,
        "cpus_per_worker": 1.0,
        "optim": OptimConfig(lr=1e-3, eps=1e-6),
        "validation_rows": 20,
        "validate_every": 20,
        "checkpoint_every": 10,
        "log_every": 15,
        "max_failures": 2,
    }
    return RunConfig(
        workspace=str(folder / "work"),
        seed=3,
        corpus=CollectionConfig(input=str(folder / "corpus.txt"), num_shards=3),
        model=ModelConfig(
            start="scratch",
            max_tokens=24,
            scratch=ScratchConfig(
                num_layers=1,
                hidden_size=16,
                num_heads=2,
                intermediate_size=32,
                vocab_size=80,
                max_tokens=32,
                dropout=0.0,
            ),
        ),
        train=TrainConfig(**(settings | train)),
    )


def write_corpus(folder: Path) -> None:
    """Different sentences of 1 to 14 words."""
    rng = np.random.default_rng(0)
    rows = [" ".join(rng.choice(_WORDS, size=1 + i % 14)) + f" {i}" for i in range(NUM_ROWS)]
    (folder / "corpus.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")


def copy_of(base: RunConfig, folder: Path, **train: Any) -> RunConfig:
    """The base with other train settings, in a workspace of its own that is ready to train."""
    workspace = folder / "work"
    workspace.mkdir(parents=True, exist_ok=True)
    for name in ("corpus", "start", "tokens"):
        shutil.copytree(Path(base.workspace) / name, workspace / name)
    settings = dataclasses.replace(base.train, **train)
    return dataclasses.replace(base, workspace=str(workspace), train=settings)


def quiet_stages(names: list[str], config: RunConfig) -> str:
    """Runs stages and returns what a reader of the job's log sees; an error carries it as a note."""
    written = io.StringIO()
    reporter = Reporter(Console(file=written, force_terminal=False, width=400, soft_wrap=True))
    try:
        run_stages(names, config, reporter=reporter)
    except BaseException as error:
        error.add_note(written.getvalue())
        raise
    return written.getvalue()


def train(config: RunConfig) -> str:
    """Runs the train stage."""
    return quiet_stages(["train"], config)


def train_comparing_ranks(config: RunConfig) -> tuple[str, list[str]]:
    """As `train`, and a digest of the model in each worker's memory at the end of the training."""
    place = Path(config.workspace) / "ranks.json"

    def entry(settings: Mapping[str, bytes]) -> None:  # nested, so that it travels to the workers whole
        import hashlib

        from pipelines import train_entry, train_worker

        run = train_worker._Worker.run

        def run_and_compare(worker: Any) -> None:
            run(worker)
            digest = hashlib.sha256()
            for name, value in sorted(worker.parallel.model.state_dict().items()):
                digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
                digest.update(value.detach().numpy().tobytes())
            found = worker.parallel.gather(digest.hexdigest())
            if worker.rank == 0:
                place.write_text(json.dumps(found))

        train_worker._Worker.run = run_and_compare  # type: ignore[method-assign]
        train_entry.train_entry(settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.train_run.train_entry", entry)
        told = train(config)
    return told, json.loads(place.read_text())


@contextmanager
def killing(
    config: RunConfig, process_name: str, *, when: str, act: Callable[[psutil.Process], object] | None = None
) -> Iterator[list[int]]:
    """Sends SIGKILL, once, to a process with this in its title when a file matches; yields its id.

    act: called with the process instead.
    """
    killed: list[int] = []
    over = threading.Event()

    def watch() -> None:
        workspace = Path(config.workspace)
        found: list[psutil.Process] = []
        while not over.is_set():
            # Looking takes longer than a few steps do, so it is done beforehand, and not all the time.
            found = [process for process in found if process.is_running()] or processes(process_name)
            if found and any(workspace.glob(when)):
                killed.append(found[0].pid)
                found[0].kill() if act is None else act(found[0])
                return
            time.sleep(0.005 if found else 0.05)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def processes(name: str) -> list[psutil.Process]:
    """Processes that this one has started, directly or not, whose title by Ray holds the name."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            title = " ".join(process.cmdline())
            if title.startswith("ray::") and name in title:
                found.append(process)
    return found


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a training left: its log, every weight of the last checkpoint (decoder included), a digest.

    digest: of every file of the encoder, the log included.
    """

    log: dict[str, Any]
    weights: Weights
    digest: str

    @staticmethod
    def of(config: RunConfig) -> Outcome:
        """Of a finished train stage."""
        return Outcome.at(Path(config.workspace) / "encoder", config)

    @staticmethod
    def at(encoder: Path, config: RunConfig) -> Outcome:
        """Of a finished training that left its encoder here."""
        digest = hashlib.sha256()
        for path in sorted(encoder.rglob("*")):
            if path.is_file() and path.name != "manifest.json":  # which the stage adds
                digest.update(f"{path.relative_to(encoder)} {path.stat().st_size}\n".encode())
                digest.update(path.read_bytes())
        log = json.loads((encoder / "training_log.json").read_text())
        return Outcome(log, weights_after(newest_step(config), config), digest.hexdigest())

    def distance(self, other: Outcome) -> float:
        """The largest difference of any weight."""
        return distance(self.weights, other.weights)

    @property
    def stream(self) -> tuple[list[int], int, int, int]:
        """What tells which examples were used: a digest for every step, and numbers."""
        log = self.log
        assert (len(log["stream_digests"]), log["steps_per_stream_digest"]) == (log["num_steps"], 1)
        assert len(set(log["stream_digests"])) == log["num_steps"]
        return log["stream_digests"], log["stream_digest"], log["num_sentences"], log["num_target_tokens"]


def newest_step(config: RunConfig) -> int:
    """The step of the newest checkpoint."""
    newest = max((Path(config.workspace) / "training").glob("*/checkpoint_*"))
    return int(newest.name.rpartition("_")[2])


def weights_after(step: int, config: RunConfig) -> Weights:
    """Every weight, decoder included, in the checkpoint of a step; the last two are there."""
    (folder,) = (Path(config.workspace) / "training").glob(f"*/checkpoint_step_{step:010d}")
    tensors = load_file(folder / "state" / "training_state.safetensors")
    found = {name: value for name, value in tensors.items() if name.startswith("model.")}
    assert any(name.startswith("model.bottleneck") for name in found)
    return found


def distance(some: Weights, others: Weights) -> float:
    """The largest difference of any weight."""
    assert some.keys() == others.keys()
    return max(float(np.abs(value - others[name]).max()) for name, value in some.items())


def assert_kept_the_start(config: RunConfig) -> None:
    """The stage's encoder has the very weights of `start/`, which has no pooling around its backbone."""
    kept, start = (
        load_file(Path(config.workspace) / name / "model.safetensors") for name in ("encoder", "start")
    )
    shared = kept.keys() & {name if name in kept else f"bert.{name}" for name in start}
    assert len(shared) == len(start)
    for name in shared:
        np.testing.assert_array_equal(
            kept[name], start[name if name in start else name.removeprefix("bert.")]
        )
