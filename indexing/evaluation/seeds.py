"""One system trained with several seeds: its values, and a paired test against another such system.

The test pairs queries (or pairs of texts), averaged over the seeds, so its p-value speaks of other queries,
not of other seeds; the spread over seeds is told beside it. Owns this aggregation; must not know files or
tables.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from indexing.arrays import Float64Array
from indexing.evaluation.pair_rows import PairRow
from indexing.evaluation.pair_statistics import ScoredPairs, exchange_test, statistic, statistics_of
from indexing.evaluation.rows import PerQueryRow
from indexing.evaluation.significance import randomisation_test

# (group, query id) -> value.
_Column = dict[tuple[str, str], float]


def task_values(rows: Sequence[PerQueryRow], pair_rows: Sequence[PairRow]) -> dict[str, float]:
    """Every measure of one system on one task, the main one first: the mean of its groups' values."""
    if pair_rows:
        groups = _scored_groups(pair_rows)
        names = statistics_of(next(iter(groups.values())))
        return {name: float(np.mean([statistic(pairs, name) for pairs in groups.values()])) for name in names}
    measures = dict.fromkeys(row.measure for row in rows)
    return {measure: _group_mean(_column(rows, measure)) for measure in measures}


def paired_p_value(
    left: Sequence[tuple[Sequence[PerQueryRow], Sequence[PairRow]]],
    right: Sequence[tuple[Sequence[PerQueryRow], Sequence[PairRow]]],
    *,
    seed: int = 0,
) -> float:
    """Two-sided p-value that two systems differ in the task's main measure.

    Args:
        left: (per-query rows, per-pair rows) of one task for each seed of one system, one of the two empty.
        right: of the other system; where one system has a single seed, it stands against each of the other.
        seed: of the exchanges.

    Raises:
        ValueError: the two were not scored on the same queries or pairs.
    """
    if left[0][1]:
        return _pairs_p_value([rows for _, rows in left], [rows for _, rows in right], seed)
    measure = left[0][0][0].measure
    sides = [_mean_column([_column(rows, measure) for rows, _ in side]) for side in (left, right)]
    if sides[0].keys() != sides[1].keys():
        raise ValueError("paired_p_value: the two systems were scored on different queries")
    keys = list(sides[0])
    weights = _group_weights(keys)
    values = [np.array([side[key] for key in keys]) * weights for side in sides]
    return randomisation_test(values[0], values[1], seed=seed)


def _pairs_p_value(left: Sequence[Sequence[PairRow]], right: Sequence[Sequence[PairRow]], seed: int) -> float:
    num_seeds = max(len(left), len(right))
    sides: list[list[ScoredPairs]] = [[], []]
    draws: list[int] = []
    for number in range(num_seeds):
        groups = [_scored_groups(side[number % len(side)]) for side in (left, right)]
        if groups[0].keys() != groups[1].keys() or any(
            len(groups[0][name].scores) != len(groups[1][name].scores) for name in groups[0]
        ):
            raise ValueError("paired_p_value: the two systems were scored on different pairs")
        for place, name in enumerate(groups[0]):
            sides[0].append(groups[0][name])
            sides[1].append(groups[1][name])
            draws.append(place)
    return exchange_test(sides[0], sides[1], statistics_of(sides[0][0])[0], seed=seed, draws=draws)


def _scored_groups(rows: Sequence[PairRow]) -> dict[str, ScoredPairs]:
    """Pairs by group, in the order of their ids."""
    by_group: dict[str, list[PairRow]] = {}
    for row in sorted(rows, key=lambda row: row.pair_id):
        by_group.setdefault(row.group, []).append(row)
    return {
        group: ScoredPairs(
            scores=np.array([row.score for row in found], np.float64),
            labels=np.array([row.label for row in found], np.float64),
            positives=np.array([row.positive for row in found], np.int8),
        )
        for group, found in sorted(by_group.items())
    }


def _column(rows: Sequence[PerQueryRow], measure: str) -> _Column:
    return {(row.group, row.query_id): row.value for row in rows if row.measure == measure}


def _mean_column(columns: Sequence[_Column]) -> _Column:
    if any(column.keys() != columns[0].keys() for column in columns):
        raise ValueError("paired_p_value: the seeds were scored on different queries")
    return {key: float(np.mean([column[key] for column in columns])) for key in sorted(columns[0])}


def _group_mean(column: Mapping[tuple[str, str], float]) -> float:
    groups: dict[str, list[float]] = {}
    for (group, _), value in column.items():
        groups.setdefault(group, []).append(value)
    return float(np.mean([np.mean(values) for values in groups.values()]))


def _group_weights(keys: Sequence[tuple[str, str]]) -> Float64Array:
    """So that a sum over queries is a mean of the groups' means, times their number."""
    sizes: dict[str, int] = {}
    for group, _ in keys:
        sizes[group] = sizes.get(group, 0) + 1
    return np.array([1.0 / sizes[group] for group, _ in keys])
