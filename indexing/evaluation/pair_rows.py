"""Per-pair rows: what a system said of every pair, beside what people said.

The counterpart of `rows` for tasks whose statistic is of all pairs together (average precision, correlation)
and so has no value for one pair. Owns the row and its Parquet file. Must not know statistics.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

_SCHEMA = pa.schema(
    [
        pa.field("system", pa.string(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("group", pa.string(), nullable=False),
        pa.field("pair_id", pa.string(), nullable=False),
        pa.field("label", pa.float64(), nullable=False),
        pa.field("positive", pa.int8(), nullable=False),
        pa.field("score", pa.float64(), nullable=False),
    ]
)


@dataclass(frozen=True)
class PairRow:
    """One pair of one task as one system scored it.

    Attributes:
        label: a similarity on the data's own scale.
        positive: 1 or 0 for average precision, -1 = left out of it.
        score: of the system, on its own scale; higher = more alike.
    """

    system: str
    task: str
    group: str
    pair_id: str
    label: float
    positive: int
    score: float


def write_pair_rows(filesystem: pyarrow.fs.FileSystem, path: str, rows: Sequence[PairRow]) -> None:
    """Write rows to one Parquet file, in the given order; equal rows give equal bytes."""
    columns = {name: [getattr(row, name) for row in rows] for name in _SCHEMA.names}
    with filesystem.open_output_stream(path) as stream:
        pq.write_table(pa.table(columns, schema=_SCHEMA), stream, compression="zstd", version="2.6")


def read_pair_rows(filesystem: pyarrow.fs.FileSystem, path: str) -> list[PairRow]:
    """Read what `write_pair_rows` wrote.

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
    return [PairRow(**row) for row in table.to_pylist()]
