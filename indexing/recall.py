"""Recall estimated from a sample of queries, with an interval.

Owns the statistics. The hits of one query are found or missed together more often than hits of different
queries, so ten hits of a query are fewer than ten independent trials: the Wilson interval is taken for the
number of trials that the spread between the queries leaves (the effective sample size of Korn and Graubard,
Survey Methodology 24, 1998). Must not know how hits were found.
"""

import math
from dataclasses import dataclass

import numpy as np

from indexing.arrays import Float64Array, Int64Array
from indexing.hits import Hits, count_right

# Of the normal distribution, for an interval of 95 %.
_QUANTILE = 1.959964


@dataclass(frozen=True, kw_only=True)
class RecallEstimate:
    """Recall in [0, 1]: the value over the sample, and its 95 % interval.

    num_queries: of the sample, those with anything to find.
    """

    value: float
    low: float
    high: float
    num_queries: int


def estimate_recall(found: Hits, exact: Hits, k: int) -> RecallEstimate:
    """Recall@k as `hits.recall_at` counts it, with its interval."""
    return estimate_from_counts(*count_right(found, exact, k))


def estimate_from_counts(num_right: Int64Array, num_wanted: Int64Array) -> RecallEstimate:
    """The estimate from hits found and hits wanted of each query, int64[nq] both.

    Where all queries agree nothing tells how far the hits of one depend on each other: a query then counts
    as one trial. Without anything to find recall is 1 and the interval says nothing.
    """
    asked = num_wanted > 0
    right, wanted = num_right[asked].astype(np.float64), num_wanted[asked].astype(np.float64)
    num_queries = len(wanted)
    if num_queries == 0:
        return RecallEstimate(value=1.0, low=0.0, high=1.0, num_queries=0)
    value = float(right.sum() / wanted.sum())
    low, high = _wilson(value, _num_trials(right, wanted, value))
    return RecallEstimate(value=value, low=low, high=high, num_queries=num_queries)


def _num_trials(right: Float64Array, wanted: Float64Array, value: float) -> float:
    """Independent trials that would leave the value as unsure as the queries do."""
    num_queries = len(wanted)
    off = (right - value * wanted) / wanted.mean()
    variance = float(off @ off) / max(num_queries - 1, 1) / num_queries
    if variance < 1e-15:
        return float(num_queries)
    return min(value * (1 - value) / variance, float(wanted.sum()))


def _wilson(value: float, num_trials: float) -> tuple[float, float]:
    square = _QUANTILE**2 / num_trials
    middle = (value + square / 2) / (1 + square)
    half = math.sqrt(value * (1 - value) * square + square**2 / 4) / (1 + square)
    # Where all or none was found the near end is the value itself, which rounding would miss by a hair.
    low = 0.0 if value == 0 else max(0.0, middle - half)
    return low, 1.0 if value == 1 else min(1.0, middle + half)
