"""Checks for the arrays that cross this package's border.

Owns: the array type names, and turning a caller's array into the promised dtype and shape or a clear
`ValueError`. Must not know FAISS, files or rankings.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

BoolArray: TypeAlias = npt.NDArray[np.bool_]
Float32Array: TypeAlias = npt.NDArray[np.float32]
Float64Array: TypeAlias = npt.NDArray[np.float64]
Int64Array: TypeAlias = npt.NDArray[np.int64]

NUM_NAMED_IN_ERRORS = 5


def as_vectors(vectors: npt.ArrayLike, *, what: str, dim: int | None = None) -> Float32Array:
    """A C-contiguous float32[n, d] view or copy of `vectors`.

    Args:
        vectors: anything numpy reads as a two-dimensional array of real numbers.
        what: how the error calls it ("queries", a file name).
        dim: the required d, if known.

    Raises:
        ValueError: not two-dimensional, not real numbers, d is 0 or another d than `dim`.
    """
    array = np.asarray(vectors)
    if array.ndim != 2 or array.shape[1] == 0:
        raise ValueError(f"{what}: expected vectors of shape [n, d] with d > 0, got shape {array.shape}")
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{what}: expected real numbers, got dtype {array.dtype}")
    if dim is not None and array.shape[1] != dim:
        raise ValueError(f"{what}: expected {dim} dimensions, got {array.shape[1]}")
    return np.ascontiguousarray(array, dtype=np.float32)


def as_row_ids(row_ids: npt.ArrayLike, *, what: str, num_rows: int | None = None) -> Int64Array:
    """A C-contiguous int64[n] of ids, all >= 0 (-1 is reserved for "no hit").

    Raises:
        ValueError: not one-dimensional, not integers, a negative id, or not `num_rows` of them.
    """
    array = np.asarray(row_ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"{what}: expected integer ids of shape [n], got {array.dtype} of shape {array.shape}"
        )
    if num_rows is not None and len(array) != num_rows:
        raise ValueError(f"{what}: expected {num_rows} ids, one for each row, got {len(array)}")
    ids = np.ascontiguousarray(array, dtype=np.int64)
    if ids.size and int(ids.min()) < 0:
        raise ValueError(f"{what}: row ids must be >= 0 (-1 means no hit), got {int(ids.min())}")
    return ids


def is_among(values: Int64Array, known: Int64Array) -> BoolArray:
    """Which of `values`, of any shape, are in the sorted array `known`."""
    if len(known) == 0:
        return np.zeros(values.shape, dtype=np.bool_)
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.asarray(known[places] == values)


def check_finite(vectors: Float32Array, *, row_ids: Int64Array | None, what: str) -> None:
    """Refuse NaN and infinity, which would rank at random.

    Raises:
        ValueError: names the row ids (or the row numbers, without `row_ids`) of the first bad vectors.
    """
    # The sum of a row is finite unless an element is not or the sum itself overflows: cheap first look.
    if np.isfinite(vectors.sum(dtype=np.float64)):
        return
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad) == 0:
        return
    names = bad if row_ids is None else row_ids[bad]
    kind = "row numbers" if row_ids is None else "row ids"
    raise ValueError(
        f"{what}: {len(bad)} of {len(vectors)} vectors hold NaN or infinity, {kind} "
        f"{shorten(names.tolist())}; check the encoder (overflow in half precision, a diverged training run) "
        "and embed these rows again"
    )


def shorten(names: Sequence[object]) -> str:
    """The first few names for an error message, with an ellipsis when there are more."""
    shown = ", ".join(str(name) for name in names[:NUM_NAMED_IN_ERRORS])
    return f"{shown}, ..." if len(names) > NUM_NAMED_IN_ERRORS else shown
