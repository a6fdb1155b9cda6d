"""How well scores of pairs agree with labels: average precision, Spearman's and Pearson's correlation.

Knows arrays only. Average precision is scikit-learn's (area under the steps of the precision-recall curve,
equal scores are one step); correlations are scipy's. Resampling and exchange work on transformed scores:
ranks for average precision and Spearman, standard scores for Pearson, so that different scales compare.
Resampled ranks are those of the whole set, an approximation that saves sorting anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import scipy.stats

from indexing.arrays import Float64Array

Statistic: TypeAlias = Literal["ap", "spearman", "pearson"]
NUM_RESAMPLES = 1_000


@dataclass(frozen=True, eq=False)
class ScoredPairs:
    """One system on one group of pairs.

    `scores`, `labels`: float64[n], finite. `positives`: int8[n], 1, 0, or -1 = not in average precision.
    """

    scores: Float64Array
    labels: Float64Array
    positives: npt.NDArray[np.int8]

    def __post_init__(self) -> None:
        if not len(self.scores) == len(self.labels) == len(self.positives):
            raise ValueError("pairs: scores, labels and positives must be of one length")
        if not (np.isfinite(self.scores).all() and np.isfinite(self.labels).all()):
            raise ValueError("pairs: NaN or infinity among the scores or labels")


def statistics_of(pairs: ScoredPairs) -> tuple[Statistic, ...]:
    """What is reported for such labels, the main one first.

    Average precision where pairs are positive or not; correlations where labels have more than two values.
    """
    names: list[Statistic] = ["ap"] if (pairs.positives >= 0).any() else []
    if not names or len(np.unique(pairs.labels)) > 2:
        names.append("spearman")
    return tuple(names) if "ap" in names else (*names, "pearson")


def statistic(pairs: ScoredPairs, name: Statistic) -> float:
    """The value on the pairs as they are."""
    if name == "ap":
        kept = pairs.positives >= 0
        return average_precision(pairs.positives[kept], pairs.scores[kept])
    if name == "spearman":
        return correlation(ranks(pairs.labels), ranks(pairs.scores))
    return correlation(pairs.labels, pairs.scores)


def average_precision(positives: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """Sum over the distinct scores, from the highest, of precision times gain in recall.

    Raises:
        ValueError: no positive.
    """
    labels = np.asarray(positives, dtype=np.float64)
    values = np.asarray(scores, dtype=np.float64)
    if not labels.sum() > 0:
        raise ValueError("average precision needs at least one positive")
    order = np.argsort(-values, kind="stable")
    last_of_step = np.append(np.flatnonzero(np.diff(values[order])), len(order) - 1)
    hits = np.cumsum(labels[order])[last_of_step]
    gains = np.diff(hits, prepend=0.0)
    return float((gains * hits / (last_of_step + 1)).sum() / hits[-1])


def correlation(left: Float64Array, right: Float64Array) -> float:
    """Pearson's r; 0 when one side is constant, where scipy gives NaN."""
    x, y = left - left.mean(), right - right.mean()
    norm = float(np.sqrt((x @ x) * (y @ y)))
    # A constant column leaves rounding residue after the mean is taken away.
    if np.ptp(left) == 0 or np.ptp(right) == 0 or norm == 0:
        return 0.0
    return float(np.clip((x @ y) / norm, -1.0, 1.0))


def ranks(values: Float64Array) -> Float64Array:
    """Ranks from 1, equal values share their mean rank."""
    return cast(Float64Array, np.asarray(scipy.stats.rankdata(values), dtype=np.float64))


def resampled(pairs: ScoredPairs, name: Statistic, *, seed: int, num: int = NUM_RESAMPLES) -> Float64Array:
    """The statistic on `num` bootstrap samples of the pairs, float64[num].

    A sample without a positive, or constant on one side, gives the value of the whole set. Equal seeds draw
    equal pairs, so the values of two systems on the same pairs may be subtracted.
    """
    rng = np.random.default_rng(seed)
    whole = statistic(pairs, name)
    if name == "ap":
        kept = pairs.positives >= 0
        return _resampled_precision(pairs.positives[kept], pairs.scores[kept], whole, rng, num)
    x, y = _transformed(pairs.labels, name), _transformed(pairs.scores, name)
    sums = np.stack([x, y, x * x, y * y, x * y], axis=1)
    out = np.empty(num)
    for i in range(num):
        mx, my, mxx, myy, mxy = _counts(rng, len(x)) @ sums / len(x)
        spread = (mxx - mx * mx) * (myy - my * my)
        out[i] = (mxy - mx * my) / np.sqrt(spread) if spread > 0 else whole
    return out


