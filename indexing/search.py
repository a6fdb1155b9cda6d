"""Search in one FAISS index under the project's tie rule, in one stage or two, over all rows or some.

FAISS returns equal scores in an order that depends on the index type. This module asks for a few more
candidates than k, widens while the last of them ties with place k, and orders by (score, then id). Where
full vectors are at hand, in the index or in files beside it, candidates are scored again as `indexing.exact`
defines scores, so Flat gives the same hits as exact search, bit for bit. Must not know metadata or files.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from indexing.arrays import Float32Array, Float64Array, Int64Array
from indexing.exact import exact_search, inner_products, largest_norm, rounding_margin
from indexing.faiss_library import (
    FaissIndex,
    FaissSelector,
    exact_storage,
    row_ids_of,
    search_positions,
    select_positions,
    select_row_ids,
    split_id_map,
    stored_vectors,
    supports_selector,
)
from indexing.hits import NO_HIT, Hits, top_k_of, top_k_of_pairs
from indexing.plan import Metric, SearchParams

# Candidates beyond k: enough to see most ties without a second search.
EXTRA_CANDIDATES = 8
# Compressed scores misplace neighbours by a few places: this many times k candidates are scored again.
RESCORED_FACTOR = 4
# Ties are followed this deep; a larger group of equal scores is cut by FAISS's own order.
MAX_TIE_DEPTH = 4096
STORAGE_CHUNK = 65536
# A selection of at most this many rows is scored exactly, row by row: cheaper than a graph or lists that must
# skip most of what they visit, and nothing is missed.
MAX_ROWS_SCANNED = 20_000

# row ids int64[p] -> float32[p, d], ready for inner product (normalised if the metric is cosine).
FullVectors: TypeAlias = Callable[[Int64Array], Float32Array]


@dataclass(frozen=True, eq=False)
class Selection:
    """The rows that a filter lets through; made once by `IndexSearcher.select`, used for many searches.

    row_ids: int64[m], sorted, all of them in the index.
    selector: FAISS's form of it; None where the type takes none or the rows are scanned.
    """

    row_ids: Int64Array
    selector: FaissSelector | None


class IndexSearcher:
    """An index opened for searching. Thread-safe: the index must not change while it is searched."""

    def __init__(self, index: FaissIndex, *, metric: Metric, full_vectors: FullVectors | None = None) -> None:
        self._row_ids, self._inner = split_id_map(index)
        self._index = index
        self._storage = exact_storage(self._inner) if self._row_ids is not None else None
        self._full_vectors = full_vectors
        self._metric = metric
        self._num_rows = int(index.ntotal)

    @property
    def keeps_vectors(self) -> bool:
        """Whether the index itself holds uncompressed vectors, so that files beside it add nothing."""
        return self._storage is not None

    def select(self, row_ids: Int64Array) -> Selection:
        """The rows with these ids as a selection; ids that the index does not have are left out."""
        wanted = np.unique(row_ids)
        known = self._sorted_row_ids
        places = np.searchsorted(known, wanted)
        places[places == len(known)] = 0
        chosen = wanted[known[places] == wanted] if len(known) else wanted[:0]
        scanned = len(chosen) <= MAX_ROWS_SCANNED and (self.keeps_vectors or self._full_vectors is not None)
        if scanned or not supports_selector(self._inner):
            return Selection(chosen, None)
        if self._row_ids is None:
            return Selection(chosen, select_row_ids(chosen))
        return Selection(chosen, select_positions(self._positions_of(chosen), self._num_rows))

    def search(
        self, vectors: Float32Array, k: int, *, params: SearchParams, selection: Selection | None = None
    ) -> Hits:
        """The best k rows for each query among those the index looks at.

        Args:
            vectors: float32[nq, d], finite, normalised if the metric is cosine. A zero query ties with every
                row and gets the k smallest row ids, with score 0.
            k: places wanted; may exceed the number of rows.
            params: settings of this search.
            selection: only these rows are found. Few rows, or an index type that cannot leave rows out, are
                scored exactly one by one where full vectors are at hand.

        Returns:
            Hits; scores are exact inner products where full vectors are at hand, otherwise those of the
            compressed vectors, which can differ in the last digit between batch sizes.

        Raises:
            ValueError: k < 1.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        ids = np.full((len(vectors), k), NO_HIT, dtype=np.int64)
        scores = np.full((len(vectors), k), -np.inf, dtype=np.float32)
        if self._num_rows == 0 or (selection is not None and len(selection.row_ids) == 0):
            return Hits(ids, scores)
        is_zero = ~vectors.any(axis=1)
        if is_zero.any():
            smallest = (self._sorted_row_ids if selection is None else selection.row_ids)[:k]
            ids[is_zero, : len(smallest)] = smallest
            scores[is_zero, : len(smallest)] = 0.0
        if not is_zero.all():
            found = self._search_nonzero(np.ascontiguousarray(vectors[~is_zero]), k, params, selection)
            ids[~is_zero], scores[~is_zero] = found.ids, found.scores
        return Hits(ids, scores)

    def vectors_of(self, row_ids: Int64Array) -> Float32Array:
        """Full vectors float32[p, d] of rows of the index, from the index or from the files beside it.

        Raises:
            ValueError: no full vectors are at hand.
        """
        if self._storage is not None:
            return stored_vectors(self._storage, self._positions_of(row_ids))
        if self._full_vectors is None:
            raise ValueError("this index keeps compressed vectors only and no vector files were given")
        return self._full_vectors(row_ids)

    @cached_property
    def _sorted_row_ids(self) -> Int64Array:
        return np.sort(row_ids_of(self._index))

    @cached_property
    def _order(self) -> Int64Array | None:
        """Positions by row id; None where rows lie in that order already, as in an index of one build."""
        assert self._row_ids is not None
        in_order = bool((self._row_ids[1:] > self._row_ids[:-1]).all())
        return None if in_order else np.argsort(self._row_ids, kind="stable")

    @cached_property
    def _largest_norm(self) -> float:
        if self._metric == "cosine" or self._storage is None:
            return 1.0
        starts = range(0, self._num_rows, STORAGE_CHUNK)
        chunks = (np.arange(start, min(start + STORAGE_CHUNK, self._num_rows)) for start in starts)
        return max(largest_norm(stored_vectors(self._storage, chunk)) for chunk in chunks)

    def _positions_of(self, row_ids: Int64Array) -> Int64Array:
        places = np.searchsorted(self._sorted_row_ids, row_ids)
        return places if self._order is None else self._order[places]

    def _search_nonzero(
        self, vectors: Float32Array, k: int, params: SearchParams, selection: Selection | None
    ) -> Hits:
        has_vectors = self._storage is not None or self._full_vectors is not None
        if selection is not None and selection.selector is None and has_vectors:
            return exact_search(vectors, self._blocks_of(selection), k)
        scores, labels = self._candidates(vectors, k, params, selection)
        row_ids = self._to_row_ids(labels)
        if selection is not None and selection.selector is None:
            allowed = np.isin(row_ids, selection.row_ids)
            row_ids, scores = np.where(allowed, row_ids, NO_HIT), np.where(allowed, scores, -np.inf)
        if not has_vectors:
            return top_k_of(row_ids, scores, k)
        query_rows, places = np.nonzero(row_ids != NO_HIT)
        found = row_ids[query_rows, places]
        if self._storage is not None:
            rows = stored_vectors(self._storage, labels[query_rows, places])
        else:
            rows = self.vectors_of(found)
        rescored = inner_products(vectors[query_rows], rows)
        return top_k_of_pairs(query_rows, found, rescored, num_queries=len(vectors), k=k)

    def _blocks_of(self, selection: Selection) -> Iterator[tuple[Int64Array, Float32Array]]:
        for start in range(0, len(selection.row_ids), STORAGE_CHUNK):
            chunk = selection.row_ids[start : start + STORAGE_CHUNK]
            yield chunk, self.vectors_of(chunk)

    def _candidates(
        self, vectors: Float32Array, k: int, params: SearchParams, selection: Selection | None
    ) -> tuple[Float32Array, Int64Array]:
        margin: Float64Array = np.zeros(len(vectors))
        selector = None if selection is None else selection.selector
        if selection is not None and selector is None:
            # This type cannot leave rows out and there are no vectors to scan: everything is ranked.
            return search_positions(self._inner, vectors, self._num_rows, params)
        wanted = k + EXTRA_CANDIDATES
        if self._storage is not None:
            margin = 2 * rounding_margin(vectors, largest=self._largest_norm)
        elif self._full_vectors is not None:
            wanted = RESCORED_FACTOR * k + EXTRA_CANDIDATES
        depth = min(self._num_rows, wanted)
        while True:
            scores, labels = search_positions(self._inner, vectors, depth, params, selector=selector)
            # Place k may tie with rows that were cut off: look deeper until the last is clearly worse.
            cut_in_tie = (labels[:, -1] != NO_HIT) & (scores[:, -1] >= scores[:, min(k, depth) - 1] - margin)
            if depth == self._num_rows or depth >= max(k, MAX_TIE_DEPTH) or not cut_in_tie.any():
                return scores, labels
            depth = min(self._num_rows, 2 * depth)

    def _to_row_ids(self, labels: Int64Array) -> Int64Array:
        if self._row_ids is None:
            return labels
        return np.where(labels == NO_HIT, NO_HIT, self._row_ids[np.maximum(labels, 0)])
