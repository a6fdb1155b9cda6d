"""A run submitted to a cluster: workspace in an object store, MLflow over HTTP, work on another node."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
import yaml

from tests.end_to_end.cluster_services import (
    BUCKET,
    ROOT,
    Services,
    call,
    ray_job_submit,
    services_in_use,
    tsdae_submit,
)

EXAMPLE = ROOT / "configs" / "cluster" / "object-storage.yaml"
STEPS = 12
DOCUMENTS = 400
THINGS = ("file", "table", "lock", "query", "option", "column", "socket", "thread", "buffer", "parser")
VERBS = ("open", "close", "read", "write", "sort", "merge", "split", "copy", "move", "print")


@dataclass(frozen=True)
class Job:
    """The configuration and how the submitted run ended."""

    config: Path
    done: subprocess.CompletedProcess[str]
    overrides: tuple[str, ...]


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with services_in_use(tmp_path_factory.mktemp("services")) as running:
        yield running


@pytest.fixture(scope="module")
def job(services: Services, tmp_path_factory: pytest.TempPathFactory) -> Job:
    _write_data(services)
    config = tmp_path_factory.mktemp("job") / "job.yaml"
    config.write_text(yaml.safe_dump(_config(services)), encoding="utf-8")
    overrides = (f"workspace='{services.url('work')}'",)
    return Job(config, tsdae_submit(services, str(config), *overrides), overrides)


def _write_data(services: Services) -> None:
    """Sentences, documents and a task, where the example looks for them in its bucket."""
    texts = {
        f"d{i}": f"{VERBS[i // 10 % 10]} the {THINGS[i % 10]} number {i // 100} again"
        for i in range(DOCUMENTS)
    }
    names, titles = list(texts), [f"about {THINGS[i % 10]}" for i in range(DOCUMENTS)]
    for part in (slice(0, 240), slice(240, DOCUMENTS)):
        columns = {"id": names[part], "title": titles[part], "text": list(texts.values())[part]}
        documents = pa.table(columns)
        for kind, table in (("sentences", documents.drop_columns("title")), ("documents", documents)):
            path = f"{BUCKET}/tsdae/{kind}/part-{part.start}.parquet"
            pq.write_table(table, path, filesystem=services.filesystem)
    judged = range(0, DOCUMENTS, 9)
    queries = {"_id": [f"q{i}" for i in judged], "text": [texts[f"d{i}"][:-6] for i in judged]}
    qrels = {"query-id": queries["_id"], "corpus-id": [f"d{i}" for i in judged], "score": [1] * len(judged)}
    for name, columns in (("queries", queries), ("qrels", qrels)):
        path = f"{BUCKET}/tsdae/task/{name}.parquet"
        pq.write_table(pa.table(columns), path, filesystem=services.filesystem)


def _config(services: Services) -> dict[str, Any]:
    """The example with the addresses of this store, and everything small."""
    text = re.sub(
        rf"s3://{BUCKET}/([\w/-]+)", lambda place: services.url(place[1]), EXAMPLE.read_text(encoding="utf-8")
    )
    config: dict[str, Any] = yaml.safe_load(text)
    shape = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32, "vocab_size": 150}
    for part in ("corpus", "documents"):
        config[part]["num_shards"] = 2
    config["evaluate"]["num_examples"] = 0
    return config | {
        "model": {"start": "scratch", "max_tokens": 16, "scratch": shape},
        "train": {
            "batch_size": 8,
            "num_steps": STEPS,
            "num_workers": 2,
            "validation_rows": 10,
            "validate_every": 4,
            "checkpoint_every": 4,
            "log_every": 2,
        },
        "embed": {},
        # The vectors of so small an encoder nearly tie, so that which ten are the best is rounding.
        "index": {"factory": "IVF8,Flat", "target_recall_at_10": 0.5},
        "tracking": {"system_metrics_every_s": 0.5},
    }


def test_a_submitted_run_shows_its_log_and_ends_with_0(job: Job) -> None:
    assert job.done.returncode == 0, job.done.stdout + job.done.stderr
    for part in ("] prepare", "] register", f"{STEPS}/{STEPS} steps", "BM25", "models:/my-encoder@candidate"):
        assert part in job.done.stdout, part
    assert "ended with exit code 0" in job.done.stderr


def test_the_index_in_the_object_store_answers_here(job: Job, services: Services) -> None:
    query = "sort the parser number 0 again"
    done = call("-m", "pipelines", "search", "-w", services.url("work"), "-k", "3", "--json", query)
    assert done.returncode == 0, done.stderr
    hits = [json.loads(line) for line in done.stdout.splitlines()]
    assert [hit["rank"] for hit in hits] == [1, 2, 3]
    assert (hits[0]["doc_id"], hits[0]["title"], hits[0]["text"]) == ("d49", "about parser", query)
    assert hits[0]["score"] == pytest.approx(1.0, abs=1e-4)


def test_the_server_has_one_run_with_parameters_metrics_inputs_and_artifacts(
    job: Job, services: Services
) -> None:
    from pipelines.tracking import Tracker

    client = Tracker(services.mlflow, "tsdae", None).client()
    (run,) = client.search_runs([client.get_experiment_by_name("tsdae").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["train.optim.lr"] == "3e-05"
    losses = client.get_metric_history(run.info.run_id, "train_loss_nats_per_token")
    assert [metric.step for metric in losses] == list(range(2, STEPS + 1, 2))
    assert {"tokens_per_s", "validation_loss_nats_per_token", "my-task.after training.ndcg_at_10"} <= set(
        run.data.metrics
    )
    assert "system/node_0/system_memory_usage_megabytes" in run.data.metrics
    read = {
        (i.dataset.name, i.tags[0].value, json.loads(i.dataset.source)["uri"])
        for i in run.inputs.dataset_inputs
    }
    workspace = f"s3://{BUCKET}/work"
    assert read == {
        ("corpus", "training", f"{workspace}/corpus"),
        ("my-task", "evaluation", f"{workspace}/documents"),
    }
    names = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert {"config.yaml", "manifest.json", "training_log.json", "loss.html", "report", "evaluation"} <= names


def test_the_version_has_signature_example_requirements_tags_and_its_logged_model(
    job: Job, services: Services
) -> None:
    import mlflow.models
    from mlflow.types import DataType

    from pipelines.registry import Registry
    from pipelines.tracking import Tracker

    tracker = Tracker(services.mlflow, "tsdae", None)
    client = tracker.client()
    version = Registry(tracker, "my-encoder").at("candidate")
    assert version is not None
    assert {"tsdae.encoder", "tsdae.corpus", "tsdae.config", "my-task.ndcg_at_10"} <= set(version.tags)
    with tracker.active():
        info = mlflow.models.get_model_info("models:/my-encoder@candidate")
    assert info.signature.inputs.input_types() == [DataType.string]
    (vectors,) = info.signature.outputs.inputs
    assert (vectors.type, vectors.shape[0]) == (np.dtype("float32"), -1)
    assert vectors.shape[1] > 0
    assert info.saved_input_example_info is not None
    model = client.get_logged_model(version.tags["tsdae.model_id"])
    assert model.source_run_id == version.run_id
    scores = {metric.key: metric.value for metric in model.metrics}
    assert f"{scores['my-task.ndcg_at_10']:.4f}" == version.tags["my-task.ndcg_at_10"]
    # MLflow adds what it measures of the machine while the model is logged, without a dataset.
    scored_on = {
        (metric.dataset_name, metric.dataset_digest) for metric in model.metrics if metric.key in version.tags
    }
    inputs = client.get_run(version.run_id).inputs.dataset_inputs
    assert scored_on == {(i.dataset.name, i.dataset.digest) for i in inputs if i.dataset.name == "my-task"}
    assert len(scored_on) == 1
    assert model.params["steps"] == str(STEPS)


def test_the_gate_compares_the_version_with_its_start_over_http(job: Job, services: Services) -> None:
    refused = call("-m", "pipelines", "promote", str(job.config), *job.overrides, "promote.min_gain=0.99")
    assert refused.returncode == 1, refused.stderr
    assert "of the start of version 1, a gain of" in refused.stderr
    assert "(promote.min_gain 0.99)" in refused.stderr


def test_ray_s_own_command_goes_on_with_the_same_workspace(job: Job, services: Services) -> None:
    done = ray_job_submit(services, "python", "-m", "pipelines", "run", str(job.config), *job.overrides)
    assert done.returncode == 0, done.stdout + done.stderr
    stages = ("corpus", "train", "vectors", "index", "evaluate", "register")
    assert [stage for stage in stages if f"{stage}: up to date" not in done.stdout] == []


def test_a_job_that_fails_gives_its_exit_code_and_reason(job: Job, services: Services) -> None:
    done = tsdae_submit(services, str(job.config), *job.overrides, "corpus.input=/nowhere/rows.jsonl")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "error: " in done.stdout
    assert "/nowhere/rows.jsonl" in done.stdout
    assert "ended with exit code 2" in done.stderr


def test_the_vectors_of_the_workspace_are_those_of_its_encoder(job: Job, services: Services) -> None:
    from indexing.vectors import read_vectors
    from pipelines.collection import read_rows
    from pipelines.storage import Location
    from tsdae_core.encoder import SentenceEncoder

    workspace = Location.parse(services.url("work"))
    with (workspace / "encoder").as_local_folder() as folder:
        encoder = SentenceEncoder.load(str(folder))
    place = workspace / "vectors" / "part-00000.parquet"
    row_ids, vectors = read_vectors(place.filesystem, place.path)
    texts = [str(row["text"]) for row in read_rows(workspace / "documents", row_ids[:5], ["text"])]
    np.testing.assert_allclose(encoder.encode(texts), vectors[:5], atol=1e-5)


def test_a_stopped_job_submitted_again_goes_on_in_the_same_run_to_the_same_encoder(
    job: Job, services: Services
) -> None:
    """A checkpoint after every step makes the training slow enough to be stopped in the middle."""
    from ray.job_submission import JobSubmissionClient

    from pipelines.tracking import Tracker

    same = (
        str(job.config), f"workspace='{services.url('again')}'", "train.checkpoint_every=1",
        "tracking.experiment=again", "evaluate.tasks=[]", "register.name=again-encoder",
    )  # fmt: skip
    first = tsdae_submit(services, *same, "--no-wait")
    (job_id,) = re.findall(r"raysubmit_\w+", first.stdout + first.stderr)[:1]
    client = JobSubmissionClient(services.jobs)
    _wait_until(lambda: _checkpoints(services, "again") != [])
    client.stop_job(job_id)
    _wait_until(lambda: client.get_job_status(job_id).is_terminal())
    assert client.get_job_status(job_id) == "STOPPED"
    reached = _checkpoints(services, "again")[-1]
    assert reached < STEPS, "the job was stopped too late"

    done = tsdae_submit(services, *same)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{STEPS}/{STEPS} steps" in done.stdout
    assert f" 0/{STEPS} steps" not in done.stdout
    assert "corpus: up to date" in done.stdout
    assert _encoder_digest(services, "again") == _encoder_digest(services, "work")
    mlflow = Tracker(services.mlflow, "again", None).client()
    (run,) = mlflow.search_runs([mlflow.get_experiment_by_name("again").experiment_id])
    assert run.info.status == "FINISHED"
    (undisturbed,) = mlflow.search_runs([mlflow.get_experiment_by_name("tsdae").experiment_id])
    names = [name for name in undisturbed.data.metrics if name.startswith(("train_", "validation_"))]
    assert len(names) >= 3
    for name in names:
        again, alone = (
            [(point.step, point.value) for point in mlflow.get_metric_history(one.info.run_id, name)]
            for one in (run, undisturbed)
        )
        assert again == alone, name  # every step once, with the value that it has undisturbed


def _wait_until(is_so: Callable[[], bool], *, timeout_s: float = 240) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _checkpoints(services: Services, workspace: str) -> list[int]:
    """The steps of checkpoints that Ray Train has noted; lying in the store is not enough."""
    folder = pafs.FileSelector(f"{BUCKET}/{workspace}/training", recursive=True, allow_not_found=True)
    steps: set[int] = set()
    for info in services.filesystem.get_file_info(folder):
        if info.base_name == "checkpoint_manager_snapshot.json":
            with services.filesystem.open_input_stream(info.path) as stream:
                steps |= {int(step) for step in re.findall(rb"checkpoint_step_(\d+)", stream.read())}
    return sorted(steps)


def _encoder_digest(services: Services, workspace: str) -> str:
    with services.filesystem.open_input_stream(f"{BUCKET}/{workspace}/encoder/manifest.json") as stream:
        return str(json.loads(stream.read())["digest"])
