"""Documents by row id, by document id and by filter, from memory-mapped Arrow files.

The lookup stage writes one uncompressed Arrow file per shard of the collection, so that one document is one
slice of a map and a filter touches its own columns only. Owns the layout of these files. Knows nothing of
vectors or rankings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from indexing.filters import Filter
from pipelines.errors import InputError
from pipelines.parquet import ROWS_PER_SHARD_BITS
from pipelines.storage import Location

FOLDER = "documents"
_SUFFIX = ".arrow"
_HASHES, _ROWS = "id_hashes.npy", "id_rows.npy"
# Rows of a record batch: the row's batch is found by a division.
_BATCH_ROWS = 65_536
_ROW = "__row__"
# Fields of a hit by themselves.
_OWN = ("doc_id", "title", "text")


class Documents:
    """The opened files of a collection; safe to read from several threads."""

    def __init__(self, shards: Mapping[int, pa.RecordBatchFileReader], ids: _IdTable) -> None:
        self._shards = {
            number: [reader.get_batch(i) for i in range(reader.num_record_batches)]
            for number, reader in shards.items()
        }
        self._schema = next(iter(shards.values())).schema
        self._ids = ids

    @classmethod
    def open(cls, folder: Path) -> Documents:
        """Maps the files of a local lookup folder; milliseconds, whatever their size."""
        readers = {}
        for path in sorted((folder / FOLDER).glob(f"*{_SUFFIX}")):
            readers[int(path.stem.rpartition("-")[2])] = pa.ipc.open_file(pa.memory_map(str(path)))
        return cls(readers, _IdTable.open(folder))

    @property
    def columns(self) -> list[str]:
        """Names of the columns that a filter may use."""
        return list(self._schema.names)

    @property
    def other_columns(self) -> pa.Schema:
        """Names and types of the columns beside id, title and text: what `Hit.columns` holds."""
        return pa.schema([column for column in self._schema if column.name not in _OWN])

    def __len__(self) -> int:
        return sum(batch.num_rows for batches in self._shards.values() for batch in batches)

    def rows(self, row_ids: NDArray[np.int64]) -> list[dict[str, Any]]:
        """All columns of these rows, in the given order.

        Raises:
            InputError: a row that the collection does not have.
        """
        return [self._row(row_id) for row_id in row_ids.tolist()]

    def row_ids_of(self, doc_ids: Sequence[str]) -> NDArray[np.int64]:
        """Row ids int64[n] of documents, -1 for those that are not there; of equal ids the first row."""
        return np.array([self._row_id_of(doc_id) for doc_id in doc_ids], dtype=np.int64)

    def matching(self, wanted: Filter) -> NDArray[np.int64]:
        """Sorted row ids of the documents that a filter lets through; reads its columns only.

        Raises:
            ValueError: the filter names a column that is not there or a value of another type.
        """
        expression = wanted.expression(self._schema)
        found = [np.empty(0, np.int64)]
        for number, batches in sorted(self._shards.items()):
            for i, batch in enumerate(batches):
                first = (number << ROWS_PER_SHARD_BITS) + i * _BATCH_ROWS
                rows = pa.array(np.arange(first, first + batch.num_rows, dtype=np.int64))
                table = pa.Table.from_batches([batch.select(wanted.columns)]).append_column(_ROW, rows)
                found.append(table.filter(expression).column(_ROW).to_numpy())
        return np.concatenate(found)

    def _row(self, row_id: int) -> dict[str, Any]:
        batches = self._shards.get(row_id >> ROWS_PER_SHARD_BITS, [])
        number, offset = divmod(row_id & ((1 << ROWS_PER_SHARD_BITS) - 1), _BATCH_ROWS)
        if row_id < 0 or number >= len(batches) or offset >= batches[number].num_rows:
            raise InputError(f"the collection has no row {row_id}; was it prepared anew?")
        row: dict[str, Any] = batches[number].slice(offset, 1).to_pylist()[0]
        return row

    def _row_id_of(self, doc_id: str) -> int:
        candidates = self._ids.candidates(doc_id)
        return next((i for i in sorted(candidates) if self._row(i)["doc_id"] == doc_id), -1)


class _IdTable:
    """From a document id to the rows that may have it: sorted 64-bit hashes and their row ids, mapped."""

    def __init__(self, hashes: NDArray[np.uint64], row_ids: NDArray[np.int64]) -> None:
        self._hashes, self._row_ids = hashes, row_ids

    @classmethod
    def open(cls, folder: Path) -> _IdTable:
        return cls(np.load(folder / _HASHES, mmap_mode="r"), np.load(folder / _ROWS, mmap_mode="r"))

    def candidates(self, doc_id: str) -> list[int]:
        wanted = np.uint64(_hash(doc_id))
        begin, end = (int(np.searchsorted(self._hashes, wanted, side=side)) for side in ("left", "right"))
        return [int(row_id) for row_id in self._row_ids[begin:end]]


def write_documents(folder: Location, name: str, table: pa.Table) -> str:
    """Writes one shard's documents (all columns but row_id) below a lookup folder; returns the sha256."""
    place = folder / FOLDER / f"{name}{_SUFFIX}"
    rows = table.drop_columns(["row_id"]).combine_chunks()
    with (
        place.write_atomically() as target,
        target.open_output() as stream,
        pa.ipc.new_file(stream, rows.schema) as writer,
    ):
        for start in range(0, rows.num_rows, _BATCH_ROWS):
            for batch in rows.slice(start, _BATCH_ROWS).combine_chunks().to_batches():
                writer.write_batch(batch)
    return place.sha256()


def write_id_table(folder: Path, doc_ids: Sequence[str], row_ids: NDArray[np.int64]) -> None:
    """Writes the files that find a row by document id, into a local lookup folder."""
    hashes = np.fromiter((_hash(doc_id) for doc_id in doc_ids), dtype=np.uint64, count=len(doc_ids))
    order = np.argsort(hashes, kind="stable")
    np.save(folder / _HASHES, hashes[order], allow_pickle=False)
    np.save(folder / _ROWS, row_ids[order], allow_pickle=False)


def _hash(doc_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(doc_id.encode(), digest_size=8).digest(), "big")
