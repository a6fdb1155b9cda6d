"""The number of workers, and how they share a model, change neither the examples nor the outcome."""

from __future__ import annotations

import dataclasses
import re
import shutil
import time
from pathlib import Path

import psutil
import pytest

from pipelines.config import RunConfig
from tests.faults.conftest import Nodes
from tests.faults.linked import Linked, train_alone
from tests.faults.training import (
    Outcome,
    copy_of,
    distance,
    killing,
    newest_step,
    processes,
    train,
    train_comparing_ranks,
    weights_after,
)

_CLOSE = 1e-5
_WORKER = "RayTrainWorker"


@dataclasses.dataclass(frozen=True)
class Four:
    """A finished training by four workers of Ray Train, and its workspace as it was in the middle."""

    linked: Linked
    told: str
    begun: RunConfig


@pytest.fixture(scope="module")
def four(nodes: Nodes, undisturbed: Linked, tmp_path_factory: pytest.TempPathFactory) -> Four:
    """Micro-batches are small, so that workers have different numbers of them."""
    folder, middle = tmp_path_factory.mktemp("four"), tmp_path_factory.mktemp("begun") / "work"
    config = copy_of(undisturbed.config, folder, num_workers=4, max_batch_tokens=30)

    def copy(_: psutil.Process) -> None:
        _wait_for_noted(config, step=30)
        # Workers write checkpoints, their controller notes and deletes them.
        at_work = processes(_WORKER) + processes("TrainController")
        for process in at_work:
            process.suspend()
        try:
            shutil.copytree(config.workspace, middle)
        finally:
            for process in at_work:
                process.resume()

    with killing(config, _WORKER, when="training/*/checkpoint_*", act=copy) as copied:
        told, ranks = train_comparing_ranks(config)
    assert copied
    begun = dataclasses.replace(config, workspace=str(middle))
    return Four(Linked(config, ranks, Outcome.of(config)), told, begun)


@pytest.fixture(scope="module")
def one(undisturbed: Linked, tmp_path_factory: pytest.TempPathFactory) -> Linked:
    return train_alone(copy_of(undisturbed.config, tmp_path_factory.mktemp("one"), num_workers=1))


def _wait_for_noted(config: RunConfig, *, step: int) -> None:
    """Returns once Ray Train has noted a checkpoint of this step or a later one."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for place in (Path(config.workspace) / "training").glob("*/checkpoint_manager_snapshot.json"):
            if max(map(int, re.findall(r"checkpoint_step_(\d+)", place.read_text())), default=0) >= step:
                return
        time.sleep(0.005)


def _same_training(some: Outcome, other: Outcome) -> None:
    """The same rows in every step, and weights and curves that differ by rounding."""
    assert some.stream == other.stream
    assert some.distance(other) < _CLOSE
    # A rank jumps where two scores are almost equal, as they are in an encoder that has hardly been trained.
    for key, close in (("losses", 1e-4), ("validation_losses", 1e-4), ("retrieval_mrrs", 0.05)):
        assert some.log[key] == [pytest.approx(point, abs=close) for point in other.log[key]], key


def test_one_two_and_four_workers_see_the_same_rows_in_every_step(
    undisturbed: Linked, one: Linked, four: Four
) -> None:
    assert one.finished.stream == undisturbed.finished.stream == four.linked.finished.stream


def test_one_two_and_four_workers_have_the_same_weights_after_50_steps_and_at_the_end(
    undisturbed: Linked, one: Linked, four: Four
) -> None:
    of_two = weights_after(50, undisturbed.config)
    for other in (one, four.linked):
        assert distance(weights_after(50, other.config), of_two) < _CLOSE
        _same_training(other.finished, undisturbed.finished)


def test_all_ranks_end_with_the_same_bits(undisturbed: Linked, one: Linked, four: Four) -> None:
    assert [len(ranks) for ranks in (one.ranks, undisturbed.ranks, four.linked.ranks)] == [1, 2, 4]
    assert len(set(undisturbed.ranks)) == 1
    assert len(set(four.linked.ranks)) == 1


def test_a_training_tells_what_a_reader_needs(four: Four) -> None:
    line = [line for line in four.told.splitlines() if "60/60 steps" in line][-1]
    for part in (
        r"loss \d\.\d+",
        r"[\d,]+ tokens/s",
        r"padding 0%",
        r"waiting for data \d+% \([\d,]+ tokens ready\)",
        r"memory \d+\.\d(-\d+\.\d)? GiB per worker",
        r"validation loss \d\.\d+",
        r"retrieval 0\.\d+",
    ):
        assert re.search(part, line), line
    assert re.search(r"first batch came after .* is the slower side", four.told)


def test_what_four_workers_began_two_go_on_with(undisturbed: Linked, four: Four) -> None:
    """From what is on disk in the middle of a training, as a kill of everything would leave it."""
    assert 30 <= newest_step(four.begun) < 60
    fewer = dataclasses.replace(four.begun, train=dataclasses.replace(four.begun.train, num_workers=2))
    told = train(fewer)
    assert "2 workers" in told
    assert " 0/60 steps" not in told  # it does not begin again
    outcome = Outcome.of(fewer)
    assert outcome.stream == four.linked.finished.stream
    _same_training(outcome, undisturbed.finished)


def test_two_workers_with_shards_give_the_weights_of_two_with_copies(linked: dict[str, Linked]) -> None:
    """Workers have different numbers of micro-batches, and must meet in every pass."""
    _same_training(linked["shards"].finished, linked["undisturbed"].finished)
