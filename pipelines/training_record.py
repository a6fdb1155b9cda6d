"""What a training's driver leaves with MLflow: parameters and inputs first, artifacts at its end."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from indexing.evaluation.report import Curve
from indexing.evaluation.report_plots import curve_plot
from indexing.evaluation.report_style import STYLE
from pipelines.config import RunConfig
from pipelines.config_io import config_to_yaml
from pipelines.config_values import config_to_dict
from pipelines.dataset_profile import columns_of, rows_and_shards
from pipelines.manifest import MANIFEST_NAME, Manifest
from pipelines.storage import Location, without_credentials
from pipelines.task_source import TaskSource
from pipelines.tracking import Tracker
from pipelines.train_job import LOG_NAME


def open_training_run(
    config: RunConfig,
    workspace: Location,
    tracker: Tracker,
    *,
    fingerprint: str,
    rows: Manifest,
    folder: Location,
    start: Manifest,
    validation: TaskSource | None,
) -> str:
    """The training's run with its parameters and what it reads; found again after a restart.

    rows: the manifest of what is trained on, a corpus or labels; it lies in `folder`.
    """
    params = {key: without_credentials(str(value)) for key, value in flatten(config_to_dict(config)).items()}
    run_id = tracker.open_run(f"train-{fingerprint[:8]}", fingerprint=fingerprint, params=params)
    labels = config.train.labels
    place = str(workspace / "corpus") if labels is None else without_credentials(labels.input or str(folder))
    tracker.log_input(
        run_id,
        name=rows.stage,
        place=place,
        digest=rows.digest,
        context="training",
        columns=columns_of(folder, rows),
        counts=rows_and_shards(rows),
    )
    if validation is not None:
        digest = validation.fingerprint()
        name, place = f"validation {validation.title}", str(validation.place)
        tracker.log_input(run_id, name=name, place=place, digest=digest, context="evaluation")
    tags = {
        f"tsdae.{rows.stage}": rows.digest,
        "tsdae.start": start.digest,
        "tsdae.start_name": without_credentials(config.model.start),
    }
    tracker.set_tags(run_id, tags)
    return run_id


def log_training_artifacts(tracker: Tracker, run_id: str, encoder: Location, config: RunConfig) -> None:
    """The resolved configuration, the encoder's manifest, the training log and a plot of its losses."""
    log = (encoder / LOG_NAME).read_json()
    texts = {
        "config.yaml": without_credentials(config_to_yaml(config)).encode(),
        MANIFEST_NAME: (encoder / MANIFEST_NAME).read_bytes(),
        LOG_NAME: (encoder / LOG_NAME).read_bytes(),
        "loss.html": _loss_page(log, config.train.loss_name).encode(),
    }
    with tempfile.TemporaryDirectory(prefix="tsdae-artifacts-") as folder:
        for name, data in texts.items():
            path = Path(folder) / name
            path.write_bytes(data)
            tracker.log_file(run_id, path)


def loss_curves(log: dict[str, Any], loss_name: str) -> list[Curve]:
    """Training and validation loss by step, from a training log."""
    label = f"loss ({loss_name.replace('_', ' ')})"
    curves = [Curve(name="training", y_label=label, points=tuple(map(tuple, log["losses"])))]
    if log["validation_losses"]:
        points = tuple(map(tuple, log["validation_losses"]))
        curves.append(Curve(name="validation", y_label=label, points=points))
    return curves


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts as one dict with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _loss_page(log: dict[str, Any], loss_name: str) -> str:
    plot = curve_plot(loss_curves(log, loss_name))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f"<title>Loss</title><style>{STYLE}</style><body><main>{plot}</main></body></html>\n"
    )
