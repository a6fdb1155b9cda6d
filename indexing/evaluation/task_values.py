"""The values of one system on one task, from its rows.

Owns the mean over groups. Must not know files, seeds or tables.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from indexing.evaluation.pair_rows import PairRow
from indexing.evaluation.pair_statistics import ScoredPairs, statistic, statistics_of
from indexing.evaluation.rows import PerQueryRow

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


def _group_mean(column: Mapping[tuple[str, str], float]) -> float:
    groups: dict[str, list[float]] = {}
    for (group, _), value in column.items():
        groups.setdefault(group, []).append(value)
    return float(np.mean([np.mean(values) for values in groups.values()]))
