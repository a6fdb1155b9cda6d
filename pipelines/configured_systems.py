"""An evaluation of the systems that a configuration lists: fits what is to be fitted, then compares.

Owns where fitted systems lie (`fitted/NAME/` in the workspace) and when they are fitted again. How they are
fitted is `fitting`'s business, how they are compared `comparison`'s.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from pipelines.collection import finished_manifest
from pipelines.compared_system import ComparedSystem
from pipelines.comparison import Comparison, ComparisonOptions, compare
from pipelines.config import RunConfig
from pipelines.config_values import config_to_dict
from pipelines.errors import InputError
from pipelines.evaluate import task_sources
from pipelines.fitting import Fitted, fit_sent2vec, fit_transform
from pipelines.manifest import StageFolder
from pipelines.progress import Reporter
from pipelines.storage import Location
from pipelines.system_config import SystemConfig
from pipelines.tracking import Tracker

FITTED_FOLDER = "fitted"
REPORT_FOLDER = "report"


def evaluate_systems(config: RunConfig, workspace: Location, *, reporter: Reporter) -> Comparison:
    """Writes `report/` with every system on every task; what was scored before is not scored again.

    Raises:
        InputError: as `compare`; or the corpus is not prepared and a system is fitted on it.
    """
    systems = [_system(system, config, workspace, reporter) for system in config.evaluate.systems]
    options = ComparisonOptions(
        num_examples=config.evaluate.num_examples, threads=config.embed.threads_per_actor, seed=config.seed
    )
    tracker = Tracker.of(config, workspace)
    sources = task_sources(config)
    return compare(sources, systems, workspace / REPORT_FOLDER, options, reporter=reporter, tracker=tracker)


def _system(
    system: SystemConfig, config: RunConfig, workspace: Location, reporter: Reporter
) -> ComparedSystem:
    if system.kind != "whitening" and system.kind != "flow" and system.kind != "sent2vec":
        return ComparedSystem(
            name=system.name, kind=system.kind, source=system.source, pooling=system.pooling
        )
    place = _fitted(system, config, workspace, reporter)
    return ComparedSystem(name=system.name, kind="encoder", source=str(place))


def _fitted(system: SystemConfig, config: RunConfig, workspace: Location, reporter: Reporter) -> Location:
    """The folder of a fitted system, fitted now unless that is done."""
    if not workspace.is_local:
        raise InputError(
            f"system '{system.name}' is fitted into the workspace, but '{workspace}' is not a local path"
        )
    corpus = finished_manifest(workspace / "corpus", command="prepare")
    inputs = {"corpus": corpus.digest}
    if system.source:
        encoder = ComparedSystem(name=system.name, kind="encoder", source=system.source)
        inputs["encoder"] = encoder.fingerprint()
    settings = _settings(system, seed=config.seed)
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", system.name)
    stage = StageFolder(workspace / FITTED_FOLDER / name, stage="fitted", config=settings, inputs=inputs)
    if stage.finished() is not None:
        return stage.folder
    num_texts = min(corpus.counts["rows_kept"], system.most_texts)
    reporter.note(f"evaluate: fitting {system.kind} on {num_texts:,} texts")
    stage.begin()
    with tempfile.TemporaryDirectory(prefix="tsdae-fitted-") as folder:
        target = Path(folder) / "fitted"
        fitted = _fit(system, config, workspace, target)
        files = stage.folder.upload_folder(target)
    for note in fitted.notes:
        reporter.note(f"evaluate: {system.name}: {note}")
    stage.finish(counts={"texts": fitted.num_texts}, files=files, facts={"notes": list(fitted.notes)})
    return stage.folder


def _settings(system: SystemConfig, *, seed: int) -> dict[str, Any]:
    """What a fit computes depends on, beside its inputs."""
    section = config_to_dict(getattr(system, system.kind))
    settings = {"kind": system.kind, system.kind: section, "pooling": system.pooling, "seed": seed}
    return settings | {"max_texts": system.most_texts}


def _fit(system: SystemConfig, config: RunConfig, workspace: Location, target: Path) -> Fitted:
    if system.kind == "sent2vec":
        return fit_sent2vec(system.sent2vec, workspace, target, max_texts=system.most_texts, seed=config.seed)
    return fit_transform(
        system.flow if system.kind == "flow" else system.whitening,
        workspace,
        target,
        encoder_folder=system.source,
        pooling=system.pooling,
        max_texts=system.most_texts,
        seed=config.seed,
    )
