"""The number of workers, and how they share a model, change neither the examples nor the outcome."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from ray.train import TrainingFailedError

from tests.faults.conftest import Undisturbed
from tests.faults.training import Outcome, copy_of, killing, train

_CLOSE = 1e-5
_A_CHECKPOINT = "training/*/checkpoint_step_0000000010/state/*.safetensors"
_WORKER = "RayTrainWorker"


@pytest.mark.parametrize("num_workers", [1, 4])
def test_one_two_and_four_workers_see_the_same_rows_and_end_with_the_same_weights(
    undisturbed: Undisturbed, tmp_path: Path, num_workers: int
) -> None:
    config = copy_of(undisturbed.config, tmp_path, num_workers=num_workers)
    train(config)
    outcome, alone = Outcome.of(config), undisturbed.outcome
    for key in ("stream_digest", "num_sentences", "num_target_tokens", "num_steps"):
        assert outcome.log[key] == alone.log[key], key
    assert any(name.startswith("model.bottleneck") for name in outcome.weights)
    assert outcome.distance(alone) < _CLOSE
    # A rank jumps where two scores are almost equal, as they are in an encoder that has hardly been trained.
    for key, close in (("losses", 1e-4), ("validation_losses", 1e-4), ("retrieval_mrrs", 0.05)):
        assert outcome.log[key] == [pytest.approx(point, abs=close) for point in alone.log[key]], key


def test_four_workers_are_lost_and_two_go_on_with_the_same_examples(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    config = copy_of(undisturbed.config, tmp_path, num_workers=4, max_failures=0)
    with killing(config, _WORKER, when=_A_CHECKPOINT), pytest.raises(TrainingFailedError):
        train(config)
    fewer = dataclasses.replace(config, train=dataclasses.replace(config.train, num_workers=2))
    told = train(fewer)
    assert "60/60 steps" in told
    outcome = Outcome.of(config)
    assert outcome.log["stream_digest"] == undisturbed.outcome.log["stream_digest"]
    assert outcome.distance(undisturbed.outcome) < _CLOSE


def test_shards_give_what_copies_give(undisturbed: Undisturbed, tmp_path: Path) -> None:
    """Micro-batches are small: workers have different numbers of them and must meet in every pass."""
    config = copy_of(undisturbed.config, tmp_path, strategy="fsdp2", max_batch_tokens=30)
    train(config)
    outcome = Outcome.of(config)
    assert outcome.distance(undisturbed.outcome) < _CLOSE
    losses = undisturbed.outcome.log["validation_losses"]
    assert outcome.log["validation_losses"] == [pytest.approx(point, abs=1e-4) for point in losses]
