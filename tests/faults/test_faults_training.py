"""What is lost during a training does not change its outcome; what cannot be mended ends it with reasons."""

from __future__ import annotations

import re
from pathlib import Path

import psutil

from pipelines.train_config import EarlyStopping
from tests.faults.conftest import Nodes
from tests.faults.linked import Linked
from tests.faults.training import Outcome, assert_kept_the_start, copy_of, killing, train

_A_CHECKPOINT = "training/*/checkpoint_step_0000000010/state/*.safetensors"
_A_LATER_CHECKPOINT = "training/*/checkpoint_step_0000000030/state/*.safetensors"
_WORKER = "RayTrainWorker"
_DATA_TASK = "_BatchMaker"


def test_a_killed_data_task_then_a_worker_then_a_whole_node_change_nothing(
    nodes: Nodes, undisturbed: Linked, tmp_path: Path
) -> None:
    """Nor is the best encoder lost: no gain is large enough, so that the start stays the best one."""
    stopping = EarlyStopping(metric="validation_loss", min_delta=100.0)
    config = copy_of(undisturbed.config, tmp_path, keep="best", early_stopping=stopping)

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
    outcome = Outcome.of(config)
    assert outcome.log == undisturbed.finished.log | {"kept_step": 0}
    assert outcome.distance(undisturbed.finished) == 0
    assert_kept_the_start(config)


def test_a_loss_that_is_not_finite_ends_the_training_of_all_workers_at_once(
    linked: dict[str, Linked],
) -> None:
    message, of_the_other = linked["breaking"].ranks
    assert message == of_the_other
    step = int(re.search(r"not finite in step (\d+)", message)[1])  # type: ignore[index]
    assert 16 <= step <= 20
    assert "the last good checkpoint is that of step 10," in message
    named = re.search(r"are ([\d, ]+)\. Lower", message)
    assert named is not None
    assert len(named[1].split(", ")) == 8
