"""Nearest-neighbour indexes side by side: exact search, this project's choice, hnswlib, usearch, autofaiss.

Usage: python benchmarks/bench_index.py VECTORS.npy [--rows 100000] [--queries 1000] [--densify FACTOR]

VECTORS.npy is float32[n, d], for instance from benchmarks/sentence_vectors.py; its last rows are the queries,
so no query is in the index. The peers are not dependencies of the project; those that are absent are left
out with a line. To have them, in an environment of their own (autofaiss asks for an old numpy):

    python -m venv peers && peers/bin/pip install faiss-cpu hnswlib usearch autofaiss 'pyarrow<19'
    PYTHONPATH=. peers/bin/python benchmarks/bench_index.py VECTORS.npy

Everything is built and searched in this one process, one thread. The rate for one thread is queries per
second of CPU time, which other work on the machine disturbs less than the clock; that for two threads is by
the clock, two Python threads with half of the queries each. --densify makes more rows from fewer by mixing
each with a near one: easier than real rows, and named in the output.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from indexing.build import add_vectors, train_index, tune_search
from indexing.exact import exact_search, normalize_rows
from indexing.faiss_library import write_faiss_file
from indexing.hits import NO_HIT, Hits, recall_at
from indexing.plan import IndexConfig, plan_index
from indexing.search import IndexSearcher

Vectors = NDArray[np.float32]
Search = Callable[[Vectors], NDArray[np.int64]]
K = 10
HNSW = {"m": 16, "ef_construction": 200}
EFFORTS = (16, 32, 64, 128, 256, 512)


class System:
    """A built index: its name, cost, and how to search it at several settings."""

    def __init__(self, name: str, *, build_s: float, size_bytes: int, settings: Iterator[tuple[str, Search]]):
        self.name, self.build_s, self.size_bytes, self.settings = name, build_s, size_bytes, settings


def exact_system(rows: Vectors) -> System:
    """Scores of all rows by matrix product, the best ten selected by FAISS."""
    started_s = time.process_time()
    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(rows)
    return System(
        "exact (FAISS Flat)",
        build_s=time.process_time() - started_s,
        size_bytes=rows.nbytes,
        settings=iter([("", lambda queries: index.search(queries, K)[1])]),
    )


def our_system(rows: Vectors, sample: Vectors, **wishes: Any) -> System:
    """What `plan_index` chooses, searched through `IndexSearcher`; settings are tuned to several targets."""
    config = IndexConfig(allow_lower_recall=True, **wishes)
    plan = plan_index(len(rows), rows.shape[1], config)
    started_s = time.process_time()
    order = np.random.default_rng(0).permutation(len(rows))[: plan.num_train_vectors]
    index = train_index(rows[np.sort(order)], plan)
    for start in range(0, len(rows), 65_536):
        block = rows[start : start + 65_536]
        add_vectors(index, np.arange(start, start + len(block)), block)
    build_s = time.process_time() - started_s
    searcher = IndexSearcher(index, metric="cosine")
    exact = exact_search(sample, [(np.arange(len(rows)), rows)], 2 * K)

    def settings() -> Iterator[tuple[str, Search]]:
        seen = set()
        for target in (0.8, 0.9, 0.95, 0.97, 0.99, 0.995):
            wanted = IndexConfig(target_recall_at_10=target, allow_lower_recall=True)
            params = tune_search(index, sample, exact, plan, wanted).params
            if params not in seen:
                seen.add(params)
                values = (params.num_probes, params.ef_search, params.refine_factor)
                label = "/".join(str(value) for value in values if value)
                yield label, lambda queries, p=params: searcher.search(queries, K, params=p).ids  # type: ignore[misc]

    with tempfile.TemporaryDirectory() as folder:
        write_faiss_file(index, Path(folder) / "index")
        size = (Path(folder) / "index").stat().st_size
    name = f"ours: {plan.factory.removeprefix('IDMap,')}"
    return System(name, build_s=build_s, size_bytes=size, settings=settings())


def hnswlib_system(rows: Vectors) -> System:
    """The graph of hnswlib at its usual settings."""
    import hnswlib

    index = hnswlib.Index(space="ip", dim=rows.shape[1])
    index.init_index(max_elements=len(rows), M=HNSW["m"], ef_construction=HNSW["ef_construction"])
    index.set_num_threads(1)
    started_s = time.process_time()
    index.add_items(rows, np.arange(len(rows)), num_threads=1)
    build_s = time.process_time() - started_s

    def settings() -> Iterator[tuple[str, Search]]:
        for effort in EFFORTS:
            index.set_ef(effort)
            yield (
                f"{effort}",
                lambda queries: index.knn_query(queries, k=K, num_threads=1)[0].astype(np.int64),
            )

    with tempfile.TemporaryDirectory() as folder:
        index.save_index(f"{folder}/index")
        size = Path(f"{folder}/index").stat().st_size
    return System(f"hnswlib M={HNSW['m']}", build_s=build_s, size_bytes=size, settings=settings())


def usearch_system(rows: Vectors) -> System:
    """The graph of usearch over half floats."""
    from usearch.index import Index

    index = Index(
        ndim=rows.shape[1],
        metric="ip",
        dtype="f16",
        connectivity=HNSW["m"],
        expansion_add=HNSW["ef_construction"],
    )
    started_s = time.process_time()
    index.add(np.arange(len(rows)), rows, threads=1)
    build_s = time.process_time() - started_s

    def settings() -> Iterator[tuple[str, Search]]:
        for effort in EFFORTS:
            index.expansion_search = effort
            yield f"{effort}", lambda queries: index.search(queries, K, threads=1).keys.astype(np.int64)

    with tempfile.TemporaryDirectory() as folder:
        index.save(f"{folder}/index")
        size = Path(f"{folder}/index").stat().st_size
    return System(f"usearch f16 M={HNSW['m']}", build_s=build_s, size_bytes=size, settings=settings())


def autofaiss_system(rows: Vectors) -> System:
    """What autofaiss chooses and tunes by itself."""
    from autofaiss import build_index

    started_s = time.process_time()
    index, _ = build_index(
        rows,
        save_on_disk=False,
        metric_type="ip",
        max_index_memory_usage="4GB",
        current_memory_available="8GB",
        nb_cores=1,
        verbose=40,
    )
    build_s = time.process_time() - started_s
    faiss.omp_set_num_threads(1)
    size = len(faiss.serialize_index(index))
    name = f"autofaiss: {type(faiss.downcast_index(index)).__name__}"
    settings = iter([("its own", lambda queries: index.search(queries, K)[1])])
    return System(name, build_s=build_s, size_bytes=size, settings=settings)


def rate(search: Search, queries: Vectors, *, threads: int) -> float:
    """Queries per second, the best of three: CPU time for one thread, the clock for more."""
    best = 0.0
    for _ in range(3):
        if threads == 1:
            started_s = time.process_time()
            search(queries)
            best = max(best, len(queries) / (time.process_time() - started_s))
        else:
            with ThreadPoolExecutor(threads) as pool:
                started_s = time.monotonic()
                list(pool.map(search, np.array_split(queries, threads)))
                best = max(best, len(queries) / (time.monotonic() - started_s))
    return best


def main() -> None:
    """Prints one table row per setting as it is measured, and JSON lines with --json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("vectors", type=Path)
    parser.add_argument("--rows", type=int, default=0, help="0 takes all but the queries")
    parser.add_argument("--queries", type=int, default=1_000)
    parser.add_argument("--densify", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help="exact ours latency hnswlib usearch autofaiss")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    faiss.omp_set_num_threads(1)
    stored = np.load(options.vectors, mmap_mode="r")
    queries = normalize_rows(np.array(stored[-options.queries :]))
    rows = normalize_rows(np.array(stored[: options.rows or len(stored) - options.queries]))
    rows = densified(rows[: len(stored) - options.queries], options.densify)
    print(f"{len(rows):,} rows of {rows.shape[1]}, {len(queries):,} queries, densified {options.densify}x")
    truth = exact_search(queries, [(np.arange(len(rows)), rows)], 2 * K)
    # Settings are tuned on other vectors than those that are timed.
    rng = np.random.default_rng(1)
    near = rows[rng.integers(0, len(rows), 200)] + rows[rng.integers(0, len(rows), 200)] * np.float32(0.2)
    sample = normalize_rows(near)
    makers: dict[str, Callable[[], System]] = {
        "exact": lambda: exact_system(rows),
        "ours": lambda: our_system(rows, sample),
        "latency": lambda: our_system(rows, sample, prefer="latency"),
        "hnswlib": lambda: hnswlib_system(rows),
        "usearch": lambda: usearch_system(rows),
        "autofaiss": lambda: autofaiss_system(rows),
    }
    print("| system | setting | build CPU s | MB | recall@10 | queries/s, 1 thread | 2 threads |")
    print("|---|---|---|---|---|---|---|")
    for key, make in makers.items():
        if options.only and key not in options.only:
            continue
        try:
            system = make()
        except ImportError as error:
            print(f"{key} is left out: {str(error).splitlines()[0]} (see the top of this file)")
            continue
        report(system, queries, truth, options.json)


