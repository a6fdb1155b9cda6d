"""Two systems trained with several seeds on the same tasks: how sure the difference of their scores is.

Owns pairing (seeds by their number, queries or pairs of texts by their place) and what is resampled: values
are exchanged, or queries drawn, within each task by itself, each query once with all its seeds, so that the
figures speak of other queries and not of other seeds. Knows arrays only.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np

from indexing.arrays import Float64Array
from indexing.evaluation.pair_statistics import (
    NUM_RESAMPLES,
    ScoredPairs,
    exchanged_differences,
    resampled,
    statistics_of,
)

# What one system got on one task with one seed, by group: float64[n], the main measure of each query, or
# scored pairs. Groups have the same queries or pairs in the same order for every system and seed.
GroupScores: TypeAlias = Mapping[str, Float64Array | ScoredPairs]
BySeed: TypeAlias = Mapping[int, GroupScores]
_TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How sure a difference of scores is, as far as the queries go.

    Attributes:
        p_value: two-sided, of the paired randomisation test, stratified by task; never 0.
        error: bootstrap standard error of the difference over queries, in the unit of the measures.
        seeds: pairs of seeds, left and right, that took part.
    """

    p_value: float
    error: float
    seeds: tuple[tuple[int, int], ...]


def matched_seeds(left: Iterable[int], right: Iterable[int]) -> list[tuple[int, int]]:
    """Pairs of equal seeds; a side with a single one (no random choice) stands against each of the other.

    Seeds that the other side lacks are left out.
    """
    mine, others = list(left), list(right)
    if len(others) == 1:
        return [(seed, others[0]) for seed in mine]
    if len(mine) == 1:
        return [(mine[0], seed) for seed in others]
    return [(seed, seed) for seed in mine if seed in others]


def compare(tasks: Sequence[tuple[BySeed, BySeed]], *, seed: int = 0) -> Comparison | None:
    """The difference left - right in the mean over the tasks of the main measure.

    tasks: what the two systems got, for each task. seed: of the resampling.

    Returns:
        None where no seeds match.

    Raises:
        ValueError: the two were not scored on the same queries or pairs.
    """
    sides = [set.intersection(*({*task[side]} for task in tasks)) for side in (0, 1)]
    seeds = matched_seeds(sorted(sides[0]), sorted(sides[1]))
    if not seeds:
        return None
    observed, exchanged, drawn = 0.0, np.zeros(NUM_RESAMPLES), np.zeros(NUM_RESAMPLES)
    for number, (left, right) in enumerate(tasks):
        matches = [(left[one], right[other]) for one, other in seeds]
        _check(matches)
        work = _of_pairs if _is_pairs(matches[0][0]) else _of_queries
        found = work(matches, np.random.SeedSequence([seed, number]))
        observed += found[0]
        exchanged += found[1]
        drawn += found[2]
    num_extreme = int((np.abs(exchanged) >= abs(observed) - _TINY).sum())
    return Comparison(
        p_value=(1 + num_extreme) / (1 + NUM_RESAMPLES),
        error=float(np.std(drawn / len(tasks), ddof=1)),
        seeds=tuple(seeds),
    )


def _check(matches: Sequence[tuple[GroupScores, GroupScores]]) -> None:
    """One and the same set of groups and sizes."""
    shapes = [{name: _size(scores) for name, scores in side.items()} for match in matches for side in match]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError("compare: the systems, or their seeds, were scored on different queries or pairs")


def _size(scores: Float64Array | ScoredPairs) -> int:
    return len(scores.scores) if isinstance(scores, ScoredPairs) else len(scores)


def _is_pairs(scores: GroupScores) -> bool:
    return isinstance(next(iter(scores.values())), ScoredPairs)


def _of_queries(
    matches: Sequence[tuple[GroupScores, GroupScores]], seeds: np.random.SeedSequence
) -> tuple[float, Float64Array, Float64Array]:
    """The difference in the mean of the groups' means, and as it is after exchanges and in samples."""
    names = list(matches[0][0])
    exchanged, drawn = np.zeros(NUM_RESAMPLES), np.zeros(NUM_RESAMPLES)
    observed = 0.0
    rng = np.random.default_rng(seeds)
    for name in names:
        differences = np.mean(
            [cast(Float64Array, left[name]) - cast(Float64Array, right[name]) for left, right in matches],
            axis=0,
        )
        size = len(differences)
        observed += float(differences.mean()) / len(names)
        signs = 2.0 * rng.integers(0, 2, size=(NUM_RESAMPLES, size), dtype=np.int8) - 1.0
        exchanged += signs @ differences / size / len(names)
        picks = rng.integers(0, size, size=(NUM_RESAMPLES, size), dtype=np.int32)
        drawn += differences[picks].mean(axis=1) / len(names)
    return observed, exchanged, drawn


def _of_pairs(
    matches: Sequence[tuple[GroupScores, GroupScores]], seeds: np.random.SeedSequence
) -> tuple[float, Float64Array, Float64Array]:
    """As `_of_queries`, for statistics of all pairs of a group together."""
    names = list(matches[0][0])
    sides: list[list[ScoredPairs]] = [[], []]
    draws: list[int] = []
    for match in matches:
        for place, name in enumerate(names):
            for side, found in zip(sides, match, strict=True):
                side.append(cast(ScoredPairs, found[name]))
            draws.append(place)
    main = statistics_of(sides[0][0])[0]
    first, *others = [int(number) for number in seeds.generate_state(1 + len(names))]
    observed, exchanged = exchanged_differences(sides[0], sides[1], main, seed=first, draws=draws)
    drawn = np.zeros(NUM_RESAMPLES)
    for left, right, place in zip(*sides, draws, strict=True):
        drawn += resampled(left, main, seed=others[place]) - resampled(right, main, seed=others[place])
    return observed, exchanged, drawn / len(draws)
