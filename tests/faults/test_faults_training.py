"""What is lost during a training does not change its outcome; what cannot be mended ends it with reasons."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from pipelines.errors import InputError
from pipelines.train_config import EarlyStopping
from tests.faults.conftest import Nodes, Undisturbed
from tests.faults.training import Outcome, copy_of, killing, train
from tsdae_core.optim import OptimConfig

_A_CHECKPOINT = "training/*/checkpoint_step_0000000010/state/*.safetensors"
_A_LATER_CHECKPOINT = "training/*/checkpoint_step_0000000030/state/*.safetensors"
_WORKER = "RayTrainWorker"
_DATA_TASK = "_BatchMaker"


def test_an_undisturbed_training_tells_what_a_reader_needs(undisturbed: Undisturbed) -> None:
    line = [line for line in undisturbed.told.splitlines() if "60/60 steps" in line][-1]
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
    assert re.search(r"first batch came after .* is the slower side", undisturbed.told)


def test_a_killed_data_task_then_a_worker_then_a_whole_node_change_nothing(
    nodes: Nodes, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    config = copy_of(undisturbed.config, tmp_path)

    def kill_node(worker: psutil.Process) -> None:
        raylet = worker.ppid()
        (node,) = [
            node
            for node in nodes.workers
            if raylet in [info.process.pid for info in node.all_processes["raylet"]]
        ]
        nodes.workers.remove(node)
        nodes.cluster.remove_node(node, allow_graceful=False)

    nodes.add()
    with (
        killing(config, _DATA_TASK, when="encoder/_started.json") as task,
        killing(config, _WORKER, when=_A_CHECKPOINT) as worker,
        killing(config, _WORKER, when=_A_LATER_CHECKPOINT, act=kill_node) as on_the_node,
    ):
        told = train(config)
    assert task
    assert worker
    assert on_the_node
    assert len(nodes.workers) == 2
    assert told.count("lost a worker") == 2
    assert Outcome.of(config).digest == undisturbed.outcome.digest


def test_a_loss_that_is_not_finite_ends_the_training_at_once(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    breaking = OptimConfig(lr=1e-3, schedule="piecewise", boundaries=(15,), rates=(1e30,))
    config = copy_of(undisturbed.config, tmp_path, optim=breaking, num_steps=30)
    with pytest.raises(InputError) as caught:
        train(config)
    message = str(caught.value)
    step = int(re.search(r"not finite in step (\d+)", message)[1])  # type: ignore[index]
    assert 16 <= step <= 20
    assert "the last good checkpoint is that of step 10," in message
    named = re.search(r"are ([\d, ]+)\. Lower", message)
    assert named is not None
    assert len(named[1].split(", ")) == 8
    assert "lost a worker" not in caught.value.__notes__[0]


def test_a_stopped_training_keeps_its_best_encoder_also_through_a_kill(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """No gain is large enough, so the second validation after the start ends it and the start is the best."""
    stopping = EarlyStopping(metric="validation_loss", patience=2, min_delta=100.0)
    config = copy_of(undisturbed.config, tmp_path, keep="best", early_stopping=stopping, num_workers=1)
    with killing(config, _WORKER, when=_A_CHECKPOINT) as killed:
        told = train(config)
    assert killed
    assert told.count("lost a worker") == 1
    outcome = Outcome.of(config)
    assert (outcome.log["num_steps"], outcome.log["kept_step"]) == (40, 0)
    losses = undisturbed.outcome.log["validation_losses"][:3]
    assert outcome.log["validation_losses"] == [pytest.approx(point, abs=1e-4) for point in losses]
    kept, start = (
        load_file(Path(config.workspace) / name / "model.safetensors") for name in ("encoder", "start")
    )
    shared = kept.keys() & {name if name in kept else f"bert.{name}" for name in start}
    assert len(shared) == len(start)
    for name in shared:
        np.testing.assert_array_equal(
            kept[name], start[name if name in start else name.removeprefix("bert.")]
        )
    assert "train: up to date, 40 steps" in train(config)