def report(system: System, queries: Vectors, truth: Hits, output: Path | None) -> None:
    """Measures and prints every setting of one system."""
    for label, search in system.settings:
        found = search(queries)
        hits = Hits(np.where(found < 0, NO_HIT, found), np.zeros(found.shape, np.float32))
        row = {
            "system": system.name,
            "setting": label,
            "build_cpu_s": round(system.build_s, 1),
            "size_mb": round(system.size_bytes / 1e6),
            "recall_at_10": round(recall_at(hits, truth, K), 4),
            "queries_per_cpu_s": round(rate(search, queries, threads=1)),
            "queries_per_s_2_threads": round(rate(search, queries, threads=2)),
        }
        print("| " + " | ".join(str(value) for value in row.values()) + " |", flush=True)
        if output is not None:
            with output.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row) + "\n")


def densified(rows: Vectors, factor: int) -> Vectors:
    """`factor` times as many rows: the real ones, then mixtures of each with one of its near neighbours."""
    if factor == 1:
        return rows
    plan = plan_index(len(rows), rows.shape[1], IndexConfig(factory="IVF256,SQ8"))
    index = train_index(rows[:20_000], plan)
    add_vectors(index, np.arange(len(rows)), rows)
    index.nprobe = 4
    neighbours = index.search(rows, factor)[1]
    rng = np.random.default_rng(0)
    parts = [rows]
    for place in range(1, factor):
        share = rng.uniform(0.3, 0.7, size=(len(rows), 1)).astype(np.float32)
        noise = rng.standard_normal(rows.shape, dtype=np.float32) * np.float32(0.1 / np.sqrt(rows.shape[1]))
        other = rows[np.maximum(neighbours[:, place], 0)]
        parts.append(normalize_rows((1 - share) * rows + share * other + noise))
    return np.concatenate(parts)


if __name__ == "__main__":
    main()
