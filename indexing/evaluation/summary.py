"""From per-query rows to the numbers of a table: means, intervals, comparisons with a baseline.

Owns aggregation and the choice of statistics. Must not know how a table looks. For every task and measure:
the mean over queries with a 95 % bootstrap interval; against the baseline the mean difference, wins, ties and
losses, and the p-value of a paired randomisation test, Holm-corrected over all comparisons of the task.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from indexing.arrays import Float64Array, shorten
from indexing.evaluation.rows import PerQueryRow
from indexing.evaluation.significance import (
    Interval,
    bootstrap_interval,
    holm_correction,
    randomisation_test,
)

SIGNIFICANCE_LEVEL = 0.05


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One system against the baseline on one measure, paired by query.

    Attributes:
        difference: mean of system - baseline.
        p_value: two-sided, uncorrected.
        adjusted_p_value: Holm-corrected over the task's comparisons.
        num_wins: queries on which the system is better; `num_ties`, `num_losses` likewise.
    """

    difference: float
    p_value: float
    adjusted_p_value: float
    num_wins: int
    num_ties: int
    num_losses: int

    @property
    def is_significant(self) -> bool:
        """Whether the corrected p-value is below 0.05."""
        return self.adjusted_p_value < SIGNIFICANCE_LEVEL


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One system on one measure of one task; `comparison` is None for the baseline itself."""

    system: str
    measure: str
    interval: Interval
    is_best: bool
    comparison: Comparison | None


@dataclass(frozen=True, kw_only=True)
class TaskSummary:
    """One task's table: cells by (system, measure), in the order the rows came in."""

    task: str
    num_queries: int
    systems: tuple[str, ...]
    measures: tuple[str, ...]
    cells: dict[tuple[str, str], Cell]


@dataclass(frozen=True)
class QueryChange:
    """How much better (positive) or worse a system is than the baseline on one query."""

    task: str
    query_id: str
    baseline_value: float
    value: float

    @property
    def change(self) -> float:
        """Value minus baseline value."""
        return self.value - self.baseline_value


def summarise(rows: Sequence[PerQueryRow], *, baseline: str, seed: int = 0) -> list[TaskSummary]:
    """Aggregate rows, one summary for each task in order of first appearance.

    Args:
        rows: every system must have been scored on the same queries of a task with the same measures.
        baseline: the system that the others are compared with.
        seed: of bootstrap and randomisation.

    Raises:
        ValueError: no rows, a row twice, systems scored on different queries (named), or a task without the
            baseline.
    """
    if not rows:
        raise ValueError("summarise: no rows")
    tasks = list(dict.fromkeys(row.task for row in rows))
    return [_task_summary(task, [row for row in rows if row.task == task], baseline, seed) for task in tasks]


def mean_over_tasks(summaries: Sequence[TaskSummary]) -> dict[tuple[str, str], float]:
    """Plain mean of task means by (system, measure), for systems and measures that every task has."""
    shared = set.intersection(*(set(summary.cells) for summary in summaries))
    return {
        key: float(np.mean([summary.cells[key].interval.mean for summary in summaries]))
        for key in summaries[0].cells
        if key in shared
    }


def largest_changes(
    rows: Sequence[PerQueryRow], *, measure: str, baseline: str, system: str, num_each: int = 3
) -> tuple[list[QueryChange], list[QueryChange]]:
    """The queries that gained and that lost most from baseline to system, largest change first.

    Queries without a change are in neither list; equal changes keep the order of the rows.

    Raises:
        ValueError: one of the two systems was not scored with this measure.
    """
    before = {(r.task, r.query_id): r.value for r in rows if (r.system, r.measure) == (baseline, measure)}
    after = {(r.task, r.query_id): r.value for r in rows if (r.system, r.measure) == (system, measure)}
    if not before or not after:
        raise ValueError(f"largest_changes: no {measure} rows for {baseline!r} or {system!r}")
    changes = [QueryChange(*key, before[key], value) for key, value in after.items() if key in before]
    gains = sorted((c for c in changes if c.change > 0), key=lambda c: -c.change)
    losses = sorted((c for c in changes if c.change < 0), key=lambda c: c.change)
    return gains[:num_each], losses[:num_each]


def _task_summary(task: str, rows: list[PerQueryRow], baseline: str, seed: int) -> TaskSummary:
    systems = tuple(dict.fromkeys(row.system for row in rows))
    measures = tuple(dict.fromkeys(row.measure for row in rows))
    columns = _columns(task, rows)
    if baseline not in systems:
        raise ValueError(f"task {task}: the baseline {baseline!r} has no rows; systems: {', '.join(systems)}")
    query_ids = list(columns[baseline, measures[0]])
    values: dict[tuple[str, str], Float64Array] = {}
    for system in systems:
        for measure in measures:
            column = columns.get((system, measure), {})
            if column.keys() != set(query_ids):
                odd = sorted(column.keys() ^ set(query_ids))
                raise ValueError(
                    f"task {task}: {system} has no {measure} for the same queries as "
                    f"{baseline}: {shorten(odd)}; score every system on the same queries"
                )
            values[system, measure] = np.array([column[query_id] for query_id in query_ids])
    comparisons = _comparisons(values, baseline, seed)
    cells: dict[tuple[str, str], Cell] = {}
    for (system, measure), column_values in values.items():
        best = max(float(values[other, measure].mean()) for other in systems)
        interval = bootstrap_interval(column_values, seed=seed)
        cells[system, measure] = Cell(
            system=system,
            measure=measure,
            interval=interval,
            is_best=interval.mean >= best,
            comparison=comparisons.get((system, measure)),
        )
    return TaskSummary(task=task, num_queries=len(query_ids), systems=systems, measures=measures, cells=cells)


def _columns(task: str, rows: list[PerQueryRow]) -> dict[tuple[str, str], dict[str, float]]:
    columns: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        column = columns.setdefault((row.system, row.measure), {})
        if row.query_id in column:
            raise ValueError(
                f"task {task}: two {row.measure} rows of {row.system} for query {row.query_id!r}"
            )
        column[row.query_id] = row.value
    return columns


def _comparisons(
    values: dict[tuple[str, str], Float64Array], baseline: str, seed: int
) -> dict[tuple[str, str], Comparison]:
    keys = [key for key in values if key[0] != baseline]
    p_values = [randomisation_test(values[key], values[baseline, key[1]], seed=seed) for key in keys]
    comparisons = {}
    for key, p_value, adjusted in zip(keys, p_values, holm_correction(p_values), strict=True):
        differences = values[key] - values[baseline, key[1]]
        comparisons[key] = Comparison(
            difference=float(differences.mean()),
            p_value=p_value,
            adjusted_p_value=adjusted,
            num_wins=int((differences > 0).sum()),
            num_ties=int((differences == 0).sum()),
            num_losses=int((differences < 0).sum()),
        )
    return comparisons
