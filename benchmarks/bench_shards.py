"""Size and speed of a shard by compression and row-group size, on a text file of one sentence per line.

python benchmarks/bench_shards.py sentences.txt
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.texts import text_hash

_VARIANTS = [
    ("none", None, 4_096),
    ("snappy", None, 4_096),
    ("lz4", None, 4_096),
    ("zstd", 1, 1_024),
    ("zstd", 1, 4_096),
    ("zstd", 1, 32_768),
    ("zstd", 9, 4_096),
]


def shard_of(path: Path) -> pa.Table:
    """The file's distinct lines as prepare orders and stores them."""
    lines = {line.strip() for line in path.read_text(encoding="utf-8", errors="ignore").splitlines()} - {""}
    keys = sorted((text_hash(line), line) for line in lines)
    return pa.table(
        {
            "row_id": pa.array(range(len(keys)), pa.int64()),
            "doc_id": [key.hex() for key, _ in keys],
            "text": [line for _, line in keys],
            "title": pa.nulls(len(keys), pa.string()),
        }
    )


def cpu_ms(function: Callable[[], Any]) -> float:
    """CPU milliseconds of the fastest of three calls."""
    times = []
    for _ in range(3):
        started_s = time.process_time()
        function()
        times.append(time.process_time() - started_s)
    return 1_000 * min(times)


def main() -> None:
    """Prints one table row per variant."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text_file", type=Path)
    table = shard_of(parser.parse_args().text_file)
    print(f"{table.num_rows:,} rows")
    print(
        "| codec | rows per group | MB | write, ms | read the texts, ms | read one group, ms | footer, KB |"
    )
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="bench-shards-") as folder:
        path = Path(folder) / "shard.parquet"
        for codec, level, rows in _VARIANTS:

            def write(codec: str = codec, level: int | None = level, rows: int = rows) -> None:
                pq.write_table(table, path, compression=codec, compression_level=level, row_group_size=rows)

            def read() -> pa.Table:
                return pq.ParquetFile(path).read(columns=["text"])

            def read_group() -> pa.Table:
                return pq.ParquetFile(path).read_row_group(1, columns=["text"])

            written = cpu_ms(write)
            size, footer = path.stat().st_size / 1e6, pq.read_metadata(path).serialized_size / 1e3
            name = codec if level is None else f"{codec} {level}"
            print(
                f"| {name} | {rows:,} | {size:.1f} | {written:.0f} | {cpu_ms(read):.0f} "
                f"| {cpu_ms(read_group):.1f} | {footer:.0f} |"
            )


if __name__ == "__main__":
    main()
