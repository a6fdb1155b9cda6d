"""An evaluation of the systems that a configuration lists: fits what is to be fitted, then compares.

Owns where fitted systems lie (`fitted/NAME/` in the workspace) and when they are fitted again. How they are
fitted is `fitting`'s business, how they are compared `comparison`'s.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from pipelines.collection import finished_manifest
from pipelines.compared_system import ComparedSystem
from pipelines.comparison import Comparison, ComparisonOptions, compare
from pipelines.config import RunConfig
from pipelines.errors import InputError
from pipelines.evaluate import task_sources
from pipelines.fitting import fit_sent2vec, fit_transform
from pipelines.manifest import StageFolder
from pipelines.progress import Reporter
from pipelines.storage import Location
from pipelines.system_config import SystemConfig
from pipelines.tracking import Tracker

FITTED_FOLDER = "fitted"
REPORT_FOLDER = "report"
_MAX_TEXTS = 50_000
_MAX_SENT2VEC_TEXTS = 1_000_000
_SENT2VEC = {"dim": 700, "num_epochs": 9, "min_count": 5}


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
    settings = {"kind": system.kind, "pooling": system.pooling, "seed": config.seed}
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", system.name)
    stage = StageFolder(workspace / FITTED_FOLDER / name, stage="fitted", config=settings, inputs=inputs)
    if stage.finished() is not None:
        return stage.folder
    reporter.note(f"evaluate: fitting {system.kind} on {corpus.counts['rows_kept']:,} texts")
    stage.begin()
    with tempfile.TemporaryDirectory(prefix="tsdae-fitted-") as folder:
        target = Path(folder) / "fitted"
        num_texts = _fit(system, config, workspace, target)
        files = stage.folder.upload_folder(target)
    stage.finish(counts={"texts": num_texts}, files=files)
    return stage.folder


def _fit(system: SystemConfig, config: RunConfig, workspace: Location, target: Path) -> int:
    if system.kind == "sent2vec":
        num_texts, _ = fit_sent2vec(
            workspace, target, max_texts=_MAX_SENT2VEC_TEXTS, seed=config.seed, **_SENT2VEC
        )
        return num_texts
    num_texts, _ = fit_transform(
        "flow" if system.kind == "flow" else "whitening",
        workspace,
        target,
        encoder_folder=system.source,
        pooling=system.pooling,
        num_dims=None,
        max_texts=_MAX_TEXTS,
        seed=config.seed,
    )
    return num_texts
