"""A training in bfloat16: with validations, through a restart, and with a model in shards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pipelines.config import RunConfig
from pipelines.local_training import train_here
from pipelines.manifest import read_manifest
from pipelines.storage import Location
from pipelines.train_config import EarlyStopping
from pipelines.train_job import Training
from pipelines.validation_task import ValidationTask
from tests.faults.conftest import Nodes
from tests.faults.linked import Linked
from tests.faults.training import Outcome, copy_of, killing, newest_step, train, weights_after
from tsdae_core.encoder import SentenceEncoder

_A_CHECKPOINT = "training/*/checkpoint_step_0000000010/state/*.safetensors"
# Eight bits of mantissa: losses of some nats agree to a hundredth.
_CLOSE = 0.02


class _KilledError(Exception):
    pass


def _train_here(
    config: RunConfig, after_step: Callable[[int, SentenceEncoder], None] | None = None
) -> Outcome:
    workspace = Location.parse(config.workspace)
    storage = workspace / "training" / "here"
    job = Training.of(config, workspace, read_manifest(workspace / "tokens"), storage=storage)
    encoder = train_here(job, device=torch.device("cpu"), show=lambda _: None, after_step=after_step)
    return Outcome(
        json.loads((encoder / "training_log.json").read_bytes()),
        weights_after(newest_step(config), config),
        SentenceEncoder.load(str(encoder.local_path)).fingerprint(),
    )


@pytest.fixture(scope="module")
def config(base: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """The base with a validation task beside the losses, in bfloat16, for one worker."""
    folder = tmp_path_factory.mktemp("bfloat16")
    pairs = [f"{i % 6}.0\tbala {i}\tkorin {i * i % 7} po\n" for i in range(12)]
    (folder / "sts.tsv").write_text("score\tsentence1\tsentence2\n" + "".join(pairs))
    task = ValidationTask(kind="sts", folder=str(folder / "sts.tsv"))
    stopping = EarlyStopping(task=task)
    return copy_of(base, folder, precision="bfloat16", early_stopping=stopping, num_workers=1)


@pytest.fixture(scope="module")
def alone(config: RunConfig) -> Outcome:
    return _train_here(config)


def test_it_learns_as_float32_does_and_is_not_float32(undisturbed: Linked, alone: Outcome) -> None:
    assert alone.stream == undisturbed.finished.stream
    for curve in ("losses", "validation_losses"):
        in_float32 = undisturbed.finished.log[curve]
        assert alone.log[curve] == [pytest.approx(point, abs=_CLOSE) for point in in_float32], curve
        assert alone.log[curve] != in_float32, curve
    assert alone.log["validation_losses"][-1][1] < alone.log["validation_losses"][0][1]
    steps = [step for step, _ in undisturbed.finished.log["validation_losses"]]
    for curve in ("retrieval_mrrs", "task_scores"):
        assert [step for step, _ in alone.log[curve]] == steps
        assert np.isfinite([value for _, value in alone.log[curve]]).all()
    assert {value.dtype for value in alone.weights.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize("step", [10, 33])
def test_a_restart_changes_no_bit(config: RunConfig, alone: Outcome, tmp_path: Path, step: int) -> None:
    again = copy_of(config, tmp_path)

    def kill(done: int, _encoder: SentenceEncoder) -> None:
        if done == step:
            raise _KilledError

    with pytest.raises(_KilledError):
        _train_here(again, kill)
    outcome = _train_here(again)
    assert outcome.log == alone.log
    assert outcome.distance(alone) == 0
    assert outcome.digest == alone.digest


def test_shards_of_two_workers_through_a_kill_are_the_same_training(
    nodes: Nodes, config: RunConfig, alone: Outcome, tmp_path: Path
) -> None:
    sharded = copy_of(config, tmp_path, num_workers=2, strategy="fsdp2", max_batch_tokens=30)
    with killing(sharded, "RayTrainWorker", when=_A_CHECKPOINT) as killed:
        told = train(sharded)
    assert killed
    assert told.count("lost a worker") == 1
    outcome = Outcome.of(sharded)
    assert outcome.stream == alone.stream
    for curve in ("losses", "validation_losses"):
        assert outcome.log[curve] == [pytest.approx(point, abs=_CLOSE) for point in alone.log[curve]], curve
    for curve in ("retrieval_mrrs", "task_scores"):
        assert [step for step, _ in outcome.log[curve]] == [step for step, _ in alone.log[curve]]
    assert {value.dtype for value in outcome.weights.values()} == {np.dtype(np.float32)}