def exchange_test(
    left: Sequence[ScoredPairs],
    right: Sequence[ScoredPairs],
    name: Statistic,
    *,
    seed: int,
    num: int = NUM_RESAMPLES,
    draws: Sequence[int] | None = None,
) -> float:
    """Two-sided p-value that two systems differ, by random exchange of their two scores of each pair.

    The statistic is the mean over groups.
    left, right: the groups of each, the same pairs in the same order. p is never 0.
    draws: one number for each group; groups of one number are the same pairs scored several times, whose
        scores are exchanged together. None for groups of different pairs.
    """
    observed, exchanged = exchanged_differences(left, right, name, seed=seed, num=num, draws=draws)
    return (1 + int((np.abs(exchanged) >= abs(observed) - 1e-12).sum())) / (1 + num)


def exchanged_differences(
    left: Sequence[ScoredPairs],
    right: Sequence[ScoredPairs],
    name: Statistic,
    *,
    seed: int,
    num: int = NUM_RESAMPLES,
    draws: Sequence[int] | None = None,
) -> tuple[float, Float64Array]:
    """The difference left - right in the mean over groups, and float64[num] of it after random exchanges.

    Arguments as in `exchange_test`.
    """
    numbers = list(range(len(left))) if draws is None else list(draws)
    prepared = [_prepared(a, b, name) for a, b in zip(left, right, strict=True)]
    observed = sum(_difference(x, y, labels, name) for x, y, labels in prepared) / len(prepared)
    exchanged = np.zeros(num)
    if all(np.array_equal(x, y) for x, y, _ in prepared):
        return 0.0, exchanged
    rng = np.random.default_rng(seed)
    for number_of_draw in range(num):
        total = 0.0
        swaps: dict[int, npt.NDArray[np.bool_]] = {}
        for number, (x, y, labels) in zip(numbers, prepared, strict=True):
            if number not in swaps:
                swaps[number] = rng.integers(0, 2, size=len(x), dtype=np.int8) == 1
            swap = swaps[number]
            total += _difference(np.where(swap, y, x), np.where(swap, x, y), labels, name)
        exchanged[number_of_draw] = total / len(prepared)
    return observed, exchanged


def rank_errors(pairs: ScoredPairs) -> Float64Array:
    """How far each pair's place by score is from its place by label, as a share of all pairs, float64[n]."""
    errors: Float64Array = np.abs(ranks(pairs.scores) - ranks(pairs.labels)) / len(pairs.scores)
    return errors


def _prepared(
    left: ScoredPairs, right: ScoredPairs, name: Statistic
) -> tuple[Float64Array, Float64Array, Float64Array]:
    if name != "ap":
        x, y = _transformed(left.scores, name), _transformed(right.scores, name)
        return x, y, _transformed(left.labels, name)
    kept = left.positives >= 0
    return ranks(left.scores[kept]), ranks(right.scores[kept]), left.positives[kept].astype(np.float64)


def _difference(x: Float64Array, y: Float64Array, labels: Float64Array, name: Statistic) -> float:
    if name == "ap":
        return average_precision(labels, x) - average_precision(labels, y)
    return correlation(labels, x) - correlation(labels, y)


def _transformed(values: Float64Array, name: Statistic) -> Float64Array:
    if name != "pearson":
        return ranks(values)
    spread = float(values.std())
    standard: Float64Array = (values - values.mean()) / (spread or 1.0)
    return standard


def _counts(rng: np.random.Generator, size: int) -> Float64Array:
    picks = rng.integers(0, size, size=size, dtype=np.int32)
    return np.bincount(picks, minlength=size).astype(np.float64)


def _resampled_precision(
    positives: npt.NDArray[np.int8], scores: Float64Array, whole: float, rng: np.random.Generator, num: int
) -> Float64Array:
    order = np.argsort(-scores, kind="stable")
    labels = positives[order].astype(np.float64)
    last_of_step = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    out = np.empty(num)
    for i in range(num):
        counts = _counts(rng, len(order))[order]
        hits = np.cumsum(counts * labels)[last_of_step]
        shown = np.cumsum(counts)[last_of_step]
        gains = np.diff(hits, prepend=0.0)
        if hits[-1] == 0:
            out[i] = whole
        else:
            out[i] = (gains * hits / np.maximum(shown, 1.0)).sum() / hits[-1]
    return out
