"""The second pass of prepare: one shard's rows from every part, one row per text, ordered by hash.

With near-duplicates to remove, the shards are written twice: here, and by `Thinner` without those rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.equal_ids import PAIR_SCHEMA
from pipelines.exchange import read_bucket
from pipelines.manifest import ShardRecord
from pipelines.near_duplicates import VERDICT_SCHEMA, BandMaker
from pipelines.parquet import ROWS_PER_SHARD_BITS, write_parquet
from pipelines.row_tables import ROW_SCHEMA, dropped_rows, first_of_equal, merge_copies, output_table
from pipelines.shards import ShardFunction
from pipelines.storage import Location


class Gatherer:
    """Makes the task of one shard, `{"shard": number}`.

    parts: of the exchange. losers: parts that name (id, text) pairs to set aside. bands: None writes the
    shard itself; else its rows go to `unique` and their bands to the exchange (counted as `band_parts`).
    """

    def __init__(
        self,
        folder: Location,
        parts: Sequence[Location],
        losers: Sequence[Location],
        *,
        unique: Location,
        bands: BandMaker | None,
        keep_columns: Sequence[str],
    ):
        self.folder, self.parts, self.losers = folder, parts, losers
        self.unique, self.bands, self.keep_columns = unique, bands, keep_columns

    def __call__(self) -> ShardFunction:
        """The task."""
        return self._gather

    def _gather(self, name: str, spec: Mapping[str, Any]) -> ShardRecord:
        shard = int(spec["shard"])
        rows = read_bucket(self.parts, shard, ROW_SCHEMA)
        num_found = int(rows.column("copies").to_numpy().sum())
        rows, again = merge_copies(rows)
        dropped = [dropped_rows(again, "duplicate")]
        lost = self._lost(shard, rows)
        num_lost = int(lost.sum())
        if num_lost:
            dropped.append(dropped_rows(rows.filter(pa.array(lost)), "equal_id"))
            rows = rows.filter(pa.array(~lost))
        first = first_of_equal(rows, ("hash",))
        if not first.all():
            dropped.append(dropped_rows(rows.filter(pa.array(~first)), "duplicate"))
            rows = rows.filter(pa.array(first))
        _write_dropped(self.folder / "dropped" / f"{name}.parquet", dropped)
        first_id = shard << ROWS_PER_SHARD_BITS
        row_ids = pa.array(np.arange(first_id, first_id + rows.num_rows, dtype=np.int64))
        rows = rows.add_column(0, "row_id", row_ids)
        counts = {"duplicate": num_found - num_lost - rows.num_rows, "equal_id": num_lost}
        named = {f"dropped_{reason}": count for reason, count in counts.items() if count}
        if self.bands is None:
            digest = write_parquet(self.folder / f"{name}.parquet", output_table(rows, self.keep_columns))
        else:
            digest = write_parquet(self.unique / f"{name}.parquet", rows.drop_columns(["bucket", "copies"]))
            named["band_parts"] = self.bands.write(name, rows)
        return ShardRecord(name=name, num_rows=rows.num_rows, digest=digest, counts=named)

    def _lost(self, shard: int, rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which rows are to be set aside because their id belongs to another text."""
        losers = read_bucket(self.losers, shard, PAIR_SCHEMA)
        if losers.num_rows == 0:
            return np.zeros(rows.num_rows, np.bool_)
        columns = ("doc_id", "hash")
        wanted = set(zip(*(losers.column(name).to_pylist() for name in columns), strict=True))
        pairs = zip(*(rows.column(name).to_pylist() for name in columns), strict=True)
        return np.fromiter((pair in wanted for pair in pairs), np.bool_, rows.num_rows)


class Thinner:
    """Makes the task that writes one shard without its near-duplicates, `{"shard": number}`."""

    def __init__(
        self,
        folder: Location,
        losers: Sequence[Location],
        *,
        unique: Location,
        keep_columns: Sequence[str],
    ):
        self.folder, self.losers, self.unique = folder, losers, unique
        self.keep_columns = keep_columns

    def __call__(self) -> ShardFunction:
        """The task."""
        return self._thin

    def _thin(self, name: str, spec: Mapping[str, Any]) -> ShardRecord:
        shard = int(spec["shard"])
        place = self.unique / f"{name}.parquet"
        with place.filesystem.open_input_file(place.path) as stream:
            rows = pq.ParquetFile(stream).read()
        losers = read_bucket(self.losers, shard, VERDICT_SCHEMA).column("row_id").to_numpy()
        kept = ~np.isin(rows.column("row_id").to_numpy(), losers)
        num_lost = int((~kept).sum())
        near = dropped_rows(rows.filter(pa.array(~kept)), "near_duplicate")
        _write_dropped(self.folder / "dropped" / f"{name}-near.parquet", [near])
        rows = rows.filter(pa.array(kept))
        first_id = shard << ROWS_PER_SHARD_BITS
        row_ids = pa.array(np.arange(first_id, first_id + rows.num_rows, dtype=np.int64))
        rows = output_table(rows.set_column(0, "row_id", row_ids), self.keep_columns)
        digest = write_parquet(self.folder / f"{name}.parquet", rows)
        counts = {"dropped_near_duplicate": num_lost} if num_lost else {}
        return ShardRecord(name=name, num_rows=rows.num_rows, digest=digest, counts=counts)


def _write_dropped(place: Location, tables: Sequence[pa.Table]) -> None:
    rows = pa.concat_tables(tables)
    if rows.num_rows:
        write_parquet(place, rows)
