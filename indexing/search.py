"""Search in an opened index under the project's tie rule, in one stage or two, over all rows or some.

FAISS returns equal scores in an order that depends on the index type; `indexing.stack` orders them by (score,
then id). Where full vectors lie in files beside the index, candidates are scored again with those as
`indexing.exact` defines scores. Must not know metadata or how the files are opened.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from indexing.arrays import Float32Array, Int64Array
from indexing.exact import exact_search, inner_products
from indexing.faiss_library import FaissIndex
from indexing.hits import NO_HIT, Hits, top_k_of_pairs
from indexing.plan import Metric, SearchParams
from indexing.stack import EXTRA_CANDIDATES, IndexStack, StackSelection

# Compressed scores misplace neighbours by a few places: this many times k candidates are scored again.
RESCORED_FACTOR = 4
STORAGE_CHUNK = 65536
# A selection of at most this many rows is scored exactly, row by row: cheaper than a graph or lists that must
# skip most of what they visit, and nothing is missed.
MAX_ROWS_SCANNED = 20_000

# row ids int64[p] -> float32[p, d], ready for inner product (normalised if the metric is cosine).
FullVectors: TypeAlias = Callable[[Int64Array], Float32Array]
# The rows that a filter lets through; made once by `IndexSearcher.select`, used for many searches.
Selection: TypeAlias = StackSelection


class IndexSearcher:
    """An index opened for searching. Thread-safe: the index must not change while it is searched.

    Args:
        index: one FAISS index, or the parts of one (shards, segments).
        metric: of the index.
        full_vectors: where the vectors themselves can be read, if they can.
        deleted: row ids that are never found.
    """

    def __init__(
        self,
        index: FaissIndex | Sequence[FaissIndex],
        *,
        metric: Metric,
        full_vectors: FullVectors | None = None,
        deleted: Int64Array | None = None,
    ) -> None:
        parts = list(index) if isinstance(index, list | tuple) else [index]
        self._stack = IndexStack(parts, deleted=deleted, are_normalised=metric == "cosine")
        self._full_vectors = full_vectors

    @property
    def keeps_vectors(self) -> bool:
        """Whether the index itself holds uncompressed vectors, so that files beside it add nothing."""
        return self._stack.keeps_vectors

    @property
    def num_rows(self) -> int:
        """Rows that can be found."""
        return self._stack.num_rows

    def select(self, row_ids: Int64Array) -> Selection:
        """The rows with these ids as a selection; ids that the index does not have are left out."""
        return self._stack.select(row_ids, max_rows_scanned=MAX_ROWS_SCANNED if self._has_vectors else 0)

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
            Hits; scores are exact inner products with the full vectors where these are at hand, else with
            the vectors that the index stores (which may be rounded), else FAISS's own of compressed vectors,
            which can differ in the last digit between batch sizes.

        Raises:
            ValueError: k < 1.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        ids = np.full((len(vectors), k), NO_HIT, dtype=np.int64)
        scores = np.full((len(vectors), k), -np.inf, dtype=np.float32)
        if self._stack.num_stored == 0 or (selection is not None and len(selection.row_ids) == 0):
            return Hits(ids, scores)
        is_zero = ~vectors.any(axis=1)
        if is_zero.any():
            smallest = (self._stack.sorted_row_ids if selection is None else selection.row_ids)[:k]
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
        if self._stack.keeps_vectors:
            return self._stack.vectors_of(row_ids)
        if self._full_vectors is None:
            raise ValueError("this index keeps compressed vectors only and no vector files were given")
        return self._full_vectors(row_ids)

    @property
    def _has_vectors(self) -> bool:
        return self._stack.keeps_vectors or self._full_vectors is not None

    def _search_nonzero(
        self, vectors: Float32Array, k: int, params: SearchParams, selection: Selection | None
    ) -> Hits:
        if selection is not None and selection.selectors is None and self._has_vectors:
            return exact_search(vectors, self._blocks_of(selection), k)
        if self._full_vectors is None or self._stack.keeps_vectors:
            return Hits(*self._stack.search(vectors, k, params, selection=selection))
        depth = RESCORED_FACTOR * k + EXTRA_CANDIDATES
        ids, _ = self._stack.search(vectors, depth, params, selection=selection)
        query_rows, places = np.nonzero(ids != NO_HIT)
        found = ids[query_rows, places]
        rescored = inner_products(vectors[query_rows], self._full_vectors(found))
        return top_k_of_pairs(query_rows, found, rescored, num_queries=len(vectors), k=k)

    def _blocks_of(self, selection: Selection) -> Iterator[tuple[Int64Array, Float32Array]]:
        for start in range(0, len(selection.row_ids), STORAGE_CHUNK):
            chunk = selection.row_ids[start : start + STORAGE_CHUNK]
            yield chunk, self.vectors_of(chunk)
