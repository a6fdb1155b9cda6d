"""Search in one FAISS index under the project's tie rule.

FAISS returns equal scores in an order that depends on the index type. This module asks for a few more
candidates than k, widens while the last of them ties with place k, and orders by (score, then id). Where the
index keeps uncompressed vectors the candidates are scored again as `indexing.exact` defines scores, so Flat
gives the same hits as exact search, bit for bit. Must not know metadata or files.
"""

from functools import cached_property

import numpy as np

from indexing.arrays import Float32Array, Float64Array, Int64Array
from indexing.exact import inner_products, largest_norm, rounding_margin
from indexing.faiss_library import (
    FaissIndex,
    exact_storage,
    row_ids_of,
    search_positions,
    split_id_map,
    stored_vectors,
)
from indexing.hits import NO_HIT, Hits, top_k_of, top_k_of_pairs
from indexing.plan import Metric, SearchParams

# Candidates beyond k: enough to see most ties without a second search.
EXTRA_CANDIDATES = 8
# Ties are followed this deep; a larger group of equal scores is cut by FAISS's own order.
MAX_TIE_DEPTH = 4096
STORAGE_CHUNK = 65536


class IndexSearcher:
    """An index opened for searching. Thread-safe: the index must not change while it is searched."""

    def __init__(self, index: FaissIndex, *, metric: Metric) -> None:
        self._row_ids, self._inner = split_id_map(index)
        self._index = index
        self._storage = exact_storage(self._inner) if self._row_ids is not None else None
        self._metric = metric
        self._num_rows = int(index.ntotal)

    def search(self, vectors: Float32Array, k: int, *, params: SearchParams) -> Hits:
        """The best k rows for each query among those the index looks at.

        Args:
            vectors: float32[nq, d], finite, normalised if the metric is cosine. A zero query ties with every
                row and gets the k smallest row ids, with score 0.
            k: places wanted; may exceed the number of rows.
            params: settings of this search.

        Returns:
            Hits; scores are exact inner products where the index stores uncompressed vectors, otherwise
            those of the compressed vectors, which can differ in the last digit between batch sizes.

        Raises:
            ValueError: k < 1.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        ids = np.full((len(vectors), k), NO_HIT, dtype=np.int64)
        scores = np.full((len(vectors), k), -np.inf, dtype=np.float32)
        if self._num_rows == 0:
            return Hits(ids, scores)
        is_zero = ~vectors.any(axis=1)
        if is_zero.any():
            smallest = self._sorted_row_ids[:k]
            ids[is_zero, : len(smallest)] = smallest
            scores[is_zero, : len(smallest)] = 0.0
        if not is_zero.all():
            found = self._search_nonzero(np.ascontiguousarray(vectors[~is_zero]), k, params)
            ids[~is_zero], scores[~is_zero] = found.ids, found.scores
        return Hits(ids, scores)

    @cached_property
    def _sorted_row_ids(self) -> Int64Array:
        return np.sort(row_ids_of(self._index))

    @cached_property
    def _largest_norm(self) -> float:
        if self._metric == "cosine" or self._storage is None:
            return 1.0
        starts = range(0, self._num_rows, STORAGE_CHUNK)
        chunks = (np.arange(start, min(start + STORAGE_CHUNK, self._num_rows)) for start in starts)
        return max(largest_norm(stored_vectors(self._storage, chunk)) for chunk in chunks)

    def _search_nonzero(self, vectors: Float32Array, k: int, params: SearchParams) -> Hits:
        scores, labels = self._candidates(vectors, k, params)
        if self._storage is None or self._row_ids is None:
            return top_k_of(self._to_row_ids(labels), scores, k)
        query_rows, places = np.nonzero(labels != NO_HIT)
        positions = labels[query_rows, places]
        rescored = inner_products(vectors[query_rows], stored_vectors(self._storage, positions))
        row_ids = self._row_ids[positions]
        return top_k_of_pairs(query_rows, row_ids, rescored, num_queries=len(vectors), k=k)

    def _candidates(
        self, vectors: Float32Array, k: int, params: SearchParams
    ) -> tuple[Float32Array, Int64Array]:
        margin: Float64Array = np.zeros(len(vectors))
        if self._storage is not None:
            margin = 2 * rounding_margin(vectors, largest=self._largest_norm)
        depth = min(self._num_rows, k + EXTRA_CANDIDATES)
        while True:
            scores, labels = search_positions(self._inner, vectors, depth, params)
            # Place k may tie with rows that were cut off: look deeper until the last is clearly worse.
            cut_in_tie = (labels[:, -1] != NO_HIT) & (scores[:, -1] >= scores[:, min(k, depth) - 1] - margin)
            if depth == self._num_rows or depth >= max(k, MAX_TIE_DEPTH) or not cut_in_tie.any():
                return scores, labels
            depth = min(self._num_rows, 2 * depth)

    def _to_row_ids(self, labels: Int64Array) -> Int64Array:
        if self._row_ids is None:
            return labels
        return np.where(labels == NO_HIT, NO_HIT, self._row_ids[np.maximum(labels, 0)])
