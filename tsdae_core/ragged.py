"""Rows of different lengths as one flat array, the shape in which token ids are stored and shipped.

Owns the pair (values, lengths) and row selection. Knows nothing of tokens or models.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """B rows of T values in all.

    Attributes:
        values: any dtype [T], the rows one after the other.
        lengths: int64[B], their sum is T.

    Raises:
        ValueError: if the lengths do not add up to the number of values, or one of them is negative.
    """

    values: NDArray[Any]
    lengths: Int64s

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", np.asarray(self.lengths, dtype=np.int64))
        if self.values.ndim != 1 or self.lengths.ndim != 1:
            raise ValueError("Ragged needs flat values and lengths, one length per row")
        if self.lengths.size and int(self.lengths.min()) < 0:
            raise ValueError("Ragged lengths must not be negative")
        total = int(self.lengths.sum())
        if total != self.values.shape[0]:
            raise ValueError(f"lengths add up to {total}, but there are {self.values.shape[0]} values")

    @classmethod
    def from_rows(
        cls, rows: Iterable[Sequence[Any] | NDArray[Any]], *, dtype: DTypeLike = np.int32
    ) -> Ragged:
        """Join rows of the given dtype; no rows give an empty Ragged."""
        arrays = [np.asarray(row, dtype=dtype) for row in rows]
        lengths = np.asarray([len(row) for row in arrays], dtype=np.int64)
        return cls(np.concatenate(arrays) if arrays else np.empty(0, dtype=dtype), lengths)

    @cached_property
    def offsets(self) -> Int64s:
        """int64[B + 1]: row i is ``values[offsets[i]:offsets[i + 1]]``."""
        return offsets_of(self.lengths)

    def __len__(self) -> int:
        return int(self.lengths.shape[0])

    def row(self, index: int) -> NDArray[Any]:
        """Return row ``index`` (negative counts from the end) as a view."""
        index = range(len(self))[index]
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def take(self, rows: NDArray[np.integer[Any]] | Sequence[int]) -> Ragged:
        """Return the given rows, in the given order, as a new Ragged."""
        rows = np.asarray(rows, dtype=np.int64)
        lengths = self.lengths[rows]
        return Ragged(self.values[expand_spans(self.offsets[:-1][rows], lengths)], lengths)


def offsets_of(lengths: Int64s) -> Int64s:
    """Return int64[B + 1], the running sum of ``lengths`` from 0."""
    offsets = np.zeros(lengths.shape[0] + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def expand_spans(starts: Int64s, lengths: Int64s) -> Int64s:
    """Return the indices of spans ``[start, start + length)`` one after the other, int64[sum of lengths]."""
    shift = starts - offsets_of(lengths)[:-1]
    return np.arange(int(lengths.sum()), dtype=np.int64) + np.repeat(shift, lengths)
