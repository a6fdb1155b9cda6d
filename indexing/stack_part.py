"""One FAISS index of a stack, taken apart, and the candidates that searching such parts gives.

Owns where a row lies in its part and the order of candidates under the tie rule of `indexing.hits`. Must not
know how parts are searched together.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from indexing.arrays import BoolArray, Float32Array, Int64Array, is_among
from indexing.faiss_library import (
    FaissIndex,
    FaissSelector,
    is_exhaustive,
    row_ids_of,
    select_all_but,
    select_positions,
    select_row_ids,
    split_id_map,
    split_refine,
)
from indexing.hits import NO_HIT


@dataclass(frozen=True, eq=False)
class Candidates:
    """Rows found, [nq, m]: ids int64 (-1 for none), scores float32, part and position in it int64."""

    ids: Int64Array
    scores: Float32Array
    parts: Int64Array
    positions: Int64Array

    @staticmethod
    def empty(num_queries: int, depth: int) -> "Candidates":
        """Nothing found in `depth` places of each query."""
        none = np.full((num_queries, depth), NO_HIT, dtype=np.int64)
        return Candidates(none, np.full(none.shape, -np.inf, np.float32), np.zeros_like(none), none)

    @property
    def fields(self) -> tuple[npt.NDArray[Any], ...]:
        """All four."""
        return self.ids, self.scores, self.parts, self.positions

    @property
    def num_found(self) -> Int64Array:
        """Rows found for each query, int64[nq]."""
        return np.asarray((self.ids != NO_HIT).sum(axis=1), dtype=np.int64)

    def by_score(self) -> "Candidates":
        """Best scores first, in any order among equal ones."""
        if bool((self.scores[:, 1:] <= self.scores[:, :-1]).all()):
            return self
        return self._taken(np.argsort(-self.scores, axis=1))

    def ordered(self) -> "Candidates":
        """By score, then id."""
        ranked = self.by_score()
        ids, scores = ranked.ids, ranked.scores
        is_wrong = (scores[:, 1:] == scores[:, :-1]) & (ids[:, 1:] < ids[:, :-1])
        return ranked._ordered_in(np.flatnonzero(is_wrong.any(axis=1)))

    def cut(self, depth: int) -> "Candidates":
        """The best `depth` by score, then id, of candidates `by_score`; equal ones in any order."""
        wide = self.padded(depth)
        if wide.ids.shape[1] > depth:
            is_tied = (wide.scores[:, depth - 1] == wide.scores[:, depth]) & (wide.ids[:, depth] != NO_HIT)
            wide = wide._ordered_in(np.flatnonzero(is_tied))
        return wide.first(depth)

    def _ordered_in(self, queries: Int64Array) -> "Candidates":
        """These queries' candidates by score, then id; done for few, as a sort by two keys is slow."""
        if len(queries) == 0:
            return self
        some = Candidates(*(field[queries] for field in self.fields))
        return self.replaced(queries, some._taken(np.lexsort((some.ids, -some.scores), axis=-1)))

    def _taken(self, order: Int64Array) -> "Candidates":
        return Candidates(*(np.take_along_axis(field, order, axis=1) for field in self.fields))

    def first(self, depth: int) -> "Candidates":
        """The first `depth` of each query, or all."""
        return Candidates(*(field[:, :depth] for field in self.fields))

    def padded(self, depth: int) -> "Candidates":
        """At least `depth` places for each query, empty ones last."""
        if self.ids.shape[1] >= depth:
            return self
        sides = ((0, 0), (0, depth - self.ids.shape[1]))
        fills = (NO_HIT, -np.inf, 0, NO_HIT)
        pairs = zip(self.fields, fills, strict=True)
        return Candidates(*(np.pad(field, sides, constant_values=fill) for field, fill in pairs))

    def replaced(self, queries: Int64Array, others: "Candidates") -> "Candidates":
        """With the candidates of these queries replaced; both have as many places."""
        fields = [field.copy() for field in self.fields]
        for field, other in zip(fields, others.fields, strict=True):
            field[queries] = other
        return Candidates(*fields)

    def num_new(self, before: "Candidates", queries: Int64Array) -> Int64Array:
        """Rows for each query that `before` did not have in the places of `queries`, int64[nq]."""
        old = before.ids[queries]
        _, names = np.unique(np.concatenate([old, self.ids], axis=1), return_inverse=True)
        names = names.reshape(len(old), -1)
        names = names + np.arange(len(old))[:, None] * (int(names.max(initial=0)) + 1)
        is_new = ~np.isin(names[:, old.shape[1] :], names[:, : old.shape[1]]) & (self.ids != NO_HIT)
        return np.asarray(is_new.sum(axis=1), dtype=np.int64)


class StackPart:
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
        """All row ids of the part, deleted ones included."""
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
        """Positions of rows of the part; only where `row_ids` is not None."""
        places = np.searchsorted(self.sorted_row_ids, row_ids)
        return places if self._order is None else self._order[places]

    def contains(self, row_ids: Int64Array) -> BoolArray:
        """Which of these rows are in the part."""
        return is_among(row_ids, self.sorted_row_ids)

    def selector(self, row_ids: Int64Array) -> FaissSelector:
        """Lets these rows through; others than those of the part are left out."""
        chosen = row_ids[self.contains(row_ids)]
        if self.row_ids is None:
            return select_row_ids(chosen)
        return select_positions(self.positions_of(chosen), self.num_rows)

    def selector_without(self, row_ids: Int64Array) -> FaissSelector:
        """Lets all other rows through."""
        if self.row_ids is None:
            return select_all_but(row_ids)
        others = np.ones(self.num_rows, dtype=np.bool_)
        others[self.positions_of(row_ids[self.contains(row_ids)])] = False
        return select_positions(np.flatnonzero(others), self.num_rows)
