"""Reciprocal rank fusion of several rankings (Cormack, Clarke, Buettcher, SIGIR 2009).

Knows hits only; must not know which searchers made them.
"""

from collections.abc import Sequence

import numpy as np

from indexing.hits import NO_HIT, Hits, top_k_of_pairs

# The constant of the paper; it damps the difference between the first places.
RANK_OFFSET = 60


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
    if not rankings or len({ranking.num_queries for ranking in rankings}) != 1:
        raise ValueError("reciprocal_rank_fusion: expected one or more rankings of the same queries")
    shares = [1.0] * len(rankings) if weights is None else list(weights)
    if len(shares) != len(rankings) or min(shares) <= 0:
        raise ValueError(f"reciprocal_rank_fusion: expected {len(rankings)} positive weights, got {weights}")
    if rank_offset <= 0:
        raise ValueError(f"rank_offset must be positive, got {rank_offset}")
    rows, ids, scores = [], [], []
    for ranking, share in zip(rankings, shares, strict=True):
        query_rows, places = np.nonzero(ranking.ids != NO_HIT)
        rows.append(query_rows)
        ids.append(ranking.ids[query_rows, places])
        scores.append(share / (rank_offset + places + 1.0))
    keys = np.stack([np.concatenate(rows), np.concatenate(ids)])
    pairs, inverse = np.unique(keys, axis=1, return_inverse=True)
    totals = np.bincount(inverse, weights=np.concatenate(scores), minlength=pairs.shape[1])
    return top_k_of_pairs(
        pairs[0], pairs[1], totals.astype(np.float32), num_queries=rankings[0].num_queries, k=k
    )
