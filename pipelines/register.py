"""The register stage: the trained encoder becomes a version in the MLflow model registry."""

from __future__ import annotations

from pipelines.collection import finished_manifest
from pipelines.config import RunConfig
from pipelines.config_values import config_to_dict
from pipelines.evaluate import REPORT_FOLDER
from pipelines.manifest import Manifest, StageFolder, read_manifest
from pipelines.progress import Reporter
from pipelines.report_content import TRAINED
from pipelines.storage import Location
from pipelines.tracking import Tracker

REGISTRATION_FOLDER = "registration"


def register(config: RunConfig, workspace: Location, *, reporter: Reporter) -> Manifest:
    """Registers the encoder unless that is done; a version of the same encoder is never made twice.

    Raises:
        InputError: the encoder is not finished, or the tracking server does not answer.
    """
    encoder = finished_manifest(workspace / "encoder", command="train")
    corpus = finished_manifest(workspace / "corpus", command="prepare")
    report = read_manifest(workspace / REPORT_FOLDER)
    tracker = Tracker.of(config, workspace)
    settings = config_to_dict(config.register)
    inputs = {"encoder": encoder.digest} | ({"report": report.digest} if report else {})
    stage = StageFolder(workspace / REGISTRATION_FOLDER, stage="registration", config=settings, inputs=inputs)
    name, alias = config.register.name, config.register.alias
    if (manifest := stage.finished()) is not None:
        reporter.note(f"register: up to date, {name} version {manifest.facts['version']}")
        return manifest
    stage.begin()
    run_id = tracker.open_run(f"train-{encoder.fingerprint[:8]}", fingerprint=encoder.fingerprint, params={})
    tags = {
        "tsdae.encoder": str(encoder.facts["encoder_fingerprint"]),
        "tsdae.workspace": str(workspace),
        "tsdae.corpus": corpus.digest,
        "tsdae.config": encoder.fingerprint,
    }
    for task, systems in (report.facts["scores"] if report else {}).items():
        for measure, value in systems[TRAINED].items():
            tags[f"{task}.{measure}"] = f"{value:.4f}"
    with (workspace / "encoder").as_local_folder() as folder:
        version = tracker.register_encoder(
            name,
            folder,
            run_id=run_id,
            fingerprint=encoder.digest,
            alias=alias,
            tags=tags,
        )
    tracker.close_run(run_id, status="FINISHED")
    reporter.note(f"register: {name} version {version}, alias {alias} (models:/{name}@{alias})")
    return stage.finish(counts={"versions": 1}, facts={"name": name, "version": version, "alias": alias})
