"""How sure a mean and a difference of means are: bootstrap, paired randomisation, Holm's correction.

Knows arrays of per-query values only (Smucker, Allan, Carterette, CIKM 2007 compare these tests for
retrieval; Holm, Scandinavian Journal of Statistics 1979). Everything is seeded: equal input, equal output.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indexing.arrays import Float64Array

# Bounds one block of resampled indices or signs to about 16 million entries.
_BLOCK_ENTRIES = 1 << 24


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval, low <= mean <= high, in the unit of the values."""

    mean: float
    low: float
    high: float


def bootstrap_interval(
    values: npt.ArrayLike, *, confidence: float = 0.95, num_resamples: int = 10_000, seed: int = 0
) -> Interval:
    """Percentile bootstrap interval of the mean over queries.

    For paired data pass the differences: the interval of a mean difference.

    Args:
        values: float[n], n >= 1.
        confidence: in (0, 1).
        num_resamples: >= 100.
        seed: of the resampling.

    Raises:
        ValueError: no values, NaN, or a parameter outside its range.
    """
    return grouped_bootstrap_interval([values], confidence=confidence, num_resamples=num_resamples, seed=seed)


def grouped_bootstrap_interval(
    groups: Sequence[npt.ArrayLike],
    *,
    confidence: float = 0.95,
    num_resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """As `bootstrap_interval`, for the mean of the groups' means; queries are drawn within their group.

    Args:
        groups: float[n] for each group, n >= 1.
        confidence: as there.
        num_resamples: as there.
        seed: as there.
    """
    columns = [_values(values, what="bootstrap_interval") for values in groups]
    if not 0 < confidence < 1 or num_resamples < 100:
        raise ValueError(
            f"bootstrap_interval: expected confidence in (0, 1) and at least 100 resamples, "
            f"got {confidence} and {num_resamples}"
        )
    rng = np.random.default_rng(seed)
    means = np.zeros(num_resamples)
    for column in columns:
        block = max(1, _BLOCK_ENTRIES // len(column))
        for start in range(0, num_resamples, block):
            rows = means[start : start + block]
            picks = rng.integers(0, len(column), size=(len(rows), len(column)), dtype=np.int32)
            rows += column[picks].mean(axis=1) / len(columns)
    mean = float(np.mean([column.mean() for column in columns]))
    return interval_of(mean, means, confidence=confidence)


def interval_of(value: float, resampled: Float64Array, *, confidence: float = 0.95) -> Interval:
    """The percentile interval of a statistic from its resampled values float[b]."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Interval(mean=value, low=min(float(low), value), high=max(float(high), value))


def randomisation_test(
    left: npt.ArrayLike, right: npt.ArrayLike, *, num_permutations: int = 10_000, seed: int = 0
) -> float:
    """Two-sided p-value that the paired means differ, by random exchange of the two values of each query.

    p = (1 + exchanges with a difference at least as large as observed) / (1 + exchanges), so never 0; equal
    systems give exactly 1.

    Args:
        left: float[n], one value for each query.
        right: float[n], the other system's values for the same queries in the same order.
        num_permutations: >= 100.
        seed: of the exchanges.

    Raises:
        ValueError: different lengths, no values, or NaN.
    """
    first, second = _values(left, what="randomisation_test"), _values(right, what="randomisation_test")
    if len(first) != len(second):
        raise ValueError(f"randomisation_test: {len(first)} values against {len(second)}; pair them by query")
    if num_permutations < 100:
        raise ValueError(f"randomisation_test: expected at least 100 permutations, got {num_permutations}")
    differences = first - second
    # Queries without a difference do not change under exchange.
    differences = differences[differences != 0]
    if len(differences) == 0:
        return 1.0
    observed = abs(float(differences.sum()))
    # Sums of the same numbers in another sign pattern can differ by rounding: those count as equal.
    threshold = observed - 1e-12 * float(np.abs(differences).sum())
    rng = np.random.default_rng(seed)
    num_extreme = 0
    block = max(1, _BLOCK_ENTRIES // len(differences))
    for start in range(0, num_permutations, block):
        size = (min(block, num_permutations - start), len(differences))
        signs = rng.integers(0, 2, size=size, dtype=np.int8)
        sums = 2.0 * (signs @ differences) - differences.sum()
        num_extreme += int((np.abs(sums) >= threshold).sum())
    return (1 + num_extreme) / (1 + num_permutations)


def holm_correction(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for testing all of them together (family-wise error), in the given order.

    Raises:
        ValueError: a value outside [0, 1].
    """
    if any(not 0 <= p <= 1 for p in p_values):
        raise ValueError(f"holm_correction: p-values must lie in [0, 1], got {list(p_values)}")
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for place, position in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[position]))
        adjusted[position] = largest
    return adjusted


def _values(values: npt.ArrayLike, *, what: str) -> Float64Array:
    column = np.asarray(values, dtype=np.float64)
    if column.ndim != 1 or len(column) == 0 or np.isnan(column).any():
        raise ValueError(f"{what}: expected one or more numbers without NaN, got shape {column.shape}")
    return column
