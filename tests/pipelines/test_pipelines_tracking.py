"""Tracking: one run per fingerprint, metrics by step, no trace in the environment."""

import dataclasses
import json
import os
import pickle
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import mlflow
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from mlflow.tracking import MlflowClient

from pipelines.config import RunConfig, TrackingConfig
from pipelines.dataset_profile import columns_of, rows_and_shards
from pipelines.errors import InputError
from pipelines.manifest import Manifest, ShardRecord
from pipelines.registry import MODEL_ID_TAG, Registry
from pipelines.storage import Location, without_credentials
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
    # A restart repeats what it cannot know to be logged.
    tracker.log_metrics(run, [*rows[-3:], (600, 1_700_000_000_600, {"loss": 1.0})])
    assert len(MlflowClient(tracker.uri).get_metric_history(run, "loss")) == len(rows) + 1


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
    assert Tracker.of(config, workspace) == Tracker("http://server:5000", "e", None, 10.0)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://other:5000")
    assert Tracker.of(RunConfig(), workspace).uri == "http://other:5000"
    assert Tracker.of(config, workspace).uri == "http://server:5000"


@pytest.mark.parametrize("before", [None, "http://mine:5000"])
def test_pointing_mlflow_at_the_tracker_leaves_the_environment_as_it_was(tracker, monkeypatch, before):
    if before is None:
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    else:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", before)
    with tracker.active():
        assert mlflow.get_tracking_uri() == tracker.uri
    assert os.environ.get("MLFLOW_TRACKING_URI") == before
    with pytest.raises(KeyError), tracker.active():
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


def test_what_a_run_read_is_recorded_once_with_its_digest_and_purpose(tracker, tmp_path):
    run = tracker.open_run("a", fingerprint="f9", params={})
    for _ in range(2):
        tracker.log_input(run, name="corpus", place=str(tmp_path), digest="d" * 64, context="training")
    tracker.log_input(run, name="corpus", place="s3://bucket/corpus", digest="e" * 64, context="evaluation")
    inputs = MlflowClient(tracker.uri).get_run(run).inputs.dataset_inputs
    found = {(i.dataset.name, i.dataset.digest, i.tags[0].key, i.tags[0].value) for i in inputs}
    key = "mlflow.data.context"
    assert len(inputs) == 2
    assert found == {("corpus", "d" * 36, key, "training"), ("corpus", "e" * 36, key, "evaluation")}


def test_a_dataset_has_columns_and_sizes_and_scores_join_it_by_name_and_digest(tracker, tmp_path):
    table = pa.table(
        {"row_id": pa.array([1, 2]), "text": ["a", "b"], "label": pa.array([1, 0], pa.float32())}
    )
    pq.write_table(table, tmp_path / "part-00000.parquet")
    shards = (ShardRecord(name="part-00000", num_rows=2, digest="x"),)
    rows = Manifest(stage="labels", fingerprint="f", config={}, inputs={}, counts={}, shards=shards)
    columns, counts = columns_of(Location.parse(tmp_path), rows), rows_and_shards(rows)
    run = tracker.open_run("a", fingerprint="f12", params={})
    described = {"name": "words", "place": str(tmp_path), "digest": "d" * 64, "context": "evaluation"}
    tracker.log_input(run, **described, columns=columns, counts=counts)
    client = MlflowClient(tracker.uri)
    (read,) = client.get_run(run).inputs.dataset_inputs
    fields = json.loads(read.dataset.schema)["mlflow_colspec"]
    assert [(field["name"], field["type"]) for field in fields] == [
        ("row_id", "long"),
        ("text", "string"),
        ("label", "float"),
    ]
    assert json.loads(read.dataset.profile) == {"num_rows": 2, "num_shards": 1}

    registry = Registry(tracker, "scored")
    client.create_registered_model("scored")
    experiment = tracker.experiment_id()
    model = client.create_logged_model(experiment, source_run_id=run)
    made = client.create_model_version("scored", source=str(tmp_path), run_id=run)
    registry.set_tags(made.version, {MODEL_ID_TAG: model.model_id})
    registry.log_scores(str(made.version), {"words.map": 0.5}, dataset="words", digest="d" * 64)
    (score,) = client.get_logged_model(model.model_id).metrics
    assert (score.dataset_name, score.dataset_digest) == (read.dataset.name, read.dataset.digest)


def test_system_metrics_are_logged_per_node_and_go_on_after_a_restart(tracker):
    watched = dataclasses.replace(tracker, system_metrics_every_s=0.05)
    run = watched.open_run("a", fingerprint="f10", params={})
    for _ in range(2):
        with watched.system_metrics(run, node="node_3"):
            time.sleep(0.5)
    key = "system/node_3/cpu_utilization_percentage"
    steps = [metric.step for metric in MlflowClient(tracker.uri).get_metric_history(run, key)]
    assert len(steps) >= 2
    assert steps == list(range(len(steps)))


def test_no_system_metrics_are_read_where_they_are_switched_off(tracker):
    run = tracker.open_run("a", fingerprint="f11", params={})
    with tracker.system_metrics(run, node="node_0"):
        pass
    assert MlflowClient(tracker.uri).get_run(run).data.metrics == {}


def damaged(path):
    path.write_bytes(b"no database at all " * 200)


def cut_short(path):
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE runs (id TEXT)")
        database.executemany("INSERT INTO runs VALUES (?)", [("x" * 500,)] * 100)
        database.commit()
    path.write_bytes(path.read_bytes()[:2_000])


def of_a_newer_mlflow(path):
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE alembic_version (version_num TEXT)")
        database.execute("CREATE TABLE experiments (id TEXT)")
        database.execute("INSERT INTO alembic_version VALUES ('ffffffffffff')")
        database.commit()


@pytest.mark.parametrize("damage", [damaged, cut_short, Path.mkdir, of_a_newer_mlflow])
def test_a_database_that_cannot_be_used_is_one_line_that_names_it(tmp_path, damage):
    damage(tmp_path / "mlflow.db")
    tracker = Tracker.of(RunConfig(), Location.parse(tmp_path))
    calls = [
        lambda: tracker.open_run("a", fingerprint="f", params={}),
        lambda: tracker.find_run("f"),
        lambda: tracker.log_metrics("run", [(1, 1, {"loss": 1.0})]),
    ]
    for call in calls:
        with pytest.raises(InputError) as caught:
            call()
        assert str(tmp_path / "mlflow.db") in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("s3://key:secret@bucket/in?region=x", "s3://***@bucket/in?region=x"),
        (
            "s3://bucket/in?access_key=A&secret_key=B&region=x",
            "s3://bucket/in?access_key=***&secret_key=***&region=x",
        ),
        ("/data/me@home/in", "/data/me@home/in"),
    ],
)
def test_credentials_inside_urls_do_not_reach_mlflow(given, shown):
    assert without_credentials(given) == shown
