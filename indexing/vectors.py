"""The vectors file: one Parquet file for each corpus shard, columns `row_id` and `vector`.

Owns its schema, its bytes and its errors. Must not know who made the vectors or what is built from them.
The vector column is a plain Arrow `fixed_size_list` of non-null half or single floats, so any Parquet reader
opens it; files are written uncompressed because floats of embeddings do not compress.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from indexing.arrays import Float32Array, Int64Array, as_row_ids, as_vectors, check_finite, shorten
from indexing.exact import normalize_rows

VectorDtype: TypeAlias = Literal["float16", "float32"]

ROW_ID_COLUMN = "row_id"
VECTOR_COLUMN = "vector"
ROWS_PER_GROUP = 65536

_ARROW_TYPES = {"float16": pa.float16(), "float32": pa.float32()}


@dataclass(frozen=True, kw_only=True)
class VectorForm:
    """What is kept of an encoder's vectors; the same for documents and queries.

    dim: the first so many numbers (matryoshka encoders put most of the meaning there); None = all.
    normalize: scale to length 1, after the cut.
    """

    dim: int | None = None
    normalize: bool = False

    def apply(self, vectors: npt.ArrayLike) -> Float32Array:
        """Vectors float32[n, dim] of vectors float[n, d].

        Raises:
            ValueError: d is less than `dim`.
        """
        array = as_vectors(vectors, what="vectors of the encoder")
        if self.dim is not None and self.dim > array.shape[1]:
            raise ValueError(f"embed.dim is {self.dim}, the encoder gives {array.shape[1]} numbers")
        array = np.ascontiguousarray(array[:, : self.dim])
        return normalize_rows(array) if self.normalize else array


def write_vectors(
    filesystem: pyarrow.fs.FileSystem,
    path: str,
    row_ids: npt.ArrayLike,
    vectors: npt.ArrayLike,
    *,
    dtype: VectorDtype,
) -> None:
    """Write one vectors file; equal input gives equal bytes (for one pyarrow version).

    Args:
        filesystem: where `path` lives; its folder must exist.
        path: the file, replaced if present.
        row_ids: int64[n], each once.
        vectors: float[n, d], d > 0.
        dtype: stored element type; values are rounded to it.

    Raises:
        ValueError: shapes do not fit, an id occurs twice, or a vector is NaN or infinite, also after
            rounding to `dtype` (float16 ends at 65,504); the message names the file and the row ids.
    """
    if dtype not in _ARROW_TYPES:
        raise ValueError(f"{path}: vector dtype must be float16 or float32, got {dtype!r}")
    array = as_vectors(vectors, what=path)
    ids = as_row_ids(row_ids, what=path, num_rows=len(array))
    _refuse_repeated_ids(ids, path=path)
    check_finite(array, row_ids=ids, what=path)
    with np.errstate(over="ignore"):
        stored = array.astype(dtype)
    if dtype == "float16":
        check_finite(stored.astype(np.float32), row_ids=ids, what=f"{path} as float16")
    flat = pa.array(stored.reshape(-1), type=_ARROW_TYPES[dtype])
    schema = _schema(dtype, dim=array.shape[1])
    column = pa.FixedSizeListArray.from_arrays(flat, type=schema.field(VECTOR_COLUMN).type)
    table = pa.Table.from_arrays([pa.array(ids), column], schema=schema)
    with filesystem.open_output_stream(path) as stream:
        pq.write_table(
            table,
            stream,
            row_group_size=ROWS_PER_GROUP,
            compression="none",
            use_dictionary=False,
            version="2.6",
        )


def read_vectors(filesystem: pyarrow.fs.FileSystem, path: str) -> tuple[Int64Array, Float32Array]:
    """Read a whole vectors file: ids int64[n] and vectors float32[n, d], in file order.

    Raises:
        ValueError: not a Parquet file, a column missing or of another type, nulls, repeated ids, NaN or
            infinite vectors; the message names the file and the column or row ids.
        FileNotFoundError: no such file.
    """
    blocks = list(iter_vectors(filesystem, path))
    ids = np.concatenate([ids for ids, _ in blocks])
    _refuse_repeated_ids(ids, path=path)
    return ids, np.concatenate([vectors for _, vectors in blocks])


def iter_vectors(filesystem: pyarrow.fs.FileSystem, path: str) -> Iterator[tuple[Int64Array, Float32Array]]:
    """Like `read_vectors`, one row group (at most 65,536 rows) at a time; at least one block, possibly empty.

    Repeated ids are found inside one block only.
    """
    with filesystem.open_input_file(path) as stream:
        try:
            file = pq.ParquetFile(stream)
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(
                f"{path}: not a readable Parquet file ({error}); embed this shard again"
            ) from error
        dim = _check_schema(file.schema_arrow, path=path)
        if file.num_row_groups == 0:
            yield np.empty(0, dtype=np.int64), np.empty((0, dim), dtype=np.float32)
        for group in range(file.num_row_groups):
            try:
                table = file.read_row_group(group)
            except (pa.ArrowInvalid, OSError) as error:
                raise ValueError(
                    f"{path}: row group {group} is damaged or column {VECTOR_COLUMN!r} has nulls "
                    f"({error}); embed this shard again"
                ) from error
            yield _block_of(table, dim=dim, path=path)


def _schema(dtype: VectorDtype, *, dim: int) -> pa.Schema:
    element = pa.field("element", _ARROW_TYPES[dtype], nullable=False)
    return pa.schema(
        [
            pa.field(ROW_ID_COLUMN, pa.int64(), nullable=False),
            pa.field(VECTOR_COLUMN, pa.list_(element, dim), nullable=False),
        ]
    )


def _check_schema(schema: pa.Schema, *, path: str) -> int:
    for column in (ROW_ID_COLUMN, VECTOR_COLUMN):
        if column not in schema.names:
            raise ValueError(f"{path}: column {column!r} is missing, found {schema.names}")
    if schema.field(ROW_ID_COLUMN).type != pa.int64():
        raise ValueError(
            f"{path}: column {ROW_ID_COLUMN!r} must be int64, is {schema.field(ROW_ID_COLUMN).type}"
        )
    kind = schema.field(VECTOR_COLUMN).type
    if not pa.types.is_fixed_size_list(kind) or kind.value_type not in (pa.float16(), pa.float32()):
        raise ValueError(
            f"{path}: column {VECTOR_COLUMN!r} must be a fixed_size_list of float16 or float32, is {kind}"
        )
    return int(kind.list_size)


def _block_of(table: pa.Table, *, dim: int, path: str) -> tuple[Int64Array, Float32Array]:
    for column in (ROW_ID_COLUMN, VECTOR_COLUMN):
        if table[column].null_count:
            raise ValueError(f"{path}: column {column!r} has {table[column].null_count} nulls, expected none")
    ids = as_row_ids(table[ROW_ID_COLUMN].to_numpy(), what=f"{path}: column {ROW_ID_COLUMN!r}")
    flat = pa.chunked_array([chunk.flatten() for chunk in table[VECTOR_COLUMN].chunks], _element_type(table))
    if flat.null_count:
        raise ValueError(f"{path}: column {VECTOR_COLUMN!r} has null elements, expected none")
    vectors = np.ascontiguousarray(flat.to_numpy().reshape(len(ids), dim), dtype=np.float32)
    check_finite(vectors, row_ids=ids, what=f"{path}: column {VECTOR_COLUMN!r}")
    return ids, vectors


def _element_type(table: pa.Table) -> pa.DataType:
    return table.schema.field(VECTOR_COLUMN).type.value_type


def _refuse_repeated_ids(ids: Int64Array, *, path: str) -> None:
    unique, counts = np.unique(ids, return_counts=True)
    if len(unique) != len(ids):
        raise ValueError(f"{path}: row ids {shorten(unique[counts > 1].tolist())} occur more than once")
