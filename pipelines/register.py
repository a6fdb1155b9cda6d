"""The register stage: the trained encoder becomes a version in the MLflow model registry.

A version carries its signature, an input example, pinned requirements, fingerprints and scores as tags, and
the per-query values from which `promote` decides.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from pipelines.collection import finished_manifest
from pipelines.config import RunConfig
from pipelines.config_values import config_to_dict
from pipelines.evaluate import REPORT_FOLDER
from pipelines.manifest import Manifest, StageFolder, read_manifest
from pipelines.progress import Reporter
from pipelines.registry import Registry
from pipelines.report_content import START, TRAINED
from pipelines.report_files import ROWS_FILE
from pipelines.storage import Location, is_url
from pipelines.tracking import Tracker, legal_name

REGISTRATION_FOLDER = "registration"
# Where the run of a version keeps its per-query values; the tag says in which folder of the artifacts.
EVALUATION_TAG = "tsdae.evaluation"
DESCRIPTION_FILE = "evaluation.json"
_DIGEST_CHARS = 16


def register(config: RunConfig, workspace: Location, *, reporter: Reporter) -> Manifest:
    """Registers the encoder unless that is done; a version of the same encoder is never made twice.

    Raises:
        InputError: the encoder is not finished, or the tracking server does not answer.
    """
    encoder = finished_manifest(workspace / "encoder", command="train")
    corpus = finished_manifest(workspace / "corpus", command="prepare")
    report = read_manifest(workspace / REPORT_FOLDER)
    tracker = Tracker.of(config, workspace)
    name, alias = config.register.name, config.register.alias
    inputs = {"encoder": encoder.digest} | ({"report": report.digest} if report else {})
    stage = StageFolder(
        workspace / REGISTRATION_FOLDER,
        stage="registration",
        config=config_to_dict(config.register),
        inputs=inputs,
    )
    if (manifest := stage.finished()) is not None:
        reporter.note(f"register: up to date, {name} version {manifest.facts['version']}")
        return manifest
    stage.begin()
    run_id = tracker.open_run(f"train-{encoder.fingerprint[:8]}", fingerprint=encoder.fingerprint, params={})
    tags = {
        "tsdae.encoder": str(encoder.facts["encoder_fingerprint"]),
        "tsdae.workspace": config.workspace if is_url(config.workspace) else str(workspace),
        "tsdae.corpus": corpus.digest,
        "tsdae.config": encoder.fingerprint,
    }
    if report is not None:
        tags |= _score_tags(report)
        if (workspace / REPORT_FOLDER / ROWS_FILE).exists():  # tasks of pairs alone have no values per query
            tags[EVALUATION_TAG] = _log_evaluation(tracker, run_id, workspace / REPORT_FOLDER, report)
    registry = Registry(tracker, name)
    with (workspace / "encoder").as_local_folder() as folder:
        version = registry.add_version(
            folder, run_id=run_id, fingerprint=encoder.digest, params=dict(encoder.counts), tags=tags
        )
    if report is not None:
        _log_scores(registry, version, report)
    registry.point(alias, version)
    tracker.close_run(run_id, status="FINISHED")
    reporter.note(f"register: {name} version {version}, alias {alias} (models:/{name}@{alias})")
    return stage.finish(counts={"versions": 1}, facts={"name": name, "version": version, "alias": alias})


def _score_tags(report: Manifest) -> dict[str, str]:
    return {
        f"{legal_name(task)}.{measure}": f"{value:.4f}"
        for task, systems in report.facts["scores"].items()
        for measure, value in systems[TRAINED].items()
    }


def _log_scores(registry: Registry, version: str, report: Manifest) -> None:
    for task, systems in report.facts["scores"].items():
        fingerprint = str(report.facts["tasks"][task])
        scores = {f"{legal_name(task)}.{measure}": value for measure, value in systems[TRAINED].items()}
        registry.log_scores(version, scores, dataset=task, digest=fingerprint)


def _log_evaluation(tracker: Tracker, run_id: str, folder: Location, report: Manifest) -> str:
    """Puts the per-query values among the run's artifacts, in a folder of their own; returns its name."""
    place = f"evaluation/{report.digest[:_DIGEST_CHARS]}"
    description: dict[str, Any] = {
        "tasks": report.facts["tasks"],
        "system": TRAINED,
        "start_system": START,
    }
    with tempfile.TemporaryDirectory(prefix="tsdae-evaluation-") as local:
        rows, described = Path(local) / ROWS_FILE, Path(local) / DESCRIPTION_FILE
        rows.write_bytes((folder / ROWS_FILE).read_bytes())
        described.write_text(json.dumps(description, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        for path in (rows, described):
            tracker.log_file(run_id, path, folder=place)
    return place
