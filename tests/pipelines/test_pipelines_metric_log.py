"""Metrics reach MLflow once a step, wherever the run was killed."""

import pytest
from mlflow.tracking import MlflowClient

from pipelines.metric_log import MetricLog
from pipelines.tracking import Tracker


@pytest.fixture(scope="module")
def tracker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("metrics")
    return Tracker(f"sqlite:///{folder / 'mlflow.db'}", "tsdae", str(folder / "artifacts"))


@pytest.fixture
def run(tracker, request):
    return tracker.open_run("train", fingerprint=request.node.name, params={})


def _steps(tracker, run, name):
    return [point.step for point in MlflowClient(tracker.uri).get_metric_history(run, name)]


def _train(log, steps):
    for step in steps:
        log.keep(step, {"train_loss": 1.0 / step})
        if step % 2 == 0:
            log.keep(step, {"validation_loss": 2.0})


def test_nothing_is_logged_before_a_checkpoint_covers_it(tracker, run):
    log = MetricLog(tracker, run, is_writer=True)
    log.carry_on([])
    _train(log, [1, 2])
    assert _steps(tracker, run, "train_loss") == []
    log.flush()
    assert log.pending == []
    assert _steps(tracker, run, "train_loss") == [1, 2]
    assert _steps(tracker, run, "validation_loss") == [2]


@pytest.mark.parametrize("restart_after", [0, 2])
def test_steps_logged_before_their_checkpoint_was_noted_are_not_repeated(tracker, run, restart_after):
    log = MetricLog(tracker, run, is_writer=True)
    log.carry_on([])
    for steps in ([1, 2], [3, 4]):
        _train(log, steps)
        log.flush()
    again = MetricLog(tracker, run, is_writer=True)
    again.carry_on([(2, Tracker.now_ms(), {"train_loss": 0.5})] if restart_after else [])
    _train(again, range(restart_after + 1, 7))
    again.flush()
    assert _steps(tracker, run, "train_loss") == [1, 2, 3, 4, 5, 6]
    assert _steps(tracker, run, "validation_loss") == [2, 4, 6]


def test_what_a_kill_kept_from_mlflow_comes_from_the_checkpoint(tracker, run):
    log = MetricLog(tracker, run, is_writer=True)
    log.carry_on([])
    _train(log, [1, 2])
    again = MetricLog(tracker, run, is_writer=True)  # killed after the checkpoint and before the flush
    again.carry_on(log.pending)
    _train(again, [3])
    again.flush()
    assert _steps(tracker, run, "train_loss") == [1, 2, 3]
    assert _steps(tracker, run, "validation_loss") == [2]


def test_only_the_writer_logs(tracker, run):
    log = MetricLog(tracker, run, is_writer=False)
    log.carry_on([(1, Tracker.now_ms(), {"train_loss": 0.5})])
    _train(log, [2])
    log.flush()
    assert log.pending == []
    assert _steps(tracker, run, "train_loss") == []


def test_last_steps_leave_out_the_systems_metrics(tracker, run):
    tracker.log_metrics(run, [(3, 1, {"loss": 1.0, "system/cpu": 5.0}), (9, 2, {"loss": 0.5})])
    assert tracker.last_steps(run) == {"loss": 9}
