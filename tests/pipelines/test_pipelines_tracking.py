"""Tracking: one run per fingerprint, metrics by step, no trace in the environment."""

import os
import pickle
from pathlib import Path

import mlflow
import pyarrow.fs as pafs
import pytest
from mlflow.tracking import MlflowClient

from pipelines.config import RunConfig, TrackingConfig
from pipelines.errors import InputError
from pipelines.storage import Location
from pipelines.tracking import FINGERPRINT_TAG, Tracker


@pytest.fixture(scope="module")
def tracker(tmp_path_factory):
    """A sqlite database in a workspace; making it takes seconds, so the tests share it."""
    return Tracker.of(RunConfig(), Location.parse(tmp_path_factory.mktemp("tracking") / "work"))


def test_opening_a_run_twice_goes_on_with_the_first(tracker):
    first = tracker.open_run("train", fingerprint="f1", params={"train.optim.lr": 3e-5, "empty": ""})
    tracker.close_run(first, status="FAILED")
    second = tracker.open_run("train", fingerprint="f1", params={"train.optim.lr": 3e-5, "empty": ""})
    assert second == first == tracker.find_run("f1")
    run = MlflowClient(tracker.uri).get_run(first)
    assert run.info.status == "RUNNING"
    assert run.data.params["train.optim.lr"] == "3e-05"
    assert run.data.tags[FINGERPRINT_TAG] == "f1"


def test_another_fingerprint_is_another_run_of_the_same_experiment(tracker):
    one = tracker.open_run("a", fingerprint="f2", params={})
    other = tracker.open_run("a", fingerprint="f3", params={})
    assert one != other
    assert tracker.find_run("nobody") is None
    experiments = {MlflowClient(tracker.uri).get_run(run).info.experiment_id for run in (one, other)}
    assert experiments == {tracker.experiment_id()}


def test_more_parameters_than_one_call_takes_and_longer_ones_are_all_kept(tracker):
    params = {f"section.key{i}": "x" * (9_000 if i == 7 else 1) for i in range(230)}
    run = tracker.open_run("a", fingerprint="f4", params=params)
    logged = MlflowClient(tracker.uri).get_run(run).data.params
    assert logged.keys() == params.keys()
    assert logged["section.key7"] == "x" * 5_000


def test_metrics_are_logged_by_step_and_time_also_from_another_process(tracker):
    run = tracker.open_run("a", fingerprint="f5", params={})
    rows = [(step, 1_700_000_000_000 + step, {"loss": step / 2, "tokens_per_s": 1}) for step in range(600)]
    pickle.loads(pickle.dumps(tracker)).log_metrics(run, rows)
    tracker.log_metrics(run, [])
    history = MlflowClient(tracker.uri).get_metric_history(run, "loss")
    assert [(m.step, m.timestamp, m.value) for m in history] == [(s, t, v["loss"]) for s, t, v in rows]
    assert MlflowClient(tracker.uri).get_run(run).data.metrics["tokens_per_s"] == 1.0


def test_files_are_kept_in_the_workspace(tracker, tmp_path):
    run = tracker.open_run("a", fingerprint="f6", params={})
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    tracker.log_file(run, tmp_path / "config.yaml", folder="deep")
    assert [f.path for f in MlflowClient(tracker.uri).list_artifacts(run, "deep")] == ["deep/config.yaml"]
    folder = Path(tracker.artifact_root)
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["config.yaml"]
    assert tracker.uri == f"sqlite:///{folder.parent}/mlflow.db"


def test_nothing_is_written_beside_the_workspace(tracker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tracker.open_run("a", fingerprint="f7", params={"x": 1})
    assert list(tmp_path.iterdir()) == []


REMOTE = [
    Location(pafs._MockFileSystem(), "bucket/work"),
    Location(pafs.SubTreeFileSystem("/nowhere", pafs.LocalFileSystem()), "bucket/work"),
]


@pytest.mark.parametrize("workspace", REMOTE, ids=["memory", "subtree"])
def test_a_remote_workspace_needs_a_server_and_says_how_to_name_it(workspace, monkeypatch):
    with pytest.raises(InputError, match=r"tracking\.uri or MLFLOW_TRACKING_URI"):
        Tracker.of(RunConfig(), workspace)
    config = RunConfig(tracking=TrackingConfig(uri="http://server:5000", experiment="e"))
    assert Tracker.of(config, workspace) == Tracker("http://server:5000", "e", None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://other:5000")
    assert Tracker.of(RunConfig(), workspace).uri == "http://other:5000"
    assert Tracker.of(config, workspace).uri == "http://server:5000"


@pytest.mark.parametrize("before", [None, "http://mine:5000"])
def test_pointing_mlflow_at_the_tracker_leaves_the_environment_as_it_was(tracker, monkeypatch, before):
    if before is None:
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    else:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", before)
    with tracker._active():
        assert mlflow.get_tracking_uri() == tracker.uri
    assert os.environ.get("MLFLOW_TRACKING_URI") == before
    with pytest.raises(KeyError), tracker._active():
        raise KeyError
    assert os.environ.get("MLFLOW_TRACKING_URI") == before
    if before is not None:
        assert mlflow.get_tracking_uri() == before


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "nosuch://server"])
def test_a_server_that_does_not_answer_is_a_user_error_that_names_it(uri, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(InputError, match=uri):
        Tracker(uri, "e", None).open_run("a", fingerprint="f", params={})


def test_two_trackers_of_one_workspace_share_their_runs(tracker):
    again = Tracker(tracker.uri, tracker.experiment, tracker.artifact_root)
    run = tracker.open_run("a", fingerprint="f8", params={})
    assert again.open_run("b", fingerprint="f8", params={"late": 1}) == run
