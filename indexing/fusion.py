"""Fusion of several rankings: by reciprocal rank (Cormack, Clarke, Buettcher, SIGIR 2009) or by score.

Knows hits only; must not know which searchers made them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import numpy as np

from indexing.arrays import Float64Array
from indexing.hits import NO_HIT, Hits, top_k_of_pairs

Fusion: TypeAlias = Literal["reciprocal_rank", "weighted"]

# What people call the two.
FusionName: TypeAlias = Literal["rrf", "weighted"]
FUSION_NAMES: dict[FusionName, Fusion] = {"rrf": "reciprocal_rank", "weighted": "weighted"}

# The constant of the paper; it damps the difference between the first places.
RANK_OFFSET = 60


@dataclass(frozen=True, kw_only=True)
class FusionConfig:
    """How the dense and the lexical ranking become one.

    Attributes:
        kind: by reciprocal rank, or by the weighted sum of scores stretched to [0, 1].
        rank_offset: the k of reciprocal rank fusion: a hit counts weight / (rank_offset + rank).
        dense_weight: share of the dense ranking, in (0, 1); the lexical one has the rest.
        depth: hits of each ranking that are fused, at least.

    Raises:
        ValueError: a value outside its range.
    """

    kind: Fusion = "reciprocal_rank"
    rank_offset: int = RANK_OFFSET
    dense_weight: float = 0.5
    depth: int = 100

    def __post_init__(self) -> None:
        if self.kind not in get_args(Fusion):
            raise ValueError(f"fusion.kind must be one of {', '.join(get_args(Fusion))}, got {self.kind!r}")
        if self.rank_offset < 1:
            raise ValueError(f"fusion.rank_offset must be at least 1, got {self.rank_offset}")
        if not 0 < self.dense_weight < 1:
            raise ValueError(f"fusion.dense_weight must be between 0 and 1, got {self.dense_weight}")
        if self.depth < 1:
            raise ValueError(f"fusion.depth must be at least 1, got {self.depth}")


def fusion_with(
    base: FusionConfig | None = None,
    *,
    kind: FusionName | None = None,
    rrf_k: int | None = None,
    dense_weight: float | None = None,
) -> FusionConfig:
    """Settings as a person asks for them in one search: those of `base` (the defaults) but for what is given.

    Raises:
        ValueError: a value outside its range, or `rrf_k` where scores are weighted.
    """
    before = base or FusionConfig()
    chosen = before.kind if kind is None else FUSION_NAMES[kind]
    if rrf_k is not None and chosen != "reciprocal_rank":
        raise ValueError("the k of reciprocal rank fusion goes with the fusion rrf, not with weighted")
    return replace(
        before,
        kind=chosen,
        rank_offset=before.rank_offset if rrf_k is None else rrf_k,
        dense_weight=before.dense_weight if dense_weight is None else dense_weight,
    )


def fuse(dense: Hits, lexical: Hits, k: int, config: FusionConfig) -> Hits:
    """The best k of two rankings of the same queries, as configured.

    Raises:
        ValueError: different numbers of queries, or k < 1.
    """
    weights = (config.dense_weight, 1 - config.dense_weight)
    if config.kind == "weighted":
        return weighted_score_fusion([dense, lexical], k, weights=weights)
    return reciprocal_rank_fusion([dense, lexical], k, weights=weights, rank_offset=config.rank_offset)


def reciprocal_rank_fusion(
    rankings: Sequence[Hits],
    k: int,
    *,
    weights: Sequence[float] | None = None,
    rank_offset: int = RANK_OFFSET,
) -> Hits:
    """Fuse rankings of the same queries: score = sum of weight / (rank_offset + rank), rank from 1.

    Args:
        rankings: at least one, all for the same queries, each possibly of another depth.
        k: places wanted.
        weights: one positive weight for each ranking; 1 each when not given.
        rank_offset: > 0.

    Raises:
        ValueError: no ranking, different numbers of queries, or weights that do not fit.
    """
    shares = _check(rankings, weights)
    if rank_offset <= 0:
        raise ValueError(f"rank_offset must be positive, got {rank_offset}")
    scores = [
        np.broadcast_to(share / (rank_offset + np.arange(ranking.k) + 1.0), ranking.ids.shape)
        for ranking, share in zip(rankings, shares, strict=True)
    ]
    return _summed(rankings, scores, k)


def weighted_score_fusion(
    rankings: Sequence[Hits], k: int, *, weights: Sequence[float] | None = None
) -> Hits:
    """Fuse rankings of the same queries: score = weighted sum of scores brought to [0, 1] query by query.

    A ranking's best score becomes 1 and its last 0 (all 1 where they are equal); a row it does not have
    counts 0 (Bruch, Gai, Ingber, An analysis of fusion functions for hybrid retrieval, TOIS 2023). Weights
    are divided by their sum. Rankings should be deep: what lies below the last place cannot be told apart.

    Args:
        rankings: at least one, all for the same queries, each possibly of another depth.
        k: places wanted.
        weights: one positive weight for each ranking; equal when not given.

    Raises:
        ValueError: no ranking, different numbers of queries, or weights that do not fit.
    """
    shares = _check(rankings, weights)
    total = sum(shares)
    scores = [share / total * _unit_scores(ranking) for ranking, share in zip(rankings, shares, strict=True)]
    return _summed(rankings, scores, k)


def _check(rankings: Sequence[Hits], weights: Sequence[float] | None) -> list[float]:
    if not rankings or len({ranking.num_queries for ranking in rankings}) != 1:
        raise ValueError("fusion: expected one or more rankings of the same queries")
    shares = [1.0] * len(rankings) if weights is None else list(weights)
    if len(shares) != len(rankings) or min(shares) <= 0:
        raise ValueError(f"fusion: expected {len(rankings)} positive weights, got {weights}")
    return shares


def _unit_scores(ranking: Hits) -> Float64Array:
    """Scores of each query stretched to [0, 1], float64[nq, k]; anything at empty places."""
    present = ranking.ids != NO_HIT
    scores = ranking.scores.astype(np.float64)
    highest = np.where(present, scores, -np.inf).max(axis=1, initial=-np.inf, keepdims=True)
    lowest = np.where(present, scores, np.inf).min(axis=1, initial=np.inf, keepdims=True)
    width = highest - lowest
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(width > 0, (scores - lowest) / width, 1.0)


def _summed(rankings: Sequence[Hits], scores: Sequence[Float64Array], k: int) -> Hits:
    rows, ids, shares = [], [], []
    for ranking, parts in zip(rankings, scores, strict=True):
        query_rows, places = np.nonzero(ranking.ids != NO_HIT)
        rows.append(query_rows)
        ids.append(ranking.ids[query_rows, places])
        shares.append(parts[query_rows, places])
    keys = np.stack([np.concatenate(rows), np.concatenate(ids)])
    pairs, inverse = np.unique(keys, axis=1, return_inverse=True)
    totals = np.bincount(inverse, weights=np.concatenate(shares), minlength=pairs.shape[1])
    return top_k_of_pairs(
        pairs[0], pairs[1], totals.astype(np.float32), num_queries=rankings[0].num_queries, k=k
    )
