"""Equal ids on different texts: found by sending (id, text) pairs to a bucket by id, where equal ids meet.

Of the texts with one id the one whose hash is lowest keeps it, whatever the order of the input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipelines.errors import InputError
from pipelines.exchange import read_bucket, write_part
from pipelines.manifest import ShardRecord
from pipelines.row_tables import ROW_SCHEMA, bucket_of, first_of_equal
from pipelines.shards import ShardFunction
from pipelines.storage import Location
from pipelines.texts import text_hash

# By id before the pass; afterwards, by text, the pairs that are to be set aside.
PAIR_SCHEMA = pa.schema([ROW_SCHEMA.field(name) for name in ("bucket", "doc_id", "hash")])


def id_rows(rows: pa.Table, num_buckets: int) -> pa.Table:
    """The (id, text) pairs of rows of ROW_SCHEMA, each with the bucket of its id."""
    ids = rows.column("doc_id")
    buckets = [bucket_of(text_hash(doc_id), num_buckets) for doc_id in ids.to_pylist()]
    return pa.table([pa.array(buckets, pa.int32()), ids, rows.column("hash")], schema=PAIR_SCHEMA)


class IdChecker:
    """Makes the task that checks one bucket of ids, `{"bucket": number}`; num_rows counts what loses its id.

    parts: of the exchange by id. output: folder for the pairs to set aside, by text. column: for the message.
    """

    def __init__(
        self, parts: Sequence[Location], output: Location, *, num_buckets: int, column: str, fail: bool
    ):
        self.parts, self.output, self.num_buckets = parts, output, num_buckets
        self.column, self.fail = column, fail

    def __call__(self) -> ShardFunction:
        """The task."""
        return self._check

    def _check(self, name: str, spec: Mapping[str, Any]) -> ShardRecord:
        pairs = read_bucket(self.parts, int(spec["bucket"]), PAIR_SCHEMA)
        pairs = pairs.sort_by([("doc_id", "ascending"), ("hash", "ascending")])
        pairs = pairs.filter(pa.array(first_of_equal(pairs, ("doc_id", "hash"))))
        losers = pairs.filter(pa.array(~first_of_equal(pairs, ("doc_id",))))
        if losers.num_rows and self.fail:
            doc_id = losers.column("doc_id")[0].as_py()
            raise InputError(
                f"id '{doc_id}' of column '{self.column}' stands for different texts; mend the ids, or set "
                "on_equal_ids to drop or keep"
            )
        if losers.num_rows:
            buckets = [bucket_of(key, self.num_buckets) for key in losers.column("hash").to_pylist()]
            losers = losers.set_column(0, PAIR_SCHEMA.field(0), pa.array(buckets, pa.int32()))
            write_part(self.output / name, losers, num_buckets=self.num_buckets)
        return ShardRecord(name=name, num_rows=losers.num_rows, digest="")
