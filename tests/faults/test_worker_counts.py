"""The number of workers, and how they share a model, change neither the examples nor the outcome."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from ray.exceptions import RayError
from ray.train import TrainingFailedError

from pipelines.config import RunConfig
from tests.faults.conftest import Undisturbed
from tests.faults.training import (
    Outcome,
    copy_of,
    distance,
    killing,
    newest_step,
    train,
    train_comparing_ranks,
    weights_after,
)

_CLOSE = 1e-5
_LATE_CHECKPOINT = "training/*/checkpoint_step_0000000030/state/*.safetensors"


@dataclasses.dataclass(frozen=True)
class Alone:
    """A finished training that nothing disturbed."""

    config: RunConfig
    outcome: Outcome
    ranks: list[str]


@pytest.fixture(scope="module")
def four(undisturbed: Undisturbed, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """Four workers; micro-batches are small, so that workers have different numbers of them."""
    folder = tmp_path_factory.mktemp("four")
    config = copy_of(undisturbed.config, folder, num_workers=4, max_batch_tokens=30)
    _, ranks = train_comparing_ranks(config)
    return Alone(config, Outcome.of(config), ranks)


@pytest.fixture(scope="module")
def one(undisturbed: Undisturbed, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    config = copy_of(undisturbed.config, tmp_path_factory.mktemp("one"), num_workers=1)
    _, ranks = train_comparing_ranks(config)
    return Alone(config, Outcome.of(config), ranks)


def _same_training(some: Outcome, other: Outcome) -> None:
    """The same rows in every step, and weights and curves that differ by rounding."""
    assert some.stream == other.stream
    assert some.distance(other) < _CLOSE
    # A rank jumps where two scores are almost equal, as they are in an encoder that has hardly been trained.
    for key, close in (("losses", 1e-4), ("validation_losses", 1e-4), ("retrieval_mrrs", 0.05)):
        assert some.log[key] == [pytest.approx(point, abs=close) for point in other.log[key]], key


def test_one_two_and_four_workers_see_the_same_rows_in_every_step(
    undisturbed: Undisturbed, one: Alone, four: Alone
) -> None:
    assert one.outcome.stream == undisturbed.outcome.stream == four.outcome.stream


def test_one_two_and_four_workers_have_the_same_weights_after_50_steps_and_at_the_end(
    undisturbed: Undisturbed, one: Alone, four: Alone
) -> None:
    of_two = weights_after(50, undisturbed.config)
    for other in (one, four):
        assert distance(weights_after(50, other.config), of_two) < _CLOSE
        _same_training(other.outcome, undisturbed.outcome)


def test_all_ranks_end_with_the_same_bits(undisturbed: Undisturbed, one: Alone, four: Alone) -> None:
    assert [len(ranks) for ranks in (one.ranks, undisturbed.ranks, four.ranks)] == [1, 2, 4]
    assert len(set(undisturbed.ranks)) == 1
    assert len(set(four.ranks)) == 1


def test_what_four_workers_began_two_go_on_with(
    undisturbed: Undisturbed, four: Alone, tmp_path: Path
) -> None:
    config = copy_of(undisturbed.config, tmp_path, num_workers=4, max_failures=0)
    lost = pytest.raises((RayError, TrainingFailedError))
    with killing(config, "RayTrainWorker", when=_LATE_CHECKPOINT) as killed, lost:
        train(config)
    assert killed
    assert 30 <= newest_step(config) < 60
    fewer = dataclasses.replace(config, train=dataclasses.replace(config.train, num_workers=2))
    told = train(fewer)
    assert "2 workers" in told
    assert " 0/60 steps" not in told  # it does not begin again
    outcome = Outcome.of(fewer)
    assert outcome.stream == four.outcome.stream
    _same_training(outcome, undisturbed.outcome)


def test_two_workers_with_shards_give_the_weights_of_two_with_copies(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Workers have different numbers of micro-batches, and must meet in every pass."""
    config = copy_of(undisturbed.config, tmp_path, strategy="fsdp2", max_batch_tokens=30)
    train(config)
    _same_training(Outcome.of(config), undisturbed.outcome)
