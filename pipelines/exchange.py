"""Files in which rows travel from the tasks that make them to the shard they belong to.

A part holds the rows of every bucket as blocks in the order of the buckets and, at its end, the places where
the buckets begin: a bucket is read with one open and few reads, however many there are. Parts are merged, 64
into one, until there are few, by copying blocks: the work grows with the rows, not with parts times buckets.
Knows nothing of what rows mean, but that the column `bucket` comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines.manifest import ShardRecord
from pipelines.shards import ShardFunction
from pipelines.storage import Location

MAX_PARTS = 128
_FAN_IN = 64
_READ_AHEAD_BYTES = 1 << 20
_NUMBER = np.dtype("<u8")
_CODEC = "lz4"


def write_part(place: Location, rows: pa.Table, *, num_buckets: int) -> None:
    """Writes rows with a column `bucket` int32 in [0, num_buckets), in any order, atomically."""
    rows = rows.combine_chunks().sort_by("bucket")
    buckets = rows.column("bucket").to_numpy()
    bounds = np.searchsorted(buckets, np.arange(num_buckets + 1))
    batch = next(iter(rows.combine_chunks().to_batches()), None)
    starts = np.zeros(num_buckets + 1, _NUMBER)
    with place.write_atomically() as target, target.open_output() as stream:
        for bucket in range(num_buckets):
            start, end = int(bounds[bucket]), int(bounds[bucket + 1])
            starts[bucket] = stream.tell()
            if batch is not None and end > start:
                _write_block(stream, batch.slice(start, end - start))
        starts[num_buckets] = stream.tell()
        _write_index(stream, starts)


def read_bucket(places: Sequence[Location], bucket: int, schema: pa.Schema) -> pa.Table:
    """The rows of a bucket from all parts, in the order of the parts."""
    batches = [batch for place in places for batch in _blocks(place, bucket, schema)]
    return pa.Table.from_batches(batches, schema)


class PartMerger:
    """Makes the task that merges the parts `{"parts": names}` of a folder into one named like the item."""

    def __init__(self, folder: Location):
        self.folder = folder

    def __call__(self) -> ShardFunction:
        """The task."""
        return self._merge

    def _merge(self, name: str, spec: Mapping[str, Any]) -> ShardRecord:
        merge_parts([self.folder / part for part in spec["parts"]], self.folder / name)
        return ShardRecord(name=name, num_rows=0, digest="")


def merge_parts(places: Sequence[Location], target: Location) -> None:
    """Writes one part with the rows of several, bucket by bucket, holding one block at a time."""
    indexes = [_read_index(place) for place in places]
    starts = np.zeros(len(indexes[0]), _NUMBER)
    with ExitStack() as stack:
        sources = [
            stack.enter_context(
                place.filesystem.open_input_stream(
                    place.path, compression=None, buffer_size=_READ_AHEAD_BYTES
                )
            )
            for place in places
        ]
        final = stack.enter_context(target.write_atomically())
        output = stack.enter_context(final.open_output())
        for bucket in range(len(starts) - 1):
            starts[bucket] = output.tell()
            for source, index in zip(sources, indexes, strict=True):
                output.write(source.read(int(index[bucket + 1] - index[bucket])))
        starts[-1] = output.tell()
        _write_index(output, starts)


def merge_rounds(
    names: Sequence[str], merge: Callable[[str, Mapping[str, Mapping[str, Any]]], Sequence[str]]
) -> list[str]:
    """Merges parts round by round until at most `MAX_PARTS` are left; returns their names.

    merge: gets the name of a round and, by new name, `{"parts": names}`; returns the new names.
    """
    left, number = list(names), 0
    while len(left) > MAX_PARTS:
        groups = [left[i : i + _FAN_IN] for i in range(0, len(left), _FAN_IN)]
        items = {f"merged-{number}-{i:06d}": {"parts": group} for i, group in enumerate(groups)}
        left = list(merge(f"{number}", items))
        number += 1
    return left


def _write_block(stream: pa.NativeFile, batch: pa.RecordBatch) -> None:
    raw = batch.serialize()
    packed = pa.compress(raw, codec=_CODEC, asbytes=True)
    stream.write(np.asarray([raw.size, len(packed)], _NUMBER).tobytes())
    stream.write(packed)


def _blocks(place: Location, bucket: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with place.filesystem.open_input_file(place.path) as stream:
        size = stream.size()
        (count,) = _numbers(stream.read_at(_NUMBER.itemsize, size - _NUMBER.itemsize))
        index = size - _NUMBER.itemsize * (int(count) + 1)
        start, end = _numbers(
            stream.read_at(2 * _NUMBER.itemsize, index + _NUMBER.itemsize * bucket)
        ).tolist()
        data = memoryview(stream.read_at(end - start, start))
    place_in = 0
    while place_in < len(data):
        raw_size, size = _numbers(data[place_in : place_in + 2 * _NUMBER.itemsize]).tolist()
        place_in += 2 * _NUMBER.itemsize
        raw = pa.decompress(data[place_in : place_in + size], decompressed_size=raw_size, codec=_CODEC)
        yield pa.ipc.read_record_batch(raw, schema)
        place_in += size


def _write_index(stream: pa.NativeFile, starts: NDArray[np.uint64]) -> None:
    """The places of the buckets and of the end, then how many numbers that is."""
    stream.write(starts.tobytes())
    stream.write(np.asarray([len(starts)], _NUMBER).tobytes())


def _read_index(place: Location) -> NDArray[np.uint64]:
    with place.filesystem.open_input_file(place.path) as stream:
        size = stream.size()
        (count,) = _numbers(stream.read_at(_NUMBER.itemsize, size - _NUMBER.itemsize))
        length = _NUMBER.itemsize * int(count)
        return _numbers(stream.read_at(length, size - _NUMBER.itemsize - length))


def _numbers(data: Any) -> NDArray[np.uint64]:
    return np.frombuffer(data, _NUMBER)
