"""The tables that rows travel in while a collection is prepared, and the rules for equal ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.rows import EXCERPT_CHARS
from pipelines.texts import HASH_BYTES

# A kept text on its way to its shard; `copies` rows of the same id and text were found, itself included, and
# `columns` are the further columns that are kept, as JSON.
ROW_SCHEMA = pa.schema(
    [
        ("bucket", pa.int32()),
        ("hash", pa.binary(HASH_BYTES)),
        ("doc_id", pa.string()),
        ("title", pa.string()),
        ("columns", pa.string()),
        ("text", pa.string()),
        ("file", pa.string()),
        ("row", pa.int64()),
        ("copies", pa.int64()),
    ]
)
DROPPED_SCHEMA = pa.schema(
    [
        ("file", pa.string()),
        ("row", pa.int64()),
        ("doc_id", pa.string()),
        ("reason", pa.string()),
        ("text", pa.string()),
    ]
)
# File and row come last: which of two equal rows stays shows in `dropped/` alone.
_ORDER = ("hash", "doc_id", "title", "columns", "file", "row")
_OUTPUT_COLUMNS = ("row_id", "doc_id", "text", "title")


def bucket_of(key: bytes, num_buckets: int) -> int:
    """The bucket of a hash."""
    return int.from_bytes(key[:8], "big") % num_buckets


def table_of(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    """Rows of values as a table."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def in_order(rows: pa.Table) -> pa.Table:
    """Rows of ROW_SCHEMA by hash, then id, title, columns, file, row: the first of equals is to be kept."""
    return rows.sort_by([(column, "ascending") for column in _ORDER])


def first_of_equal(rows: pa.Table, columns: Sequence[str]) -> NDArray[np.bool_]:
    """Marks, in sorted rows, each that differs from the one before it in one of the columns."""
    first = np.zeros(rows.num_rows, np.bool_)
    first[:1] = True
    for name in columns if rows.num_rows > 1 else ():
        column = rows.column(name).combine_chunks()
        first[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    return first


def merge_copies(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """One row of each (text, id), with the copies added up, in order; and the rows that were left out."""
    rows = in_order(rows)
    first = first_of_equal(rows, ("hash", "doc_id"))
    if first.all():
        return rows, rows.slice(0, 0)
    copies = np.add.reduceat(rows.column("copies").to_numpy(), np.flatnonzero(first))
    kept = rows.filter(pa.array(first))
    place = kept.schema.get_field_index("copies")
    return kept.set_column(place, ROW_SCHEMA.field("copies"), pa.array(copies)), rows.filter(pa.array(~first))


def dropped_rows(rows: pa.Table, reason: str) -> pa.Table:
    """Rows of a table with file, row, doc_id and text as rows of DROPPED_SCHEMA."""
    excerpt = pc.utf8_slice_codeunits(rows.column("text"), 0, EXCERPT_CHARS)
    reasons = pa.array([reason] * rows.num_rows, pa.string())
    columns = [rows.column("file"), rows.column("row"), rows.column("doc_id"), reasons, excerpt]
    return pa.table(columns, schema=DROPPED_SCHEMA)


def pack_columns(values: Mapping[str, str | None]) -> str | None:
    """The kept columns of a row as one value; None without any."""
    return json.dumps(values, ensure_ascii=False, sort_keys=True) if values else None


def output_table(rows: pa.Table, keep_columns: Sequence[str]) -> pa.Table:
    """What is written of rows with their row ids: id, text, title and the kept columns, unpacked."""
    output = rows.select(_OUTPUT_COLUMNS)
    if keep_columns:
        unpacked = [json.loads(value) for value in rows.column("columns").to_pylist()]
        for name in keep_columns:
            output = output.append_column(name, pa.array([row[name] for row in unpacked], pa.string()))
    return output
