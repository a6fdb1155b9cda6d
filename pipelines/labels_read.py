"""The tasks behind labelled rows: read and check pieces of files, then gather one shard's rows.

A row goes to the shard that the hash of its texts and label says and is ordered by it there, so its place
depends on its content alone, and any run of rows is a random sample. Equal rows become one. What cannot be
used lands in `dropped/` with file, row, reason, column and text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.errors import InputError, MissingColumnError
from pipelines.exchange import read_bucket, write_part
from pipelines.inputs import InputFile, Piece
from pipelines.label_rule import LabelRule
from pipelines.manifest import ShardRecord
from pipelines.parallel_lines import read_parallel
from pipelines.parquet import ROWS_PER_SHARD_BITS, write_parquet
from pipelines.part_buffer import PartBuffer
from pipelines.prepare_read import BAD_FILE
from pipelines.row_tables import bucket_of, first_of_equal, table_of
from pipelines.rows import EXCERPT_CHARS, RowBatch, read_piece
from pipelines.shards import ShardFunction
from pipelines.storage import Location
from pipelines.texts import HASH_BYTES, text_hash

DUPLICATE = "duplicate"
DROPPED_SCHEMA = pa.schema(
    [
        ("file", pa.string()),
        ("row", pa.int64()),
        ("reason", pa.string()),
        ("column", pa.string()),
        ("text", pa.string()),
    ]
)
_MESSAGE_CHARS = 1_000
# Between texts in what is hashed; `clean` leaves no control character in a text.
_SEPARATOR = "\x1f"


@dataclass(frozen=True)
class ParallelFiles:
    """Parallel files, which one task reads together; their names are the columns."""

    files: tuple[InputFile, ...]


def text_column(number: int) -> str:
    """The name of a column of texts in `labels/`."""
    return f"text_{number}"


def row_schema(num_texts: int) -> pa.Schema:
    """Rows on their way to their shard."""
    texts = [(text_column(i), pa.string()) for i in range(num_texts)]
    return pa.schema(
        [
            ("bucket", pa.int32()),
            ("hash", pa.binary(HASH_BYTES)),
            *texts,
            ("label", pa.float32()),
            ("file", pa.string()),
            ("row", pa.int64()),
        ]
    )


class LabelReader:
    """Makes the task that reads one item: `{"pieces": [Piece or ParallelFiles, ...]}`.

    Its record counts the rows read; `kept`, `dropped_*` and the `parts` of the exchange.
    """

    def __init__(
        self,
        folder: Location,
        rule: LabelRule,
        columns: tuple[Sequence[str], str | None],
        *,
        num_shards: int,
        skip_bad_files: bool,
    ):
        self.folder, self.rule, self.num_shards = folder, rule, num_shards
        self.texts, self.label = columns
        self.skip_bad_files = skip_bad_files

    def __call__(self) -> ShardFunction:
        """The task."""
        return self._read

    def _read(self, item: str, spec: Mapping[str, Any]) -> ShardRecord:
        output = _Output(self, item)
        for piece in spec["pieces"]:
            name = (piece.files[0] if isinstance(piece, ParallelFiles) else piece.file).relative_name
            try:
                for batch in self._batches(piece):
                    output.add(name, batch)
            except InputError as error:
                if not self.skip_bad_files:
                    raise named_columns(error) from error
                output.set_aside(name, str(error))
            else:
                output.commit()
        return output.close()

    def _batches(self, piece: Piece | ParallelFiles) -> Iterator[RowBatch]:
        columns = [*self.texts, *([self.label] if self.label else [])]
        return (
            read_parallel(piece.files, columns)
            if isinstance(piece, ParallelFiles)
            else read_piece(piece, columns)
        )


class _Output:
    """What one reading task writes."""

    def __init__(self, reader: LabelReader, item: str):
        self.reader, self.item = reader, item
        self.schema = row_schema(len(reader.texts))
        self.rows = PartBuffer(self._write_rows, lambda number: self._rows_place(number).delete())
        self.dropped = PartBuffer(self._write_dropped, lambda number: self._dropped_place(number).delete())
        self.counts: Counter[str] = Counter()
        self.current: Counter[str] = Counter()

    def add(self, file: str, batch: RowBatch) -> None:
        """Takes the rows of a batch of the file under way."""
        reader, rule = self.reader, self.reader.rule
        kept: list[tuple[Any, ...]] = []
        dropped: list[tuple[Any, ...]] = [(file, b.row, b.reason, None, b.excerpt) for b in batch.bad]
        labels = [None] * len(batch.rows) if reader.label is None else batch.columns[reader.label]
        raws = zip(*(batch.columns[name] for name in reader.texts), strict=True)
        for row, raw, raw_label in zip(batch.rows, raws, labels, strict=True):
            texts, place, reason = rule.texts(raw)
            if reason:
                excerpt = (raw[place] or "")[:EXCERPT_CHARS]
                dropped.append((file, row, reason, reader.texts[place], excerpt))
                continue
            label, reason = (None, "") if reader.label is None else rule.label(raw_label)
            if reason:
                dropped.append((file, row, reason, reader.label, (raw_label or "")[:EXCERPT_CHARS]))
                continue
            key = text_hash(_SEPARATOR.join([*texts, str(label)]))
            kept.append((bucket_of(key, reader.num_shards), key, *texts, label, file, row))
        self.rows.add(table_of(kept, self.schema))
        self.dropped.add(table_of(dropped, DROPPED_SCHEMA))
        self.current["rows"] += len(batch.rows) + len(batch.bad)
        self.current["kept"] += len(kept)
        self.current.update(f"dropped_{reason}" for _, _, reason, _, _ in dropped)

    def commit(self) -> None:
        """The file under way is read to its end."""
        self.rows.commit()
        self.dropped.commit()
        self.counts.update(self.current)
        self.current = Counter()

    def set_aside(self, file: str, message: str) -> None:
        """The file under way is bad: nothing of it stays but its name and the reason."""
        self.rows.rollback()
        self.dropped.rollback()
        self.current = Counter()
        row = (file, None, BAD_FILE, None, message[:_MESSAGE_CHARS])
        self.dropped.add(table_of([row], DROPPED_SCHEMA))
        self.dropped.commit()
        self.counts["skipped_pieces"] += 1

    def close(self) -> ShardRecord:
        """Writes what is left."""
        self.counts["parts"] = self.rows.close()
        self.dropped.close()
        num_rows = self.counts.pop("rows", 0)
        return ShardRecord(name=self.item, num_rows=num_rows, digest="", counts=dict(self.counts))

    def _rows_place(self, number: int) -> Location:
        return exchange_folder(self.reader.folder) / f"{self.item}-{number}"

    def _write_rows(self, number: int, rows: pa.Table) -> None:
        write_part(self._rows_place(number), rows, num_buckets=self.reader.num_shards)

    def _dropped_place(self, number: int) -> Location:
        return self.reader.folder / "dropped" / f"{self.item}-{number}.parquet"

    def _write_dropped(self, number: int, rows: pa.Table) -> None:
        write_parquet(self._dropped_place(number), rows)


class LabelGatherer:
    """Makes the task of one shard, `{"shard": number}`: its rows from all parts, one of each, in order."""

    def __init__(self, folder: Location, parts: Sequence[Location], *, num_texts: int):
        self.folder, self.parts, self.num_texts = folder, parts, num_texts

    def __call__(self) -> ShardFunction:
        """The task."""
        return self._gather

    def _gather(self, name: str, spec: Mapping[str, int]) -> ShardRecord:
        shard = spec["shard"]
        rows = read_bucket(self.parts, shard, row_schema(self.num_texts))
        rows = rows.sort_by([(column, "ascending") for column in ("hash", "file", "row")])
        first = first_of_equal(rows, ("hash",))
        again, rows = rows.filter(pa.array(~first)), rows.filter(pa.array(first))
        if again.num_rows:
            write_parquet(self.folder / "dropped" / f"{name}-duplicates.parquet", _duplicates(again))
        start = shard << ROWS_PER_SHARD_BITS
        row_ids = pa.array(np.arange(start, start + rows.num_rows, dtype=np.int64))
        columns = {"row_id": row_ids}
        columns |= {text_column(i): rows.column(text_column(i)) for i in range(self.num_texts)}
        columns["label"] = rows.column("label")
        digest = write_parquet(self.folder / f"{name}.parquet", pa.table(columns))
        counts = {f"dropped_{DUPLICATE}": again.num_rows} if again.num_rows else {}
        return ShardRecord(name=name, num_rows=rows.num_rows, digest=digest, counts=counts)


def named_columns(error: InputError) -> InputError:
    """The error, with the settings that name columns where one is missing."""
    if not isinstance(error, MissingColumnError):
        return error
    return InputError(f"{error} (train.labels.text_columns and train.labels.label_column name the columns)")


def exchange_folder(folder: Location) -> Location:
    """Where the parts of the exchange lie, below the stage's folder."""
    return folder / "_exchange"


def _duplicates(rows: pa.Table) -> pa.Table:
    column = text_column(0)
    excerpt = pc.utf8_slice_codeunits(rows.column(column), 0, EXCERPT_CHARS)
    reason, names = ([value] * rows.num_rows for value in (DUPLICATE, column))
    columns = [rows.column("file"), rows.column("row"), pa.array(reason), pa.array(names), excerpt]
    return pa.table(columns, schema=DROPPED_SCHEMA)
