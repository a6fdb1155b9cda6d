"""One or more FAISS indexes of one training, searched as one under the tie rule of `indexing.hits`.

The parts are shards that were not merged, or the segments of a grown index; a merged index is a stack of one.
Candidates are cut by (score, then id) over all parts before they are scored again with the vectors that the
parts store, and an inner product is `indexing.exact`'s, so the hits do not depend on how rows are spread over
parts (but for graphs, each of which is walked on its own). Must not know metadata, files or tuning.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from indexing.arrays import BoolArray, Float32Array, Float64Array, Int64Array
from indexing.exact import inner_products, largest_norm, rounding_margin
from indexing.faiss_library import (
    FaissIndex,
    FaissSelector,
    is_exhaustive,
    row_ids_of,
    scores_at,
    search_positions,
    select_positions,
    select_row_ids,
    split_id_map,
    split_refine,
    stored_vectors,
    supports_selector,
)
from indexing.hits import NO_HIT
from indexing.plan import SearchParams

# Candidates beyond those wanted: enough to see most ties without a second search.
EXTRA_CANDIDATES = 8
# Ties are followed this deep; a larger group of equal scores is cut by FAISS's own order.
MAX_TIE_DEPTH = 4096
# Bound on the stored vectors read at a time, in numbers: 2 MiB, which stays in a core's cache.
MAX_FLOATS_READ = 2**19
STORAGE_CHUNK = 65536


@dataclass(frozen=True, eq=False)
class StackSelection:
    """The rows that a filter lets through.

    row_ids: int64[m], sorted, all of them in the stack.
    selectors: FAISS's form of it for every part; None where the type takes none and hits are filtered.
    """

    row_ids: Int64Array
    selectors: tuple[FaissSelector, ...] | None


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Rows found, [nq, m]: ids int64 (-1 for none), scores float32, part and position in it int64."""

    ids: Int64Array
    scores: Float32Array
    parts: Int64Array
    positions: Int64Array

    @property
    def fields(self) -> tuple[npt.NDArray[Any], ...]:
        return self.ids, self.scores, self.parts, self.positions

    def ordered(self) -> "_Candidates":
        order = np.lexsort((self.ids, -self.scores), axis=-1)
        return _Candidates(*(np.take_along_axis(field, order, axis=1) for field in self.fields))

    def first(self, depth: int) -> "_Candidates":
        return _Candidates(*(field[:, :depth] for field in self.fields))


class _Part:
    """One FAISS index taken apart: row ids by position, what is searched first, what scores again."""

    def __init__(self, index: FaissIndex) -> None:
        self.index = index
        self.num_rows = int(index.ntotal)
        self.row_ids, inner = split_id_map(index)
        self.base, self.storage = split_refine(inner)
        self.has_exact_storage = self.storage is not None and is_exhaustive(self.storage)
        if self.row_ids is None:
            self.storage, self.has_exact_storage = None, False

    @cached_property
    def sorted_row_ids(self) -> Int64Array:
        return np.sort(self._all_row_ids)

    @cached_property
    def _all_row_ids(self) -> Int64Array:
        return row_ids_of(self.index) if self.row_ids is None else self.row_ids

    @cached_property
    def _order(self) -> Int64Array | None:
        """Positions by row id; None where rows lie in that order already, as in an index of one build."""
        ids = self._all_row_ids
        return None if bool((ids[1:] > ids[:-1]).all()) else np.argsort(ids, kind="stable")

    def positions_of(self, row_ids: Int64Array) -> Int64Array:
        places = np.searchsorted(self.sorted_row_ids, row_ids)
        return places if self._order is None else self._order[places]

    def contains(self, row_ids: Int64Array) -> BoolArray:
        known = self.sorted_row_ids
        places = np.minimum(np.searchsorted(known, row_ids), max(len(known) - 1, 0))
        return known[places] == row_ids if len(known) else np.zeros(len(row_ids), dtype=np.bool_)

    def selector(self, row_ids: Int64Array) -> FaissSelector:
        chosen = row_ids[self.contains(row_ids)]
        if self.row_ids is None:
            return select_row_ids(chosen)
        return select_positions(self.positions_of(chosen), self.num_rows)


