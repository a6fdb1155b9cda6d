"""The stages in their order, on one cluster, one run at a time per workspace.

A stage is imported when it runs: some bring libraries along that take seconds to import.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence

from pipelines.cluster import connected
from pipelines.collection import finished_manifest
from pipelines.config import RunConfig
from pipelines.embed import embed
from pipelines.errors import InputError
from pipelines.grow import recover
from pipelines.index_stage import build_index
from pipelines.lookup import build_lookup
from pipelines.prepare import prepare
from pipelines.progress import Reporter
from pipelines.storage import Location
from pipelines.workspace_lock import only_one

_TRACKED = frozenset({"train", "evaluate", "register"})


def run_all(config: RunConfig, *, reporter: Reporter) -> None:
    """Runs every stage that is not finished yet; of an evaluation of untrained systems what it needs."""
    stages = list(_STAGES)
    if config.evaluate.systems:
        stages = ["prepare", "evaluate"] if config.evaluate.needs_corpus else ["evaluate"]
    run_stages(stages, config, reporter=reporter)


def run_stages(names: Sequence[str], config: RunConfig, *, reporter: Reporter) -> None:
    """Runs the named stages in order; each needs the earlier ones finished.

    Raises:
        InputError: bad input or settings, an earlier stage missing, or another run at work in the workspace.
    """
    workspace = Location.parse(config.workspace)
    _check_services(config, workspace, names)
    with only_one(workspace, note=reporter.note) as check_still_ours, connected(config):
        recover(workspace)
        for number, name in enumerate(names, 1):
            check_still_ours()
            if len(names) > 1:
                reporter.note(f"[{number}/{len(names)}] {name}")
            started_s = time.monotonic()
            _STAGES[name](config, workspace, reporter)
            reporter.note(f"  {name} took {time.monotonic() - started_s:.0f} s")


def run_alone(
    work: Callable[[RunConfig, Location, Reporter], object], config: RunConfig, *, reporter: Reporter
) -> None:
    """Does something to a finished run on its cluster, while no other run is at work in the workspace."""
    workspace = Location.parse(config.workspace)
    with only_one(workspace, note=reporter.note), connected(config):
        recover(workspace)
        work(config, workspace, reporter)


def _prepare(config: RunConfig, workspace: Location, reporter: Reporter) -> None:
    prepare("corpus", config.corpus, workspace, reporter=reporter)
    if config.documents is not None:
        prepare("documents", config.documents, workspace, reporter=reporter)


def _train(config: RunConfig, workspace: Location, reporter: Reporter) -> None:
    from pipelines.phases import train_phases

    corpus = finished_manifest(workspace / "corpus", command="prepare")
    train_phases(config, workspace, corpus, reporter=reporter)


def _embed(config: RunConfig, workspace: Location, reporter: Reporter) -> None:
    embed(config, workspace, reporter=reporter)


def _index(config: RunConfig, workspace: Location, reporter: Reporter) -> None:
    build_index(config, workspace, reporter=reporter)


def _lookup(config: RunConfig, workspace: Location, reporter: Reporter) -> None:
    build_lookup(config, workspace, reporter=reporter)


def _evaluate(config: RunConfig, workspace: Location, reporter: Reporter) -> None:
    if config.evaluate.systems:
        from pipelines.configured_systems import evaluate_systems

        evaluate_systems(config, workspace, reporter=reporter)
        return
    from pipelines.evaluate import evaluate

    evaluate(config, workspace, reporter=reporter)


def _register(config: RunConfig, workspace: Location, reporter: Reporter) -> None:
    from pipelines.register import register

    register(config, workspace, reporter=reporter)
    if config.promote.automatic:
        from pipelines.promote import promote

        promote(config, workspace, reporter=reporter)


_STAGES: dict[str, Callable[[RunConfig, Location, Reporter], None]] = {
    "prepare": _prepare,
    "train": _train,
    "embed": _embed,
    "index": _index,
    "lookup": _lookup,
    "evaluate": _evaluate,
    "register": _register,
}


def _check_services(config: RunConfig, workspace: Location, names: Sequence[str]) -> None:
    """Finds out before the first stage what would else fail after hours.

    Raises:
        InputError: a remote workspace that cannot be written, or a tracking server that does not answer.
    """
    if not workspace.is_local:
        probe = workspace / f".probe-{uuid.uuid4().hex[:8]}"
        try:
            probe.write_bytes(b"probe")
            probe.delete()
        except OSError as error:
            reason = " ".join(str(error).split())
            raise InputError(f"cannot write to the workspace '{workspace}': {reason}") from error
    if _TRACKED.intersection(names):
        from pipelines.tracking import Tracker

        Tracker.of(config, workspace).check()
