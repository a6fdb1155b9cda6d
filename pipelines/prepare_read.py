"""The first pass of prepare: read pieces of files, make texts, hash them, send them to their shards.

Memory is bounded: what is large enough is written as a part. Rows of one id and text that meet here become
one with a count, so that a text repeated ten million times does not fill the shard that it belongs to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.collection_config import CollectionConfig
from pipelines.equal_ids import id_rows
from pipelines.errors import InputError
from pipelines.exchange import write_part
from pipelines.inputs import InputFile
from pipelines.manifest import ShardRecord
from pipelines.parquet import write_parquet
from pipelines.part_buffer import PartBuffer
from pipelines.row_tables import (
    DROPPED_SCHEMA,
    ROW_SCHEMA,
    bucket_of,
    dropped_rows,
    merge_copies,
    pack_columns,
    table_of,
)
from pipelines.rows import EXCERPT_CHARS, RowBatch, read_piece
from pipelines.shards import ShardFunction
from pipelines.storage import Location
from pipelines.texts import texts_of

BAD_FILE = "bad_file"
ROWS, IDS = "rows", "ids"
_MESSAGE_CHARS = 1_000


def part_place(folder: Location, kind: str, name: str) -> Location:
    """Where a part of the exchange lies."""
    return folder / "_exchange" / kind / name


def part_names(item: str, count: int) -> list[str]:
    """The names of the parts that a task wrote."""
    return [f"{item}-{number}" for number in range(count)]


class Reader:
    """Makes the task that reads one item: `{"pieces": [Piece, ...]}`.

    Its record counts the rows read; `kept` and `dropped_*` texts, `parts` and `id_parts` of the exchange.
    """

    def __init__(self, folder: Location, config: CollectionConfig, num_shards: int):
        self.folder, self.config, self.num_shards = folder, config, num_shards

    def __call__(self) -> ShardFunction:
        """The task."""
        return self._read

    def _read(self, item: str, spec: Mapping[str, Any]) -> ShardRecord:
        output = _Output(self, item)
        for piece in spec["pieces"]:
            try:
                for batch in read_piece(piece, self.config.columns):
                    output.add(piece.file, batch)
            except InputError as error:
                if self.config.on_bad_file == "fail":
                    raise
                output.set_aside(piece.file, str(error))
            else:
                output.commit()
        return output.close()


class _Output:
    """What one task writes: parts of the exchange, dropped rows, counts."""

    def __init__(self, reader: Reader, item: str):
        self.folder, self.config, self.num_shards = reader.folder, reader.config, reader.num_shards
        self.item = item
        self.rows = PartBuffer(self._write_rows, self._delete_rows)
        self.ids = PartBuffer(self._write_ids, self._delete_ids)
        self.dropped = PartBuffer(self._write_dropped, self._delete_dropped)
        self.bad_files: list[tuple[Any, ...]] = []
        self.counts: Counter[str] = Counter()
        self.current: Counter[str] = Counter()

    def add(self, file: InputFile, batch: RowBatch) -> None:
        """Takes the rows of a batch of the file under way."""
        config, name = self.config, file.relative_name
        num_rows = len(batch.rows)
        ids = [None] * num_rows if config.id_column is None else batch.columns[config.id_column]
        titles = [None] * num_rows if config.title_column is None else batch.columns[config.title_column]
        kept: list[tuple[Any, ...]] = []
        dropped: list[tuple[Any, ...]] = [(name, b.row, None, b.reason, b.excerpt) for b in batch.bad]
        raws = batch.columns[config.text_column]
        packed = [
            pack_columns({key: batch.columns[key][i] for key in config.keep_columns}) for i in range(num_rows)
        ]
        for row, raw, doc_id, title, columns in zip(batch.rows, raws, ids, titles, packed, strict=True):
            for text in texts_of(raw, doc_id, config):
                if text.reason:
                    dropped.append((name, row, text.doc_id, text.reason, text.text[:EXCERPT_CHARS]))
                else:
                    bucket = bucket_of(text.hash, self.num_shards)
                    kept.append((bucket, text.hash, text.doc_id, title, columns, text.text, name, row, 1))
        rows = table_of(kept, ROW_SCHEMA)
        self.rows.add(rows)
        if config.checks_ids:
            self.ids.add(id_rows(rows, self.num_shards))
        self.dropped.add(table_of(dropped, DROPPED_SCHEMA))
        self.current["rows"] += num_rows + len(batch.bad)
        self.current["kept"] += len(kept)
        self.current.update(f"dropped_{reason}" for _, _, _, reason, _ in dropped)

    def commit(self) -> None:
        """The file under way is read to its end."""
        for buffer in (self.rows, self.ids, self.dropped):
            buffer.commit()
        self.counts.update(self.current)
        self.current = Counter()

    def set_aside(self, file: InputFile, message: str) -> None:
        """The file under way is bad: nothing of it stays but its name and the reason."""
        for buffer in (self.rows, self.ids, self.dropped):
            buffer.rollback()
        self.current = Counter()
        self.bad_files.append((file.relative_name, None, None, BAD_FILE, message[:_MESSAGE_CHARS]))

    def close(self) -> ShardRecord:
        """Writes what is left."""
        self.counts["parts"], self.counts["id_parts"] = self.rows.close(), self.ids.close()
        self.dropped.close()
        if self.bad_files:
            write_parquet(bad_files_place(self.folder, self.item), table_of(self.bad_files, DROPPED_SCHEMA))
        self.counts["skipped_pieces"] = len(self.bad_files)
        num_rows = self.counts.pop("rows", 0)
        return ShardRecord(name=self.item, num_rows=num_rows, digest="", counts=dict(self.counts))

    def _rows_place(self, number: int) -> tuple[Location, Location]:
        (name,) = part_names(self.item, number + 1)[-1:]
        return part_place(self.folder, ROWS, name), self.folder / "dropped" / f"{name}-duplicates.parquet"

    def _write_rows(self, number: int, rows: pa.Table) -> None:
        place, duplicates = self._rows_place(number)
        if pc.count_distinct(rows.column("hash")).as_py() < rows.num_rows:
            rows, again = merge_copies(rows)
            if again.num_rows:
                write_parquet(duplicates, dropped_rows(again, "duplicate"))
        write_part(place, rows, num_buckets=self.num_shards)

    def _delete_rows(self, number: int) -> None:
        for place in self._rows_place(number):
            place.delete()

    def _write_ids(self, number: int, rows: pa.Table) -> None:
        place = part_place(self.folder, IDS, f"{self.item}-{number}")
        write_part(place, rows, num_buckets=self.num_shards)

    def _delete_ids(self, number: int) -> None:
        part_place(self.folder, IDS, f"{self.item}-{number}").delete()

    def _dropped_place(self, number: int) -> Location:
        return self.folder / "dropped" / f"{self.item}-{number}.parquet"

    def _write_dropped(self, number: int, rows: pa.Table) -> None:
        write_parquet(self._dropped_place(number), rows)

    def _delete_dropped(self, number: int) -> None:
        self._dropped_place(number).delete()


def bad_files_place(folder: Location, item: str) -> Location:
    """Where an item's bad files are listed."""
    return folder / "dropped" / f"{item}-files.parquet"
