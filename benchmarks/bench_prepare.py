"""Rows per second and peak memory of prepare, driver and workers apart, for growing corpora of short rows.

Each size is a run of its own in a fresh process with a fresh Ray cluster on this machine. The rows are made
here, 4 to 20 made-up words each, 1 in 50 a repeat, as zstd Parquet files of a million rows, as about as many
JSONL files as `--files` says, or as one `.csv.gz`. Driver memory is the process's peak resident set; that of
the workers the largest private memory (USS) seen in one of them, sampled ten times a second. Ray's own object
store and daemons are not counted.

    python benchmarks/bench_prepare.py 100000 1000000 10000000 --cpus 2
    python benchmarks/bench_prepare.py 1000000 --num-shards 1024   # what a shard costs the driver
    python benchmarks/bench_prepare.py 20000 --files 20000         # what an input file costs it
    python benchmarks/bench_prepare.py 1000000 4000000 --csv-gz --num-shards 64   # one file, not to be cut
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

_ROWS_PER_FILE = 1_000_000
_VOCABULARY = 50_000
_SAMPLE_S = 0.1


def write_corpus(folder: Path, num_rows: int, *, num_files: int = 0, csv_gz: bool = False) -> int:
    """Writes the rows as `num_files` JSONL files, or, for 0, as large Parquet files or as one `.csv.gz`.

    Returns the bytes on disk.
    """
    rng = np.random.default_rng(0)
    words = np.asarray([f"{'bcdfgklmnprstv'[i % 14]}o{i:x}" for i in range(_VOCABULARY)], dtype=object)
    repeated = [" ".join(words[rng.integers(0, _VOCABULARY, 12)]) for _ in range(1_000)]
    for start in range(0, num_rows, _ROWS_PER_FILE):
        count = min(_ROWS_PER_FILE, num_rows - start)
        lengths = rng.integers(4, 21, count)
        picks = np.minimum(rng.zipf(1.2, int(lengths.sum())) - 1, _VOCABULARY - 1)
        ends = np.cumsum(lengths)
        texts = [" ".join(words[picks[end - n : end]]) for n, end in zip(lengths, ends, strict=True)]
        for i in range(0, count, 50):
            texts[i] = repeated[(start + i) // 50 % len(repeated)]
        if num_files:
            _write_lines(folder, texts, first=start, rows_per_file=-(-num_rows // num_files))
        elif csv_gz:
            _write_csv_gz(folder / "rows.csv.gz", texts)
        else:
            pq.write_table(pa.table({"text": texts}), folder / f"{start:09d}.parquet", compression="zstd")
    return sum(path.stat().st_size for path in folder.iterdir())


def _write_lines(folder: Path, texts: list[str], *, first: int, rows_per_file: int) -> None:
    for number in range(first // rows_per_file, (first + len(texts) - 1) // rows_per_file + 1):
        rows = texts[max(0, number * rows_per_file - first) : (number + 1) * rows_per_file - first]
        with (folder / f"{number:09d}.jsonl").open("a", encoding="utf-8") as stream:
            stream.writelines(json.dumps({"text": text}) + "\n" for text in rows)


def _write_csv_gz(path: Path, texts: list[str]) -> None:
    """Appends rows; a compressed file may be several, one behind the other."""
    header = [] if path.exists() else ["text"]
    with gzip.open(path, "at", compresslevel=6, encoding="utf-8") as stream:
        stream.writelines(f"{line}\n" for line in [*header, *texts])


class WorkerWatch(threading.Thread):
    """Samples the private memory of this machine's Ray workers below this process."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self.stopped = threading.Event()

    def run(self) -> None:
        """Until `stopped` is set."""
        while not self.stopped.wait(_SAMPLE_S):
            for process in psutil.Process().children(recursive=True):
                try:
                    if process.name().startswith("ray::"):
                        self.peak_bytes = max(self.peak_bytes, process.memory_full_info().uss)
                except psutil.Error:
                    continue


def peak_mib() -> float:
    """This process's largest resident set so far; getrusage would count the parent's from before the exec."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def measure(source: str, num_cpus: int, num_shards: int) -> dict[str, float]:
    """One run of prepare in this process."""
    import ray

    from pipelines.collection_config import CollectionConfig
    from pipelines.prepare import prepare
    from pipelines.progress import Reporter
    from pipelines.storage import Location

    ray.init(num_cpus=num_cpus, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    idle_mib = peak_mib()
    watch = WorkerWatch()
    watch.start()
    with tempfile.TemporaryDirectory(prefix="bench-prepare-") as workspace:
        started_s = time.monotonic()
        manifest = prepare(
            "corpus",
            CollectionConfig(input=source, num_shards=num_shards),
            Location.parse(workspace),
            reporter=Reporter(),
        )
        wall_s = time.monotonic() - started_s
    watch.stopped.set()
    ray.shutdown()
    return {
        "rows": manifest.counts["rows_read"],
        "kept": manifest.counts["rows_kept"],
        "shards": len(manifest.shards),
        "wall_s": wall_s,
        "driver_idle_mib": idle_mib,
        "driver_peak_mib": peak_mib(),
        "worker_peak_mib": watch.peak_bytes / 2**20,
    }


def main() -> None:
    """Measures every size and prints a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("num_rows", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--cpus", type=int, default=2, help="logical CPUs of the Ray cluster")
    parser.add_argument("--num-shards", type=int, default=0, help="shards of the corpus; 0 = by its size")
    parser.add_argument("--files", type=int, default=0, help="JSONL files of the input; 0 = large Parquet")
    parser.add_argument("--csv-gz", action="store_true", help="the input is one .csv.gz, read by one task")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.cpus, arguments.num_shards)))
        return
    columns = ("rows", "files", "input, MB", "shards", "seconds", "rows/s")
    columns += ("driver before, MiB", "driver peak, MiB", "worker peak, MiB")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    for num_rows in arguments.num_rows:
        with tempfile.TemporaryDirectory(prefix="bench-rows-") as folder:
            size = write_corpus(Path(folder), num_rows, num_files=arguments.files, csv_gz=arguments.csv_gz)
            num_files = len(list(Path(folder).iterdir()))
            command = [sys.executable, __file__, "--one", folder, "--cpus", str(arguments.cpus)]
            command += ["--num-shards", str(arguments.num_shards)]
            environment = os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
        found = json.loads(done.stdout.splitlines()[-1])
        print(
            f"| {found['rows']:,} | {num_files:,} | {size / 1e6:.0f} | {found['shards']} "
            f"| {found['wall_s']:.0f} | {found['rows'] / found['wall_s']:,.0f} "
            f"| {found['driver_idle_mib']:.0f} | {found['driver_peak_mib']:.0f} "
            f"| {found['worker_peak_mib']:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
