"""From per-query rows to the numbers of a table: means, intervals, comparisons with a baseline.

Owns aggregation and the choice of statistics. Must not know how a table looks. For every task and measure:
the mean over queries (with groups: the mean of the groups' means) with a 95 % bootstrap interval; against the
baseline the mean difference, wins, ties and losses, and the p-value of a paired randomisation test,
Holm-corrected over all comparisons of the task. Tasks of pairs are summarised in `pair_summary`.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from indexing.arrays import Float64Array, shorten
from indexing.evaluation.pair_rows import PairRow
from indexing.evaluation.pair_summary import pair_task_summary
from indexing.evaluation.rows import PerQueryRow
from indexing.evaluation.significance import (
    grouped_bootstrap_interval,
    holm_correction,
    randomisation_test,
)
from indexing.evaluation.table_values import Cell, Comparison, TaskSummary, shown_groups

# (group, query id) -> value, of one system and measure.
_Column: TypeAlias = dict[tuple[str, str], float]


@dataclass(frozen=True)
class QueryChange:
    """How much better (positive) or worse a system is than the baseline on one query."""

    task: str
    query_id: str
    baseline_value: float
    value: float
    group: str = ""

    @property
    def change(self) -> float:
        """Value minus baseline value."""
        return self.value - self.baseline_value


def summarise(
    rows: Sequence[PerQueryRow], *, baseline: str, pair_rows: Sequence[PairRow] = (), seed: int = 0
) -> list[TaskSummary]:
    """Aggregate rows, one summary for each task in order of first appearance, tasks of pairs last.

    Args:
        rows: every system must have been scored on the same queries of a task with the same measures.
        baseline: the system that the others are compared with.
        pair_rows: likewise, of tasks of pairs.
        seed: of bootstrap and randomisation.

    Raises:
        ValueError: no rows, a row twice, systems scored on different queries (named), or a task without the
            baseline.
    """
    return list(_summaries(tuple(rows), tuple(pair_rows), baseline, seed))


# Every format of a report asks for the same summaries, which take seconds of resampling.
@functools.lru_cache(maxsize=1)
def _summaries(
    rows: tuple[PerQueryRow, ...], pair_rows: tuple[PairRow, ...], baseline: str, seed: int
) -> tuple[TaskSummary, ...]:
    if not rows and not pair_rows:
        raise ValueError("summarise: no rows")
    tasks = list(dict.fromkeys(row.task for row in rows))
    pair_tasks = list(dict.fromkeys(row.task for row in pair_rows))
    return (
        *(_task_summary(task, [row for row in rows if row.task == task], baseline, seed) for task in tasks),
        *(
            pair_task_summary(task, [row for row in pair_rows if row.task == task], baseline, seed)
            for task in pair_tasks
        ),
    )


def mean_over_tasks(summaries: Sequence[TaskSummary]) -> dict[tuple[str, str], float]:
    """Plain mean of task means by (system, measure), for systems and measures that every task has."""
    shared = set.intersection(*(set(summary.cells) for summary in summaries))
    return {
        key: float(np.mean([summary.cells[key].interval.mean for summary in summaries]))
        for key in summaries[0].cells
        if key in shared
    }


def mean_of_main_scores(summaries: Sequence[TaskSummary]) -> dict[str, float]:
    """Plain mean of the tasks' main measures by system, for systems that every task has.

    With the four tasks of USEB this is USEB's average.
    """
    shared = set.intersection(*(set(summary.systems) for summary in summaries))
    return {
        system: float(np.mean([s.cells[system, s.main_measure].interval.mean for s in summaries]))
        for system in summaries[0].systems
        if system in shared
    }


def largest_changes(
    rows: Sequence[PerQueryRow], *, measure: str, baseline: str, system: str, num_each: int = 3
) -> tuple[list[QueryChange], list[QueryChange]]:
    """The queries that gained and that lost most from baseline to system, largest change first.

    Queries without a change are in neither list; equal changes keep the order of the rows.

    Raises:
        ValueError: one of the two systems was not scored with this measure.
    """
    before, after = (
        {(r.task, r.query_id, r.group): r.value for r in rows if (r.system, r.measure) == (name, measure)}
        for name in (baseline, system)
    )
    if not before or not after:
        raise ValueError(f"largest_changes: no {measure} rows for {baseline!r} or {system!r}")
    changes = [
        QueryChange(task, query_id, before[task, query_id, group], value, group)
        for (task, query_id, group), value in after.items()
        if (task, query_id, group) in before
    ]
    gains = sorted((c for c in changes if c.change > 0), key=lambda c: -c.change)
    losses = sorted((c for c in changes if c.change < 0), key=lambda c: c.change)
    return gains[:num_each], losses[:num_each]


def _task_summary(task: str, rows: list[PerQueryRow], baseline: str, seed: int) -> TaskSummary:
    systems = tuple(dict.fromkeys(row.system for row in rows))
    columns = _columns(task, rows)
    if baseline not in systems:
        raise ValueError(f"task {task}: the baseline {baseline!r} has no rows; systems: {', '.join(systems)}")
    measures = tuple(dict.fromkeys(measure for _, measure in columns))
    for measure in measures:
        wanted = columns.get((baseline, measure), {}).keys()
        for system in systems:
            odd = wanted ^ columns.get((system, measure), {}).keys()
            if odd:
                names = shorten(sorted(query_id for _, query_id in odd))
                raise ValueError(
                    f"task {task}: {system} has no {measure} for the same queries as {baseline}: {names}; "
                    "score every system on the same queries"
                )
    comparisons = _comparisons(columns, baseline, seed)
    means = {key: _mean(column) for key, column in columns.items()}
    cells: dict[tuple[str, str], Cell] = {}
    for system in systems:
        for measure in measures:
            column = columns[system, measure]
            cells[system, measure] = Cell(
                system=system,
                measure=measure,
                interval=grouped_bootstrap_interval(_by_group(column), seed=seed),
                is_best=means[system, measure] >= max(means[other, measure] for other in systems),
                comparison=comparisons.get((system, measure)),
            )
    return TaskSummary(
        task=task,
        num_queries=len(columns[baseline, measures[0]]),
        systems=systems,
        measures=measures,
        cells=cells,
    )


def _columns(task: str, rows: list[PerQueryRow]) -> dict[tuple[str, str], _Column]:
    """By (system, measure), and by (system, measure.group) where there are few groups."""
    columns: dict[tuple[str, str], _Column] = {}
    for row in rows:
        column = columns.setdefault((row.system, row.measure), {})
        if (row.group, row.query_id) in column:
            raise ValueError(
                f"task {task}: two {row.measure} rows of {row.system} for query {row.query_id!r}"
            )
        column[row.group, row.query_id] = row.value
    groups = shown_groups(list(dict.fromkeys(row.group for row in rows)))
    for group in groups:
        for system, measure in list(columns):
            part = {key: value for key, value in columns[system, measure].items() if key[0] == group}
            if part and not measure.endswith(tuple(f".{other}" for other in groups)):
                columns[system, f"{measure}.{group}"] = part
    return columns


def _by_group(column: _Column) -> list[Float64Array]:
    groups: dict[str, list[float]] = {}
    for (group, _), value in column.items():
        groups.setdefault(group, []).append(value)
    return [np.array(values) for values in groups.values()]


def _mean(column: _Column) -> float:
    return float(np.mean([values.mean() for values in _by_group(column)]))


def _comparisons(
    columns: dict[tuple[str, str], _Column], baseline: str, seed: int
) -> dict[tuple[str, str], Comparison]:
    keys = [key for key in columns if key[0] != baseline]
    p_values, differences = [], []
    for system, measure in keys:
        column, base = columns[system, measure], columns[baseline, measure]
        order = list(base)
        values = np.array([[column[key], base[key]] for key in order]).T
        sizes: dict[str, int] = {}
        for group, _ in order:
            sizes[group] = sizes.get(group, 0) + 1
        # Weights that turn the plain sum over queries into the mean of the groups' means.
        weights = np.array([1.0 / (sizes[group] * len(sizes)) for group, _ in order])
        p_values.append(randomisation_test(values[0] * weights, values[1] * weights, seed=seed))
        differences.append(values[0] - values[1])
    comparisons = {}
    for key, p_value, adjusted, difference in zip(
        keys, p_values, holm_correction(p_values), differences, strict=True
    ):
        comparisons[key] = Comparison(
            difference=_mean(columns[key]) - _mean(columns[baseline, key[1]]),
            p_value=p_value,
            adjusted_p_value=adjusted,
            num_wins=int((difference > 0).sum()),
            num_ties=int((difference == 0).sum()),
            num_losses=int((difference < 0).sum()),
        )
    return comparisons