class IndexStack:
    """Indexes opened for searching. Thread-safe: they must not change while they are searched.

    Args:
        indexes: at least one, of one training.
        deleted: row ids that are never found, as if they had been taken out.
        are_normalised: the rows have length 1, about.
    """

    def __init__(
        self, indexes: Sequence[FaissIndex], *, deleted: Int64Array | None = None, are_normalised: bool
    ) -> None:
        self._parts = [_Part(index) for index in indexes]
        self._deleted = np.unique(deleted) if deleted is not None else np.empty(0, np.int64)
        self._are_normalised = are_normalised
        self.num_stored = sum(part.num_rows for part in self._parts)

    @property
    def keeps_vectors(self) -> bool:
        """Whether uncompressed vectors are stored, so that scores are those of the vectors themselves."""
        return all(part.has_exact_storage for part in self._parts)

    @cached_property
    def sorted_row_ids(self) -> Int64Array:
        """All rows that can be found, int64[n]."""
        ids = np.concatenate([part.sorted_row_ids for part in self._parts])
        ids = ids if len(self._parts) == 1 else np.sort(ids)
        return ids[~np.isin(ids, self._deleted)] if len(self._deleted) else ids

    @property
    def num_rows(self) -> int:
        """Rows that can be found."""
        return len(self.sorted_row_ids) if len(self._deleted) else self.num_stored

    def select(self, row_ids: Int64Array, *, max_rows_scanned: int = 0) -> StackSelection:
        """These rows as a selection; ids that the stack lacks are left out.

        Up to `max_rows_scanned` rows the caller means to score them itself, and no selector is made.
        """
        known, wanted = self.sorted_row_ids, np.unique(row_ids)
        places = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
        chosen = wanted[known[places] == wanted] if len(known) else wanted[:0]
        if len(chosen) <= max_rows_scanned or not all(supports_selector(part.base) for part in self._parts):
            return StackSelection(chosen, None)
        return StackSelection(chosen, tuple(part.selector(chosen) for part in self._parts))

    def vectors_of(self, row_ids: Int64Array) -> Float32Array:
        """Stored vectors float32[p, d] of rows of the stack; only where `keeps_vectors`."""
        out = np.empty((len(row_ids), self._parts[0].index.d), dtype=np.float32)
        for part in self._parts:
            here = part.contains(row_ids)
            if here.any():
                out[here] = stored_vectors(part.storage, part.positions_of(row_ids[here]))
        return out

    def search(
        self,
        vectors: Float32Array,
        depth: int,
        params: SearchParams,
        *,
        selection: StackSelection | None = None,
    ) -> tuple[Int64Array, Float32Array]:
        """The best of the rows looked at: ids int64[nq, depth], scores float32[nq, depth], best first.

        Places beyond the rows found hold -1 and minus infinity. Scores are inner products with the stored
        vectors where the type stores any (`Flat`, `...,RFlat`, `...,Refine(...)`), FAISS's own otherwise.
        """
        if not all(part.storage is not None for part in self._parts):
            found = self._candidates(vectors, depth, params, selection, margin=None).first(depth)
            return _padded(found, depth)
        if all(part.base is part.storage for part in self._parts):
            margin = 2 * rounding_margin(vectors, largest=self._largest_norm)
            found = self._candidates(vectors, depth, params, selection, margin=margin)
        else:
            wide = depth * max(params.refine_factor or 1, 1)
            found = self._candidates(vectors, wide, params, selection, margin=None).first(wide)
        return _padded(self._scored_again(vectors, found, depth).ordered().first(depth), depth)

    def _candidates(
        self,
        vectors: Float32Array,
        depth: int,
        params: SearchParams,
        selection: StackSelection | None,
        *,
        margin: Float64Array | None,
    ) -> _Candidates:
        """At least the best `depth` by (score, id), in order; with a margin all that may be among them."""
        asked = depth + EXTRA_CANDIDATES
        while True:
            found, last_scores = self._ask(vectors, asked, params, selection)
            num_found = (found.ids != NO_HIT).sum(axis=1)
            is_open = np.isfinite(last_scores)
            floors = found.scores[:, min(depth, found.scores.shape[1]) - 1].astype(np.float64)
            short = is_open & (num_found < depth)
            tied = is_open & (last_scores >= floors - (0.0 if margin is None else margin))
            if not short.any() and (not tied.any() or asked >= max(depth, MAX_TIE_DEPTH)):
                return found
            asked *= 2

    def _ask(
        self, vectors: Float32Array, asked: int, params: SearchParams, selection: StackSelection | None
    ) -> tuple[_Candidates, Float32Array]:
        """Every part's best, together in order, and the score below which parts may hold more."""
        found, last_scores = [], np.full(len(vectors), -np.inf, dtype=np.float32)
        for number, part in enumerate(self._parts):
            depth = min(asked, part.num_rows)
            if depth == 0:
                continue
            selector = selection.selectors[number] if selection and selection.selectors is not None else None
            scores, labels = search_positions(part.base, vectors, depth, params, selector=selector)
            if depth < part.num_rows:
                open_scores = np.where(labels[:, -1] != NO_HIT, scores[:, -1], -np.inf).astype(np.float32)
                last_scores = np.maximum(last_scores, open_scores)
            ids = labels if part.row_ids is None else part.row_ids[np.maximum(labels, 0)]
            ids = np.where(self._is_hidden(ids, selection) | (labels == NO_HIT), NO_HIT, ids)
            scores = np.where(ids == NO_HIT, np.float32(-np.inf), scores)
            found.append(_Candidates(ids, scores, np.full(ids.shape, number), labels))
        if not found:
            empty = np.empty((len(vectors), 0), dtype=np.int64)
            return _Candidates(empty, empty.astype(np.float32), empty, empty), last_scores
        columns = zip(*(one.fields for one in found), strict=True)
        together = _Candidates(*(np.concatenate(arrays, axis=1) for arrays in columns))
        return together.ordered(), last_scores

    def _is_hidden(self, ids: Int64Array, selection: StackSelection | None) -> BoolArray:
        hidden = np.zeros(ids.shape, dtype=np.bool_)
        if len(self._deleted):
            hidden |= np.isin(ids, self._deleted)
        if selection is not None and selection.selectors is None:
            hidden |= ~np.isin(ids, selection.row_ids)
        return hidden

    def _scored_again(self, vectors: Float32Array, found: _Candidates, depth: int) -> _Candidates:
        """The candidates with exact inner products in place of the scores that FAISS gave them."""
        scores = np.full(found.scores.shape, -np.inf, dtype=np.float32)
        dim, width = vectors.shape[1], max(found.ids.shape[1], 1)
        step = max(1, MAX_FLOATS_READ // (width * dim))
        for start in range(0, len(vectors), step):
            rows = slice(start, start + step)
            queries, parts, positions = vectors[rows], found.parts[rows], found.positions[rows]
            near = found.ids[rows] != NO_HIT
            if width > 2 * depth:
                near &= self._may_be_first(queries, parts, positions, near, depth)
            query_rows, places = np.nonzero(near)
            stored = self._stored(parts[near], positions[near])
            block = scores[rows]
            block[query_rows, places] = inner_products(queries[query_rows], stored)
        ids = np.where(np.isneginf(scores), NO_HIT, found.ids)
        return _Candidates(ids, scores, found.parts, found.positions)

    def _stored(self, parts: Int64Array, positions: Int64Array) -> Float32Array:
        """Stored vectors float32[p, d] of rows given by part and position."""
        if len(self._parts) == 1:
            return stored_vectors(self._parts[0].storage, positions)
        out = np.empty((len(positions), self._parts[0].index.d), dtype=np.float32)
        for number, part in enumerate(self._parts):
            here = parts == number
            if here.any():
                out[here] = stored_vectors(part.storage, positions[here])
        return out

    def _may_be_first(
        self,
        queries: Float32Array,
        parts: Int64Array,
        positions: Int64Array,
        is_hit: BoolArray,
        depth: int,
    ) -> BoolArray:
        """Which candidates [nq, m] may be among the best `depth`: single precision with a margin."""
        approximate = np.full(is_hit.shape, -np.inf, dtype=np.float32)
        largest = 0.0
        for number, part in enumerate(self._parts):
            here = is_hit & (parts == number)
            if not here.any():
                continue
            if part.has_exact_storage:
                approximate = np.maximum(approximate, scores_at(part.storage, queries, positions, here))
                largest = max(largest, self._largest_norm)
                continue
            decoded = stored_vectors(part.storage, positions[here])
            largest = max(largest, largest_norm(decoded))
            approximate[here] = np.einsum("pd,pd->p", queries[np.nonzero(here)[0]], decoded)
        kth_place = is_hit.shape[1] - depth
        floors = np.partition(approximate, kth_place, axis=1)[:, kth_place]
        margin = rounding_margin(queries, largest=largest)
        return np.asarray(approximate >= (floors - 2 * margin)[:, None])

    @cached_property
    def _largest_norm(self) -> float:
        """Of all stored vectors; read once, and only where lengths are free."""
        if self._are_normalised:
            return 1.01
        largest = 0.0
        for part in self._parts:
            for start in range(0, part.num_rows, STORAGE_CHUNK):
                chunk = np.arange(start, min(start + STORAGE_CHUNK, part.num_rows))
                largest = max(largest, largest_norm(stored_vectors(part.storage, chunk)))
        return largest


def _padded(found: _Candidates, depth: int) -> tuple[Int64Array, Float32Array]:
    missing = depth - found.ids.shape[1]
    if missing <= 0:
        return found.ids, found.scores
    sides = ((0, 0), (0, missing))
    return (
        np.pad(found.ids, sides, constant_values=NO_HIT),
        np.pad(found.scores, sides, constant_values=-np.inf),
    )
