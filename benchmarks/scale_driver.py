"""Memory that the driver takes for each thing that it keeps a list of."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from pipelines.inputs import InputFile, Piece
from pipelines.manifest import ShardRecord
from pipelines.storage import Location

_COUNT = 100_000


def measure_driver() -> dict[str, float]:
    """Bytes of a shard's record as it comes from its receipt, and of an input file with its piece of work.

    Each record is parsed anew, so that strings that look alike are not one object.
    """
    receipt = json.dumps(
        asdict(
            ShardRecord(
                name="part-00000",
                num_rows=1_000_000,
                digest="0" * 64,
                counts=dict.fromkeys(("kept", "parts", "id_parts", "dropped_duplicate"), 1_000_000),
            )
        )
    )
    base = Location.parse("/data/rows")

    def record(number: int) -> tuple[str, ShardRecord]:
        name = f"part-{number:08d}"
        return name, ShardRecord(**json.loads(receipt.replace("part-00000", name)))

    def piece(number: int) -> Piece:
        name = f"file-{number:08d}.parquet"
        file = InputFile(base / name, f"{name}", size_bytes=10**6 + number, modified_ns=10**18 + number)
        return Piece(file=file)

    return {"record_bytes": _bytes_each(record), "input_file_bytes": _bytes_each(piece)}


def _bytes_each(make: Callable[[int], Any]) -> float:
    tracemalloc.start()
    kept = [make(number) for number in range(_COUNT)]
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / len(kept)
