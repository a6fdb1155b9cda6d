"""From per-pair rows to a task's table: a statistic of all pairs, its interval, comparisons with a baseline.

Owns aggregation over groups of pairs; the statistics are in `pair_statistics`. A win is a pair that the
system places nearer to where its label is than the baseline does.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from indexing.arrays import shorten
from indexing.evaluation.pair_rows import PairRow
from indexing.evaluation.pair_statistics import (
    ScoredPairs,
    Statistic,
    exchange_test,
    rank_errors,
    resampled,
    statistic,
    statistics_of,
)
from indexing.evaluation.significance import Interval, holm_correction, interval_of
from indexing.evaluation.table_values import Cell, Comparison, TaskSummary, shown_groups

# Group -> pairs, of one system.
_Groups: TypeAlias = dict[str, ScoredPairs]


def pair_task_summary(task: str, rows: Sequence[PairRow], baseline: str, seed: int) -> TaskSummary:
    """The table of one task.

    Raises:
        ValueError: a pair twice, systems scored on different pairs, or no rows of the baseline.
    """
    systems = tuple(dict.fromkeys(row.system for row in rows))
    if baseline not in systems:
        raise ValueError(f"task {task}: the baseline {baseline!r} has no rows; systems: {', '.join(systems)}")
    scored = _scored(task, rows, systems, baseline)
    groups = list(scored[baseline])
    names = statistics_of(scored[baseline][groups[0]])
    columns: dict[str, tuple[Statistic, list[str]]] = {name: (name, groups) for name in names}
    columns |= {f"{name}.{group}": (name, [group]) for group in shown_groups(groups) for name in names}
    intervals = {
        (system, measure): _interval(scored[system], name, chosen, seed)
        for system in systems
        for measure, (name, chosen) in columns.items()
    }
    comparisons = _comparisons(scored, columns, baseline, seed, intervals)
    cells = {}
    for (system, measure), interval in intervals.items():
        best = max(intervals[other, measure].mean for other in systems)
        cells[system, measure] = Cell(
            system=system,
            measure=measure,
            interval=interval,
            is_best=interval.mean >= best,
            comparison=comparisons.get((system, measure)),
        )
    return TaskSummary(
        task=task,
        num_queries=sum(len(pairs.scores) for pairs in scored[baseline].values()),
        systems=systems,
        measures=tuple(columns),
        cells=cells,
        unit="pairs",
    )


def _scored(task: str, rows: Sequence[PairRow], systems: Sequence[str], baseline: str) -> dict[str, _Groups]:
    by_system: dict[str, dict[tuple[str, str], PairRow]] = {system: {} for system in systems}
    for row in rows:
        if (row.group, row.pair_id) in by_system[row.system]:
            raise ValueError(f"task {task}: two rows of {row.system} for pair {row.pair_id!r}")
        by_system[row.system][row.group, row.pair_id] = row
    order = list(by_system[baseline])
    groups = list(dict.fromkeys(group for group, _ in order))
    scored: dict[str, _Groups] = {}
    for system, found in by_system.items():
        if odd := found.keys() ^ set(order):
            raise ValueError(
                f"task {task}: {system} is not scored on the same pairs as {baseline}: "
                f"{shorten(sorted(pair_id for _, pair_id in odd))}"
            )
        scored[system] = {
            group: _pairs_of([found[key] for key in order if key[0] == group]) for group in groups
        }
    return scored


def _pairs_of(rows: Sequence[PairRow]) -> ScoredPairs:
    return ScoredPairs(
        scores=np.array([row.score for row in rows], np.float64),
        labels=np.array([row.label for row in rows], np.float64),
        positives=np.array([row.positive for row in rows], np.int8),
    )


def _interval(groups: _Groups, name: Statistic, chosen: Sequence[str], seed: int) -> Interval:
    value = float(np.mean([statistic(groups[group], name) for group in chosen]))
    samples = np.mean([resampled(groups[group], name, seed=seed) for group in chosen], axis=0)
    return interval_of(value, samples)


def _comparisons(
    scored: dict[str, _Groups],
    columns: dict[str, tuple[Statistic, list[str]]],
    baseline: str,
    seed: int,
    intervals: dict[tuple[str, str], Interval],
) -> dict[tuple[str, str], Comparison]:
    keys = [(system, measure) for system in scored if system != baseline for measure in columns]
    p_values = []
    for system, measure in keys:
        name, chosen = columns[measure]
        sides = [[scored[side][group] for group in chosen] for side in (system, baseline)]
        p_values.append(exchange_test(sides[0], sides[1], name, seed=seed))
    comparisons = {}
    for (system, measure), p_value, adjusted in zip(keys, p_values, holm_correction(p_values), strict=True):
        _, chosen = columns[measure]
        gains = np.concatenate(
            [rank_errors(scored[baseline][group]) - rank_errors(scored[system][group]) for group in chosen]
        )
        comparisons[system, measure] = Comparison(
            difference=intervals[system, measure].mean - intervals[baseline, measure].mean,
            p_value=p_value,
            adjusted_p_value=adjusted,
            num_wins=int((gains > 0).sum()),
            num_ties=int((gains == 0).sum()),
            num_losses=int((gains < 0).sum()),
        )
    return comparisons
