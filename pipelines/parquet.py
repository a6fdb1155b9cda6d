"""How shards of a collection are written, and what their row ids mean."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.storage import Location

# row_id >> 32 is the shard, the low 32 bits are the row in it.
ROWS_PER_SHARD_BITS = 32
# Small enough that a training task reads little more than it needs, large enough to compress well; figures
# for this and the codec are in docs/benchmarks.md.
_ROW_GROUP_ROWS = 4_096
_COMPRESSION = "zstd"


def write_parquet(place: Location, table: pa.Table) -> str:
    """Writes a shard atomically with the project's settings (zstd, small row groups); returns its sha256."""
    with place.write_atomically() as target, target.open_output() as stream:
        pq.write_table(table, stream, compression=_COMPRESSION, row_group_size=_ROW_GROUP_ROWS)
    return place.sha256()
