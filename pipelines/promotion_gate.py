"""The promotion gate: whether one version is better than another, from per-query values of both.

Pure functions on values. Must not know where values come from or what an alias is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from indexing.evaluation.rows import PerQueryRow
from indexing.evaluation.significance import randomisation_test
from pipelines.errors import InputError, nearest
from pipelines.promote_config import PromoteConfig


@dataclass(frozen=True)
class Evaluation:
    """One version's values.

    name: of the version, for messages.
    tasks: what each task was measured on, as a fingerprint of queries, judgements and documents.
    values: by (task, measure), then by query; in [0, 1].
    """

    name: str
    tasks: Mapping[str, str]
    values: Mapping[tuple[str, str], Mapping[str, float]]

    @staticmethod
    def of(name: str, tasks: Mapping[str, str], rows: Iterable[PerQueryRow], *, system: str) -> Evaluation:
        """The values of one system among the rows of a report."""
        values: dict[tuple[str, str], dict[str, float]] = {}
        for row in rows:
            if row.system == system:
                values.setdefault((row.task, row.measure), {})[row.query_id] = row.value
        return Evaluation(name, tasks, values)


@dataclass(frozen=True)
class Check:
    """One condition of the gate: whether it holds, and the numbers that say so."""

    ok: bool
    message: str


@dataclass(frozen=True)
class Verdict:
    """All conditions; `gain` and `p_value` are those of the gate's measure."""

    gain: float
    p_value: float
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every condition holds."""
        return all(check.ok for check in self.checks)


def judge(candidate: Evaluation, champion: Evaluation, gate: PromoteConfig) -> Verdict:
    """Compares two versions on the same queries.

    The gain is the mean over tasks of the mean difference per query. The test exchanges the two values of a
    query at random; each query weighs as much as it does in that mean.

    Raises:
        InputError: the two were not measured on the same tasks, queries and documents, or nothing has the
            gate's measure.
    """
    _check_comparable(candidate, champion)
    tasks = [task for task, measure in candidate.values if measure == gate.measure]
    if not tasks:
        measures = sorted({measure for _, measure in candidate.values})
        raise InputError(
            f"promote.measure '{gate.measure}' was not measured; there are {', '.join(measures)}."
            f"{nearest(gate.measure, measures)}"
        )
    pairs = [_paired(candidate, champion, (task, gate.measure)) for task in tasks]
    new = np.concatenate([left / (len(left) * len(tasks)) for left, _ in pairs])
    old = np.concatenate([right / (len(right) * len(tasks)) for _, right in pairs])
    gain, p_value = float(new.sum() - old.sum()), randomisation_test(new, old)
    where = f"{gate.measure} over {len(tasks)} task{'s' if len(tasks) > 1 else ''}"
    checks = [
        Check(
            # A gain of exactly the bound holds, whatever the sum's rounding.
            gain >= gate.min_gain - 1e-12,
            f"{where}: {new.sum():.4f} against {old.sum():.4f} of {champion.name}, a gain of {gain:+.4f} "
            f"(promote.min_gain {gate.min_gain:g})",
        ),
        Check(
            p_value <= gate.max_p_value,
            f"{where}: p = {p_value:.4f} in the paired test over {len(new):,} queries "
            f"(promote.max_p_value {gate.max_p_value:g})",
        ),
        *_losses(candidate, champion, gate),
    ]
    return Verdict(gain, p_value, tuple(checks))


def _losses(candidate: Evaluation, champion: Evaluation, gate: PromoteConfig) -> list[Check]:
    """A check for every measure of every task that loses more than it may, else one for the largest loss."""
    differences = {}
    for key in candidate.values:
        left, right = _paired(candidate, champion, key)
        differences[key] = float(left.mean() - right.mean())
    (task, measure), least = min(differences.items(), key=lambda item: item[1])
    if least >= -gate.max_loss - 1e-12:
        return [
            Check(
                True,
                f"the least difference is {least:+.4f}, {measure} of {task} (promote.max_loss "
                f"{gate.max_loss:g})",
            )
        ]
    return [
        Check(False, f"{measure} of {task}: {difference:+.4f} (promote.max_loss {gate.max_loss:g})")
        for (task, measure), difference in sorted(differences.items(), key=lambda item: item[1])
        if difference < -gate.max_loss - 1e-12
    ]


def _check_comparable(candidate: Evaluation, champion: Evaluation) -> None:
    if not candidate.values:
        raise InputError(f"{candidate.name} has no per-query values; set evaluate.tasks and run `tsdae run`")
    remedy = "evaluate both on the same tasks and documents (`tsdae evaluate`, then `tsdae register`)"
    for one, other in ((candidate, champion), (champion, candidate)):
        missing = sorted(set(one.tasks) - set(other.tasks))
        if missing:
            raise InputError(
                f"cannot compare: {other.name} was not measured on task '{missing[0]}', {one.name} was; "
                f"{remedy}"
            )
    for task, fingerprint in candidate.tasks.items():
        if champion.tasks[task] != fingerprint:
            raise InputError(
                f"cannot compare: {candidate.name} and {champion.name} were measured on different queries, "
                f"judgements or documents of task '{task}'; {remedy}"
            )
    for key in sorted({*candidate.values, *champion.values}):
        if candidate.values.get(key, {}).keys() != champion.values.get(key, {}).keys():
            raise InputError(
                f"cannot compare: {candidate.name} and {champion.name} have {key[1]} of different queries of "
                f"task '{key[0]}'; {remedy}"
            )


def _paired(
    candidate: Evaluation, champion: Evaluation, key: tuple[str, str]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both versions' values of one measure of one task, float64[n] each, in the same order of queries."""
    left, right = candidate.values[key], champion.values[key]
    queries = sorted(left)
    return np.array([left[query] for query in queries]), np.array([right[query] for query in queries])
