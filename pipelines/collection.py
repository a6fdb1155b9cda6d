"""Reading a prepared collection: shards, rows by id, a bounded sample. Never the whole of it at once."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from indexing.store import DELETED_FILE
from pipelines.errors import InputError
from pipelines.manifest import Manifest, read_manifest
from pipelines.names import shard_name
from pipelines.parquet import ROWS_PER_SHARD_BITS
from pipelines.storage import Location


def finished_manifest(folder: Location, *, command: str) -> Manifest:
    """The manifest of a finished stage.

    Raises:
        InputError: the stage has not finished; names the command that does it.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise InputError(f"'{folder}' is not finished; run `tsdae {command}` first")
    return manifest


def read_shard(folder: Location, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The given columns of one shard, or all."""
    place = folder / f"{name}.parquet"
    with place.filesystem.open_input_file(place.path) as stream:
        return pq.ParquetFile(stream).read(columns=None if columns is None else list(columns))


def column_names(folder: Location, name: str) -> list[str]:
    """The columns of a shard."""
    place = folder / f"{name}.parquet"
    with place.filesystem.open_input_file(place.path) as stream:
        return list(pq.ParquetFile(stream).schema_arrow.names)


def sample_texts(folder: Location, manifest: Manifest, num_rows: int) -> list[str]:
    """At most `num_rows` texts: the first rows of every shard, a random sample, as rows are in hash order."""
    total = max(1, sum(shard.num_rows for shard in manifest.shards))
    texts: list[str] = []
    for shard in manifest.shards:
        wanted = -(-shard.num_rows * num_rows // total)
        if wanted:
            texts += read_shard(folder, shard.name, ["text"]).column("text").slice(0, wanted).to_pylist()
    return texts[:num_rows]


def read_rows(
    folder: Location, row_ids: NDArray[np.int64], columns: Sequence[str]
) -> list[dict[str, str | None]]:
    """The rows with the given ids, in the given order; reads only the shards that hold them.

    Raises:
        InputError: an id that the collection does not have.
    """
    found: dict[int, dict[str, str | None]] = {}
    wanted = np.unique(row_ids)
    for shard in np.unique(wanted >> ROWS_PER_SHARD_BITS):
        ids = wanted[(wanted >> ROWS_PER_SHARD_BITS) == shard]
        table = read_shard(folder, shard_name(int(shard)), columns)
        offsets = ids & ((1 << ROWS_PER_SHARD_BITS) - 1)
        if offsets.size and int(offsets.max()) >= table.num_rows:
            raise InputError(f"'{folder}' has no row {int(ids[offsets.argmax()])}; was it prepared anew?")
        found |= dict(zip(ids.tolist(), table.take(pa.array(offsets)).to_pylist(), strict=True))
    return [found[row_id] for row_id in row_ids.tolist()]


def iterate_shards(folder: Location, manifest: Manifest, columns: Sequence[str]) -> Iterator[pa.Table]:
    """One table per shard, in shard order, without the rows that were deleted later."""
    deleted = read_deleted(folder, manifest)
    for shard in manifest.shards:
        if len(deleted) == 0:
            yield read_shard(folder, shard.name, columns)
            continue
        table = read_shard(folder, shard.name, list(dict.fromkeys([*columns, "row_id"])))
        kept = pc.invert(pc.is_in(table.column("row_id"), pa.array(deleted)))
        yield table.filter(kept).select(list(columns))


def read_deleted(place: Location, documents: Manifest) -> NDArray[np.int64]:
    """Row ids of the documents that were deleted, sorted."""
    if DELETED_FILE not in documents.files:
        return np.empty(0, np.int64)
    deleted: NDArray[np.int64] = np.load(io.BytesIO((place / DELETED_FILE).read_bytes()))
    return deleted
