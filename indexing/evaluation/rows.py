"""Per-query rows: the product of every evaluation, from which all tables are made.

Owns the row values and their Parquet file. Must not know measures' definitions or statistics.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

_SCHEMA = pa.schema(
    [
        pa.field("system", pa.string(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("query_id", pa.string(), nullable=False),
        pa.field("measure", pa.string(), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
        pa.field("group", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True)
class QueryScore:
    """What one measure says about one query; `value` in [0, 1]. `group` as in `text_tasks`."""

    query_id: str
    measure: str
    value: float
    group: str = ""


@dataclass(frozen=True)
class PerQueryRow:
    """A query score of one system on one task; a query id is unique within its group."""

    system: str
    task: str
    query_id: str
    measure: str
    value: float
    group: str = ""


def label_rows(scores: Iterable[QueryScore], *, system: str, task: str) -> list[PerQueryRow]:
    """Say which system and task the scores belong to."""
    return [
        PerQueryRow(system, task, score.query_id, score.measure, score.value, score.group) for score in scores
    ]


def write_rows(filesystem: pyarrow.fs.FileSystem, path: str, rows: Sequence[PerQueryRow]) -> None:
    """Write rows to one Parquet file, in the given order; equal rows give equal bytes."""
    columns = {name: [getattr(row, name) for row in rows] for name in _SCHEMA.names}
    table = pa.table(columns, schema=_SCHEMA)
    with filesystem.open_output_stream(path) as stream:
        pq.write_table(table, stream, compression="zstd", version="2.6")


def read_rows(filesystem: pyarrow.fs.FileSystem, path: str) -> list[PerQueryRow]:
    """Read what `write_rows` wrote.

    Raises:
        ValueError: not such a file.
    """
    try:
        with filesystem.open_input_file(path) as stream:
            table = pq.read_table(stream)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path}: not a readable Parquet file ({error})") from error
    if table.schema.names != _SCHEMA.names:
        raise ValueError(f"{path}: expected columns {_SCHEMA.names}, found {table.schema.names}")
    return [PerQueryRow(**row) for row in table.to_pylist()]
