"""One or more FAISS indexes of one training, searched as one under the tie rule of `indexing.hits`.

The parts are shards that were not merged, or the segments of a grown index; a merged index is a stack of one.
Candidates are cut by (score, then id) over all parts before they are scored again with the vectors that the
parts store, and an inner product is `indexing.exact`'s, so the hits do not depend on how rows are spread over
parts (but for graphs, each of which is walked on its own).

Rows that must not be found (deleted, or kept out by a filter) may be just those around a query. Where most
of what it meets is such, FAISS is told to leave them out, and more lists are visited, or more of the graph,
until that changes next to nothing. Must not know metadata, files or tuning.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from indexing.arrays import BoolArray, Float32Array, Float64Array, Int64Array, is_among
from indexing.exact import inner_products, largest_norm, rounding_margin
from indexing.faiss_library import (
    FaissIndex,
    FaissSelector,
    is_graph,
    num_lists,
    scores_at,
    search_positions,
    stored_vectors,
    supports_selector,
)
from indexing.hits import NO_HIT
from indexing.plan import SearchParams
from indexing.stack_part import Candidates, StackPart

# Candidates beyond those wanted: enough to see most ties without a second search.
EXTRA_CANDIDATES = 8
# Ties are followed this deep for all queries of a batch together, deeper for each alone.
MAX_TIE_DEPTH = 4096
# Queries at a time where FAISS cannot leave rows out, so that each may need very many candidates.
SKIPPING_BATCH = 16
# A wider search that changes at most this share of the hits is the last one.
SETTLED_SHARE = 0.05
# FAISS's own choice; and beyond which a scan of all rows costs less than the walk (its time is quadratic).
DEFAULT_EF_SEARCH = 16
MAX_EF_SEARCH = 4096
# Bound on the stored vectors read at a time, in numbers: 2 MiB.
MAX_FLOATS_READ = 2**19
STORAGE_CHUNK = 65536
_NORMALISED = 1.1  # no vector of length 1 is longer, nor decoded from half floats or 8 bits


@dataclass(frozen=True, eq=False)
class StackSelection:
    """The rows that a filter lets through.

    row_ids: int64[m], sorted, all of them in the stack.
    selectors: FAISS's form of it for every part; None where the type takes none and hits are filtered.
    """

    row_ids: Int64Array
    selectors: tuple[FaissSelector, ...] | None


@dataclass(frozen=True, eq=False)
class _Found:
    """Candidates by score; is_cut bool[nq]: there are more ties; num_hidden int64[nq]: better, but hidden."""

    candidates: Candidates
    is_cut: BoolArray
    num_hidden: Int64Array


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
        self._parts = [StackPart(index) for index in indexes]
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
        return ids[~is_among(ids, self._deleted)] if len(self._deleted) else ids

    @property
    def num_rows(self) -> int:
        """Rows that can be found."""
        return len(self.sorted_row_ids) if len(self._deleted) else self.num_stored

    @cached_property
    def _takes_selectors(self) -> bool:
        return all(supports_selector(part.base) for part in self._parts)

    @cached_property
    def _alive(self) -> StackSelection:
        """All rows but the deleted ones, as a selection."""
        selectors = [part.selector_without(self._deleted) for part in self._parts]
        return StackSelection(self.sorted_row_ids, tuple(selectors))

    def select(self, row_ids: Int64Array, *, max_rows_scanned: int = 0) -> StackSelection:
        """These rows as a selection; ids that the stack lacks are left out.

        Up to `max_rows_scanned` rows the caller means to score them itself, and no selector is made.
        """
        wanted = np.unique(row_ids)
        chosen = wanted[is_among(wanted, self.sorted_row_ids)]
        if len(chosen) <= max_rows_scanned or not self._takes_selectors:
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
        is_skipping = (selection is not None or len(self._deleted) > 0) and not self._takes_selectors
        if is_skipping and len(vectors) > SKIPPING_BATCH:
            starts = range(0, len(vectors), SKIPPING_BATCH)
            blocks = [vectors[start : start + SKIPPING_BATCH] for start in starts]
            pairs = [self.search(block, depth, params, selection=selection) for block in blocks]
            return np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs])
        ids, scores, is_cut = self._search(vectors, depth, params, selection, max_depth=MAX_TIE_DEPTH)
        for query in np.flatnonzero(is_cut & ~self._has_graphs):
            alone = self._search(
                vectors[query : query + 1], depth, params, selection, max_depth=self.num_stored
            )
            ids[query], scores[query] = alone[0][0], alone[1][0]
        return ids, scores

    @cached_property
    def _has_graphs(self) -> bool:
        return any(is_graph(part.base) for part in self._parts)

    def _search(
        self,
        vectors: Float32Array,
        depth: int,
        params: SearchParams,
        selection: StackSelection | None,
        *,
        max_depth: int,
    ) -> tuple[Int64Array, Float32Array, BoolArray]:
        """Ids, scores, and for which queries there are more ties than `max_depth` candidates show."""
        if not all(part.storage is not None for part in self._parts):
            found = self._found(vectors, depth, params, selection, max_depth=max_depth)
            final = found.candidates.ordered()
            return final.ids, final.scores, found.is_cut
        if all(part.base is part.storage for part in self._parts):
            margin = 2 * rounding_margin(vectors, largest=self._largest_norm)
            found = self._candidates(vectors, depth, params, selection, margin=margin, max_depth=max_depth)
        else:
            wide = depth * max(params.refine_factor or 1, 1)
            found = self._found(vectors, wide, params, selection, max_depth=max_depth)
        best = self._scored_again(vectors, found.candidates, depth).ordered().padded(depth).first(depth)
        return best.ids, best.scores, found.is_cut

    def _found(
        self,
        vectors: Float32Array,
        depth: int,
        params: SearchParams,
        selection: StackSelection | None,
        *,
        max_depth: int,
    ) -> _Found:
        """The best `depth` by (score, id), best first, of all that a search as wide as it takes looks at."""
        narrowed = selection or (self._alive if len(self._deleted) and self._takes_selectors else None)
        if narrowed is None or narrowed.selectors is None:
            return _cut(self._candidates(vectors, depth, params, selection, max_depth=max_depth), depth)
        wanted = min(depth, len(narrowed.row_ids))
        found = _Found(
            Candidates.empty(len(vectors), depth),
            np.zeros(len(vectors), dtype=np.bool_),
            np.zeros(len(vectors), dtype=np.int64),
        )
        is_open = np.ones(len(vectors), dtype=np.bool_)
        if 2 * len(narrowed.row_ids) >= self.num_stored:
            # Most rows may be found: those that may not are skipped, which is enough where they are few.
            skipping = StackSelection(narrowed.row_ids, None) if selection else None
            first = self._candidates(vectors, depth, params, skipping, max_depth=max_depth, is_patient=False)
            found = _cut(first, depth)
            is_open = (found.candidates.num_found < wanted) | (found.num_hidden > depth)
        return self._widened(vectors, depth, params, narrowed, found, is_open, max_depth=max_depth)

    def _widened(
        self,
        vectors: Float32Array,
        depth: int,
        params: SearchParams,
        selection: StackSelection,
        found: _Found,
        is_open: BoolArray,
        *,
        max_depth: int,
    ) -> _Found:
        """With better candidates of the open queries: FAISS sees the selection, and more and more rows."""
        wanted = min(depth, len(selection.row_ids))
        queries, wider, is_first = np.flatnonzero(is_open), params, True
        while len(queries):
            again = _cut(
                self._candidates(vectors[queries], depth, wider, selection, max_depth=max_depth), depth
            )
            num_new = again.candidates.num_new(found.candidates, queries)
            settled = (num_new <= SETTLED_SHARE * wanted) & (again.candidates.num_found >= wanted)
            found.is_cut[queries] = again.is_cut
            found = replace(found, candidates=found.candidates.replaced(queries, again.candidates))
            if not is_first:
                queries = queries[~settled]
            is_first = False
            following = self._wider(wider)
            if following is None:
                break
            wider = following
        return found

    def _wider(self, params: SearchParams) -> SearchParams | None:
        """Settings that look at twice as many lists, or at twice as much of a graph; None after all of it."""
        probes, effort = params.num_probes or 1, params.ef_search or DEFAULT_EF_SEARCH
        if probes < self._most_lists:
            return replace(params, num_probes=min(2 * probes, self._most_lists))
        if self._has_graphs and effort < self.num_stored:
            return replace(params, ef_search=2 * effort if effort < MAX_EF_SEARCH else self.num_stored)
        return None

    @cached_property
    def _most_lists(self) -> int:
        return max(num_lists(part.base) for part in self._parts)

    def _candidates(
        self,
        vectors: Float32Array,
        depth: int,
        params: SearchParams,
        selection: StackSelection | None,
        *,
        margin: Float64Array | None = None,
        max_depth: int,
        is_patient: bool = True,
    ) -> _Found:
        """At least the best `depth` by (score, id), best first; with a margin all that may be among them.

        Fewer where FAISS shows no more; without patience already where most of what it shows is hidden.
        """
        asked = depth + EXTRA_CANDIDATES
        most_asked = self.num_stored if is_patient else 2 * asked
        found = Candidates.empty(len(vectors), 0)
        is_cut, num_hidden = np.zeros(len(vectors), np.bool_), np.zeros(len(vectors), np.int64)
        queries = np.arange(len(vectors))
        while len(queries):
            again, last_scores, hidden_scores = self._ask(vectors[queries], asked, params, selection)
            whole = len(queries) == len(vectors)
            found = again if whole else found.padded(again.ids.shape[1]).replaced(queries, again)
            is_open = np.isfinite(last_scores)
            floors = again.scores[:, min(depth, again.scores.shape[1]) - 1].astype(np.float64)
            short = is_open & (again.num_found < depth)
            tied = is_open & ~short & (last_scores >= floors - (0.0 if margin is None else margin[queries]))
            is_cut[queries], num_hidden[queries] = tied, (hidden_scores > floors[:, None]).sum(axis=1)
            goes_on = (short & (asked < most_asked)) | (tied & (asked < max(depth, max_depth)))
            queries, asked = queries[goes_on], 2 * asked
        return _Found(found, is_cut, num_hidden)

    def _ask(
        self, vectors: Float32Array, asked: int, params: SearchParams, selection: StackSelection | None
    ) -> tuple[Candidates, Float32Array, Float32Array]:
        """Every part's best, best first; the score below which parts may hold more; hidden scores."""
        found, last_scores = [Candidates.empty(len(vectors), 0)], np.full(len(vectors), -np.inf, np.float32)
        hidden_scores = [np.empty((len(vectors), 0), dtype=np.float32)]
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
            is_hidden = (labels != NO_HIT) & self._is_hidden(ids, selection)
            hidden_scores.append(np.where(is_hidden, scores, np.float32(-np.inf)))
            ids = np.where(is_hidden | (labels == NO_HIT), NO_HIT, ids)
            scores = np.where(ids == NO_HIT, np.float32(-np.inf), scores)
            found.append(Candidates(ids, scores, np.full(ids.shape, number), labels))
        columns = zip(*(one.fields for one in found), strict=True)
        together = Candidates(*(np.concatenate(arrays, axis=1) for arrays in columns))
        return together.by_score(), last_scores, np.concatenate(hidden_scores, axis=1)

    def _is_hidden(self, ids: Int64Array, selection: StackSelection | None) -> BoolArray:
        if selection is None:
            return is_among(ids, self._deleted)
        if selection.selectors is None:
            return ~is_among(ids, selection.row_ids)
        return np.zeros(ids.shape, dtype=np.bool_)

    def _scored_again(self, vectors: Float32Array, found: Candidates, depth: int) -> Candidates:
        """The candidates with exact inner products in place of the scores that FAISS gave them."""
        scores = np.full(found.scores.shape, -np.inf, dtype=np.float32)
        dim, width = vectors.shape[1], max(found.ids.shape[1], 1)
        has_choice = width > 2 * depth
        num_read = 2 * depth if has_choice and self.keeps_vectors else width
        step = max(1, MAX_FLOATS_READ // (num_read * dim))
        for start in range(0, len(vectors), step):
            rows = slice(start, start + step)
            queries, parts, positions = vectors[rows], found.parts[rows], found.positions[rows]
            near = found.ids[rows] != NO_HIT
            if has_choice:
                near &= self._may_be_first(queries, parts, positions, near, depth)
            query_rows, places = np.nonzero(near)
            stored = self._stored(parts[near], positions[near])
            block = scores[rows]
            block[query_rows, places] = inner_products(queries[query_rows], stored)
        ids = np.where(np.isneginf(scores), NO_HIT, found.ids)
        return Candidates(ids, scores, found.parts, found.positions)

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
            largest = max(largest, _NORMALISED if self._are_normalised else largest_norm(decoded))
            approximate[here] = np.einsum("pd,pd->p", queries[np.nonzero(here)[0]], decoded)
        kth_place = is_hit.shape[1] - depth
        floors = np.partition(approximate, kth_place, axis=1)[:, kth_place]
        margin = rounding_margin(queries, largest=largest)
        return np.asarray(approximate >= (floors - 2 * margin)[:, None])

    @cached_property
    def _largest_norm(self) -> float:
        """Of all stored vectors; read once, and only where lengths are free."""
        if self._are_normalised:
            return _NORMALISED
        largest = 0.0
        for part in self._parts:
            for start in range(0, part.num_rows, STORAGE_CHUNK):
                chunk = np.arange(start, min(start + STORAGE_CHUNK, part.num_rows))
                largest = max(largest, largest_norm(stored_vectors(part.storage, chunk)))
        return largest


def _cut(found: _Found, depth: int) -> _Found:
    return replace(found, candidates=found.candidates.cut(depth))
