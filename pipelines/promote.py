"""Promotion: the champion's alias moves to a registered version when the gate holds, and back on request."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow.fs as pafs

from indexing.evaluation.rows import read_rows
from pipelines.config import RunConfig
from pipelines.errors import InputError
from pipelines.progress import Reporter
from pipelines.promotion_gate import Evaluation, Verdict, judge
from pipelines.register import DESCRIPTION_FILE, EVALUATION_TAG
from pipelines.registry import Registry, Version
from pipelines.report_files import ROWS_FILE
from pipelines.storage import Location
from pipelines.tracking import Tracker

_RESULT_TAG = "tsdae.promotion"
_MAX_TAG_CHARS = 4_000
# On the registered model while a rollback is under way: the champion that it replaces.
_ROLLBACK_TAG = "tsdae.rollback_from"


@dataclass(frozen=True)
class Promotion:
    """What became of it: the candidate's number, the champion's afterwards, and the gate's verdict.

    `verdict` is None where the candidate was the champion already.
    """

    candidate: str
    champion: str | None
    verdict: Verdict | None

    @property
    def done(self) -> bool:
        """Whether the candidate is the champion now."""
        return self.champion == self.candidate


def promote(
    config: RunConfig, workspace: Location, *, reporter: Reporter, version: str | None = None
) -> Promotion:
    """Moves the champion's alias to a version if it passes the gate; the former champion becomes `previous`.

    version: a number; None takes the one that `register.alias` points at. Where there is no champion yet, the
    version is compared with the encoder that its training began with.

    Raises:
        InputError: no such version, or the two cannot be compared.
    """
    registry = Registry(Tracker.of(config, workspace), config.register.name)
    _finish_rollback(registry, config, reporter)
    candidate = _candidate(registry, config, version)
    champion = registry.at(config.promote.champion)
    name, alias = config.register.name, config.promote.champion
    if champion is not None and champion.number == candidate.number:
        reporter.note(f"promote: {name} version {champion.number} is {alias} already")
        return Promotion(candidate.number, champion.number, None)
    verdict = _judge(registry, candidate, champion, config)
    for check in verdict.checks:
        reporter.note(f"promote: {'holds ' if check.ok else 'FAILS '} {check.message}")
    if not verdict.passed:
        failed = "; ".join(check.message for check in verdict.checks if not check.ok)
        registry.set_tags(candidate.number, {_RESULT_TAG: f"refused: {failed}"[:_MAX_TAG_CHARS]})
        kept = f"version {champion.number} stays {alias}" if champion else f"there is no {alias} yet"
        reporter.note(f"promote: {name} version {candidate.number} is refused, {kept}")
        return Promotion(candidate.number, champion.number if champion else None, verdict)
    # In this order a kill in between loses nothing: the same command does both again.
    if champion is not None:
        registry.point(config.promote.previous, champion.number)
    registry.point(alias, candidate.number)
    over = f"version {champion.number}" if champion else "the start encoder"
    result = (
        f"promoted over {over}: gain {verdict.gain:+.4f} {config.promote.measure}, p {verdict.p_value:.4f}"
    )
    registry.set_tags(candidate.number, {_RESULT_TAG: result})
    reporter.note(f"promote: {name} version {candidate.number} is {alias} now (models:/{name}@{alias})")
    return Promotion(candidate.number, candidate.number, verdict)


def roll_back(config: RunConfig, workspace: Location, *, reporter: Reporter) -> Promotion:
    """Makes the previous champion the champion again; the two aliases change places.

    A rollback that was killed on the way is finished instead.

    Raises:
        InputError: there is no previous champion.
    """
    registry = Registry(Tracker.of(config, workspace), config.register.name)
    name, gate = config.register.name, config.promote
    if (finished := _finish_rollback(registry, config, reporter)) is not None:
        return Promotion(finished, finished, None)
    previous, champion = registry.at(gate.previous), registry.at(gate.champion)
    if previous is None:
        raise InputError(
            f"'{name}' has no version with the alias '{gate.previous}' to go back to: a champion was "
            "promoted at most once"
        )
    if champion is None or champion.number == previous.number:
        registry.point(gate.champion, previous.number)
    else:
        # Two aliases change places in two calls, so what they were is written down first.
        registry.set_model_tag(_rollback_tag(config), champion.number)
        _swap(registry, config, champion=champion.number, previous=previous.number)
    reporter.note(f"promote: {name} version {previous.number} is {gate.champion} again")
    return Promotion(previous.number, previous.number, None)


def _finish_rollback(registry: Registry, config: RunConfig, reporter: Reporter) -> str | None:
    """Ends a rollback that was killed on the way; returns the champion's number, None if there was none.

    Whichever of its calls were done, the other version is at `previous`, or if that moved already at
    `champion`.
    """
    replaced = registry.model_tags().get(_rollback_tag(config))
    if replaced is None:
        return None
    found = [registry.at(alias) for alias in (config.promote.previous, config.promote.champion)]
    restored = next((each.number for each in found if each is not None and each.number != replaced), None)
    if restored is None:  # somebody has moved the aliases since
        registry.delete_model_tag(_rollback_tag(config))
        return None
    _swap(registry, config, champion=replaced, previous=restored)
    reporter.note(
        f"promote: finished a rollback that was interrupted: {registry.name} version {restored} is "
        f"{config.promote.champion} again"
    )
    return restored


def _swap(registry: Registry, config: RunConfig, *, champion: str, previous: str) -> None:
    """Lets the aliases of champion and previous change places, each call as often as needed."""
    registry.point(config.promote.champion, previous)
    registry.point(config.promote.previous, champion)
    registry.set_tags(champion, {_RESULT_TAG: f"rolled back to version {previous}"})
    registry.delete_model_tag(_rollback_tag(config))


def _rollback_tag(config: RunConfig) -> str:
    return f"{_ROLLBACK_TAG}.{config.promote.champion}"


def _candidate(registry: Registry, config: RunConfig, version: str | None) -> Version:
    if version is not None:
        return registry.version(version)
    found = registry.at(config.register.alias)
    if found is None:
        raise InputError(
            f"'{registry.name}' has no version with the alias '{config.register.alias}'; "
            "run `tsdae register` first"
        )
    return found


def _judge(registry: Registry, candidate: Version, champion: Version | None, config: RunConfig) -> Verdict:
    mine = _evaluation(registry, candidate)
    if champion is None:
        return judge(mine, _evaluation(registry, candidate, of_start=True), config.promote)
    return judge(mine, _evaluation(registry, champion), config.promote)


def _evaluation(registry: Registry, version: Version, *, of_start: bool = False) -> Evaluation:
    """The per-query values of a version, or of the encoder that its training began with."""
    name = f"version {version.number}"
    place = version.tags.get(EVALUATION_TAG)
    if place is None:
        raise InputError(
            f"{name} of '{registry.name}' has no per-query values; set evaluate.tasks, then `tsdae evaluate` "
            "and `tsdae register`"
        )
    with registry.artifact(version, place) as folder:
        description = json.loads((Path(folder) / DESCRIPTION_FILE).read_text(encoding="utf-8"))
        rows = read_rows(pafs.LocalFileSystem(), str(Path(folder) / ROWS_FILE))
    system = description["start_system" if of_start else "system"]
    return Evaluation.of(
        f"the start of {name}" if of_start else name, description["tasks"], rows, system=system
    )
