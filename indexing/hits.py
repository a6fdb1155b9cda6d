"""Ranked hits, and the one rule that orders them.

The tie rule of this project: a higher score ranks first; among equal scores the smaller id ranks first.
Every searcher, merge and fusion returns hits in this order, so that a ranking does not depend on the index
type, the number of shards or the batch size. Must not know where the scores come from.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indexing.arrays import Float32Array, Int64Array, shorten

NO_HIT = -1


@dataclass(frozen=True, eq=False)
class Hits:
    """The best k rows for each of nq queries, best first.

    `ids int64[nq, k]`: row ids, `NO_HIT` (-1) in the places after the last hit.
    `scores float32[nq, k]`: similarity, higher is better, minus infinity where there is no hit.

    Raises:
        ValueError: other shapes or dtypes.
    """

    ids: Int64Array
    scores: Float32Array

    def __post_init__(self) -> None:
        if self.ids.ndim != 2 or self.ids.shape != self.scores.shape:
            raise ValueError(
                "Hits: expected ids and scores of one shape [nq, k], "
                f"got {self.ids.shape} and {self.scores.shape}"
            )
        if self.ids.dtype != np.int64 or self.scores.dtype != np.float32:
            raise ValueError(
                f"Hits: expected int64 ids and float32 scores, got {self.ids.dtype} and {self.scores.dtype}"
            )

    @property
    def num_queries(self) -> int:
        """How many queries were asked."""
        return int(self.ids.shape[0])

    @property
    def k(self) -> int:
        """Places for each query."""
        return int(self.ids.shape[1])

    def equals(self, other: "Hits") -> bool:
        """Same ids and bit-equal scores in the same places."""
        return np.array_equal(self.ids, other.ids) and np.array_equal(self.scores, other.scores)

    def first(self, k: int) -> "Hits":
        """The best `k` places (all of them when there are fewer)."""
        return Hits(self.ids[:, :k], self.scores[:, :k])


def top_k_of(ids: npt.ArrayLike, scores: npt.ArrayLike, k: int) -> Hits:
    """The best k of each row under the tie rule.

    Args:
        ids: int[nq, m] candidates, `NO_HIT` for an empty place.
        scores: float[nq, m]; ignored at empty places.
        k: places wanted; rows with fewer candidates end in `NO_HIT`.

    Raises:
        ValueError: shapes differ, k < 1, a NaN score, or an id twice in one row.
    """
    id_matrix = np.asarray(ids, dtype=np.int64)
    score_matrix = np.asarray(scores, dtype=np.float32)
    if id_matrix.ndim != 2 or id_matrix.shape != score_matrix.shape:
        raise ValueError(f"top_k_of: expected [nq, m] twice, got {id_matrix.shape} and {score_matrix.shape}")
    query_rows, columns = np.nonzero(id_matrix != NO_HIT)
    pairs = (query_rows, id_matrix[query_rows, columns], score_matrix[query_rows, columns])
    return top_k_of_pairs(*pairs, num_queries=len(id_matrix), k=k)


def top_k_of_pairs(
    query_rows: Int64Array, ids: Int64Array, scores: Float32Array, *, num_queries: int, k: int
) -> Hits:
    """The best k candidates of each query under the tie rule, from a flat list of candidates.

    Args:
        query_rows: int64[p], which query (0 .. num_queries - 1) the candidate belongs to, in any order.
        ids: int64[p], no `NO_HIT`.
        scores: float32[p].
        num_queries: nq of the result.
        k: places wanted.

    Raises:
        ValueError: k < 1, a NaN score, or an id twice for one query.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if np.isnan(scores).any():
        raise ValueError(f"NaN score for row ids {shorten(ids[np.isnan(scores)].tolist())}")
    order = np.lexsort((ids, -scores, query_rows))
    sorted_rows, sorted_ids, sorted_scores = query_rows[order], ids[order], scores[order]
    _refuse_repeated_ids(query_rows, ids)
    starts = np.searchsorted(sorted_rows, np.arange(num_queries))
    places = np.arange(len(order)) - starts[sorted_rows]
    kept = places < k
    out_ids = np.full((num_queries, k), NO_HIT, dtype=np.int64)
    out_scores = np.full((num_queries, k), -np.inf, dtype=np.float32)
    out_ids[sorted_rows[kept], places[kept]] = sorted_ids[kept]
    out_scores[sorted_rows[kept], places[kept]] = sorted_scores[kept]
    return Hits(out_ids, out_scores)


def merge_hits(parts: Sequence[Hits], k: int) -> Hits:
    """The best k over several disjoint shards, as one search over all of them would give.

    Each part must hold the shard's own best k (or all of its rows).

    Raises:
        ValueError: no parts, different numbers of queries, or a row that is in two shards.
    """
    if not parts:
        raise ValueError("merge_hits: nothing to merge")
    counts = {part.num_queries for part in parts}
    if len(counts) != 1:
        raise ValueError(f"merge_hits: the parts answer different numbers of queries: {sorted(counts)}")
    ids = np.concatenate([part.ids for part in parts], axis=1)
    scores = np.concatenate([part.scores for part in parts], axis=1)
    return top_k_of(ids, scores, k)


def recall_at(found: Hits, exact: Hits, k: int) -> float:
    """Share of the exact best k that `found` has among its first k, ties counted in the finder's favour.

    A found id counts when the exact search scores it at least as high as its own k-th hit. So that ties at
    place k are seen, `exact` should hold more than k places; ids beyond its last place count as wrong.
    Queries for which the exact search has no hit are left out; 1.0 if that leaves none.
    """
    num_right, num_wanted = count_right(found, exact, k)
    return float(num_right.sum() / num_wanted.sum()) if num_wanted.sum() else 1.0


def count_right(found: Hits, exact: Hits, k: int) -> tuple[Int64Array, Int64Array]:
    """Hits found and hits wanted of each query, int64[nq] both, counted as `recall_at` does."""
    num_wanted = (exact.ids[:, :k] != NO_HIT).sum(axis=1)
    last = np.maximum(num_wanted - 1, 0)
    floors = exact.scores[np.arange(exact.num_queries), last]
    good = np.where(exact.scores >= floors[:, None], exact.ids, NO_HIT)
    matches = (found.ids[:, :k, None] == good[:, None, :]) & (found.ids[:, :k, None] != NO_HIT)
    num_right = np.minimum(matches.any(axis=2).sum(axis=1), num_wanted)
    return num_right.astype(np.int64), num_wanted.astype(np.int64)


def _refuse_repeated_ids(query_rows: Int64Array, ids: Int64Array) -> None:
    order = np.lexsort((ids, query_rows))
    rows, sorted_ids = query_rows[order], ids[order]
    repeated = (rows[1:] == rows[:-1]) & (sorted_ids[1:] == sorted_ids[:-1])
    if repeated.any():
        names = np.unique(sorted_ids[1:][repeated]).tolist()
        raise ValueError(
            f"row ids {shorten(names)} occur twice among the candidates of one query: "
            "the shards overlap or one of them was given twice"
        )
