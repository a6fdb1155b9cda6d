"""How index training scales with FAISS's threads: what `index.train_cpus` buys, by the clock.

Trains the same index with each number of threads in turn, several times, and prints the fastest: once finding
a row's list by comparing it with all centroids, as below 16,384 lists, once through a graph, as from there
on; and the codes alone. The vectors are random and of length 1, 50 for each list. Run it on an idle machine:
a thread that waits for a core holds up all others.

    python benchmarks/bench_index_threads.py --threads 1 2
    python benchmarks/bench_index_threads.py --threads 1 2 4 8 16 --lists 4096
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
from numpy.typing import NDArray

import indexing.build
from indexing.plan import IndexConfig, plan_index

_ROWS_PER_LIST = 50
_CODES = "PQ192x4fs,Refine(SQfp16)"  # what `auto` takes beyond 200,000 rows, below its lists


def unit_vectors(count: int, dim: int) -> NDArray[np.float32]:
    """Random directions, float32[count, dim]."""
    rows = np.random.default_rng(0).standard_normal((count, dim)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@contextmanager
def graph_from(num_lists: int) -> Iterator[None]:
    """Lists are trained through a graph from so many on."""
    before = indexing.build.MIN_LISTS_TRAINED_BY_GRAPH
    indexing.build.MIN_LISTS_TRAINED_BY_GRAPH = num_lists
    try:
        yield
    finally:
        indexing.build.MIN_LISTS_TRAINED_BY_GRAPH = before


def train(vectors: NDArray[np.float32], factory: str, *, by_graph: bool, num_threads: int) -> None:
    """One training from nothing."""
    plan = plan_index(len(vectors), vectors.shape[1], IndexConfig(factory=factory))
    with graph_from(1 if by_graph else len(vectors)):
        indexing.build.train_index(vectors, plan, num_threads=num_threads)


def seconds_of(work: Callable[[], None]) -> tuple[float, float]:
    """Seconds by the clock and CPU seconds of all threads."""
    clock_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - clock_s, time.process_time() - cpu_s


def main() -> None:
    """Measures and prints a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--lists", type=int, default=1_024)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    vectors = unit_vectors(_ROWS_PER_LIST * arguments.lists, arguments.dim)
    works: dict[str, Callable[..., None]] = {
        f"{arguments.lists:,} lists by comparing": partial(
            train, vectors, f"IVF{arguments.lists},Flat", by_graph=False
        ),
        f"{arguments.lists:,} lists through a graph": partial(
            train, vectors, f"IVF{arguments.lists},Flat", by_graph=True
        ),
        "codes": partial(train, vectors, _CODES, by_graph=False),
    }
    print(
        "| training of | threads | seconds | CPU seconds | faster than one |\n|---|---|---|---|---|",
        flush=True,
    )
    for name, work in works.items():
        found: dict[int, list[tuple[float, float]]] = {count: [] for count in arguments.threads}
        for _ in range(arguments.repeats):
            for count, measured in found.items():
                measured.append(seconds_of(partial(work, num_threads=count)))
        first_s = min(found[arguments.threads[0]])[0]
        for count, measured in found.items():
            clock_s, cpu_s = min(measured)
            print(f"| {name} | {count} | {clock_s:.2f} | {cpu_s:.2f} | {first_s / clock_s:.2f} |", flush=True)


if __name__ == "__main__":
    main()
