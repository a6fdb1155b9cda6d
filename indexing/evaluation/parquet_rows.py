"""Rows of Parquet tables with the columns that a reader asks for, a batch in memory at a time.

Owns what a column may be called and hold. Must not know what a task is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pyarrow.types as kinds

from indexing.evaluation.task_files import table_parts

_BATCH_ROWS = 8_192
_TEXTS = (kinds.is_string, kinds.is_large_string, kinds.is_string_view, kinds.is_null)
_TESTS = {
    "text": _TEXTS,
    "id": (*_TEXTS, kinds.is_integer),
    "grade": (kinds.is_integer, kinds.is_floating, kinds.is_null),
}
_EXPECTED = {"text": "text", "id": "text or whole numbers", "grade": "whole numbers"}


@dataclass(frozen=True)
class Column:
    """A column that a reader asks for.

    Attributes:
        names: what it may be called; the first that the table has is taken.
        holds: `text`; `id`, text or whole numbers, given as text; `grade`, whole numbers, given as int.
        required: if not, a table without it, and a row without a value, give None.
    """

    names: tuple[str, ...]
    holds: Literal["text", "id", "grade"]
    required: bool = True


def parquet_rows(
    filesystem: pyarrow.fs.FileSystem, path: str, columns: Sequence[Column]
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Rows in file order, one value for each column, with "file: row n" (from 0) for error messages.

    Raises:
        FileNotFoundError: as `table_parts`.
        ValueError: a file that cannot be read, a column that is not there, is there twice or holds something
            else, or a row without a value that is required.
    """
    for part in table_parts(filesystem, path):
        with filesystem.open_input_file(part) as stream:
            try:
                yield from _rows(pq.ParquetFile(stream), part, columns)
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                raise ValueError(f"{part}: not a readable Parquet file ({error})") from error


def _rows(
    reader: pq.ParquetFile, part: str, columns: Sequence[Column]
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    names = [_name_of(column, reader.schema_arrow, part) for column in columns]
    number = 0
    for batch in reader.iter_batches(_BATCH_ROWS, columns=[name for name in names if name is not None]):
        values = [
            [None] * batch.num_rows if name is None else batch.column(name).to_pylist() for name in names
        ]
        for row in zip(*values, strict=True):
            where = f"{part}: row {number}"
            yield where, tuple(map(_checked, row, columns, names, [where] * len(columns)))
            number += 1


def _name_of(column: Column, schema: pa.Schema, part: str) -> str | None:
    """What the table calls the column; None where it lacks one that is not required."""
    name = next((name for name in column.names if name in schema.names), None)
    if name is None:
        if not column.required:
            return None
        raise ValueError(
            f"{part}: expected a column named {' or '.join(column.names)}; there is {', '.join(schema.names)}"
        )
    if schema.names.count(name) > 1:
        raise ValueError(f"{part}: there are {schema.names.count(name)} columns '{name}'; rename one")
    kind = schema.field(name).type
    value_kind = kind.value_type if kinds.is_dictionary(kind) else kind
    if not any(test(value_kind) for test in _TESTS[column.holds]):
        raise ValueError(f"{part}: column '{name}' holds {kind}, expected {_EXPECTED[column.holds]}")
    return name


def _checked(value: Any, column: Column, name: str | None, where: str) -> str | int | None:
    if value is None:
        if column.required:
            raise ValueError(f"{where}: no value in column '{name}', expected {_EXPECTED[column.holds]}")
        return None
    if column.holds == "grade":
        if not float(value).is_integer():
            raise ValueError(f"{where}: column '{name}' holds {value}, expected a whole number")
        return int(value)
    return str(value)
