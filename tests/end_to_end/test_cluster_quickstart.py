"""The quickstart, submitted to a cluster both ways and compared with the one that ran here without a cluster.

By hand, since each way takes as long as the quickstart: `make test-cluster` (CONTRIBUTING.md).
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from tests.end_to_end.cluster_services import (
    BUCKET,
    ROOT,
    Services,
    call,
    ray_job_submit,
    services_in_use,
    tsdae_submit,
)
from tests.end_to_end.helpers import STAGE_FOLDERS

pytestmark = [pytest.mark.by_hand, pytest.mark.timeout(7200)]

CONFIG = "configs/quickstart.yaml"
TASK = "docstrings"  # as in the configuration
# A job has one thread and a local run may have more, so the last bits of the start (factors of the corpus)
# may differ, and with them a place in a ranking.
CLOSE = 0.01


@dataclass(frozen=True)
class Local:
    """What `make quickstart` left, and the settings it was given beyond those."""

    corpus: Path
    workspace: Path
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """A submitted quickstart: its way, its workspace in the store, how it ended."""

    way: str
    workspace: str
    done: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def local() -> Local:
    folder = Path(os.environ.get("TSDAE_QUICKSTART") or ROOT / "work").absolute()
    overrides = shlex.split(os.environ.get("TSDAE_QUICKSTART_SET", ""))
    found = Local(folder / "docs-corpus", folder / "quickstart", tuple(overrides))
    assert (found.workspace / "registration" / "manifest.json").is_file(), (
        f"'{folder}' holds no finished quickstart (docs-corpus, quickstart): run `make test-cluster`, which "
        "makes one, or name the folder in TSDAE_QUICKSTART"
    )
    return found


@pytest.fixture(scope="module")
def services(local: Local, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with services_in_use(tmp_path_factory.mktemp("services")) as running:
        target = f"{BUCKET}/docs-corpus"
        pafs.copy_files(str(local.corpus), target, pafs.LocalFileSystem(), running.filesystem)
        yield running


@pytest.fixture(scope="module", params=["tsdae submit", "ray job submit"])
def job(request: pytest.FixtureRequest, services: Services, local: Local) -> Job:
    way = str(request.param)
    workspace = way.replace(" ", "-")
    places = {
        "workspace": workspace,
        "corpus.input": "docs-corpus/sentences",
        "documents.input": "docs-corpus/documents",
        "evaluate.tasks.0.folder": "docs-corpus/task",
    }
    settings = [f"{key}='{services.url(place)}'" for key, place in places.items()]
    # A training is found again by its fingerprint, and both ways are the same training.
    settings += [f"tracking.experiment={workspace}", *local.overrides]
    if way == "tsdae submit":
        done = tsdae_submit(services, CONFIG, *settings)
    else:
        done = ray_job_submit(services, "python", "-m", "pipelines", "run", CONFIG, *settings)
    return Job(way, workspace, done)


def test_the_job_ends_well_and_leaves_every_stage(job: Job, services: Services) -> None:
    assert job.done.returncode == 0, job.done.stdout + job.done.stderr
    assert "models:/quickstart-encoder@candidate" in job.done.stdout
    for stage in STAGE_FOLDERS:
        assert _manifest(services, job, stage)["digest"], stage


def test_it_has_prepared_what_the_local_run_has(job: Job, services: Services, local: Local) -> None:
    for stage in ("corpus", "documents"):
        alone = json.loads((local.workspace / stage / "manifest.json").read_bytes())
        assert _manifest(services, job, stage)["digest"] == alone["digest"], stage


def test_its_scores_are_those_of_the_local_run(
    job: Job, services: Services, local: Local, request: pytest.FixtureRequest
) -> None:
    alone = json.loads((local.workspace / "report" / "manifest.json").read_bytes())["facts"]["scores"][TASK]
    found = _manifest(services, job, "report")["facts"]["scores"][TASK]
    assert found.keys() == alone.keys()
    for system, scores in alone.items():
        here, there = scores["ndcg_at_10"], found[system]["ndcg_at_10"]
        _tell(request, f"{job.way}: {system}, nDCG@10 {there:.4f}, local {here:.4f}")
        assert there == pytest.approx(here, abs=1e-9 if system == "BM25" else CLOSE), system


def test_its_index_finds_what_the_local_one_finds(
    job: Job, services: Services, local: Local, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    there = _share_found(services.url(job.workspace), local, tmp_path / "there.jsonl")
    here = _share_found(str(local.workspace), local, tmp_path / "here.jsonl")
    _tell(request, f"{job.way}: found among ten by `tsdae search` {there:.4f}, local {here:.4f}")
    assert there == pytest.approx(here, abs=CLOSE)


def _manifest(services: Services, job: Job, stage: str) -> dict[str, Any]:
    path = f"{BUCKET}/{job.workspace}/{stage}/manifest.json"
    with services.filesystem.open_input_stream(path) as stream:
        manifest: dict[str, Any] = json.loads(stream.read())
    return manifest


def _share_found(workspace: str, local: Local, output: Path) -> float:
    """The share of the task's queries whose document is among the ten that `tsdae search` gives."""
    task = local.corpus / "task"
    lines = (task / "qrels.tsv").read_text(encoding="utf-8").splitlines()[1:]
    judged = {query_id: doc_id for query_id, doc_id, _ in (line.split("\t") for line in lines)}
    done = call(
        "-m", "pipelines", "search", "-w", workspace, "-k", "10",
        "--queries", str(task / "queries.jsonl"), "--output", str(output),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert len(answers) == len(judged)
    found = [judged[answer["query_id"]] in {hit["doc_id"] for hit in answer["hits"]} for answer in answers]
    return sum(found) / len(found)


def _tell(request: pytest.FixtureRequest, line: str) -> None:
    """A line for who runs this by hand."""
    plugins = request.config.pluginmanager
    with plugins.get_plugin("capturemanager").global_and_fixture_disabled():
        plugins.get_plugin("terminalreporter").write_line(f"\n{line}")
