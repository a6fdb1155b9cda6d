"""Rates of index, lookup and exact search.

The vectors are random, which is harder for a graph than real ones are.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scale_rates import DIM, GRAPH_LISTS, timed

_ROWS = 20_000
_COMPARED_LISTS = 4_096
_CODES = "PQ192x4fs,Refine(SQfp16)"  # what `auto` takes beyond 200,000 rows, below its lists
_QUERIES = 200
_DEPTH = 130


def measure_index(folder: Path) -> dict[str, float]:
    """Finding lists by comparing and by graph, coding rows, reading vectors, scoring all rows exactly."""
    import faiss

    from indexing.build import add_vectors, train_index
    from indexing.exact import exact_search
    from indexing.plan import IndexConfig, plan_index
    from indexing.vectors import read_vectors, write_vectors
    from pipelines.storage import Location

    faiss.omp_set_num_threads(1)
    vectors, row_ids = _unit_vectors(_ROWS, seed=0), np.arange(_ROWS, dtype=np.int64)
    place = Location.parse(folder / "vectors.parquet")
    write_vectors(place.filesystem, place.path, row_ids, vectors, dtype="float16")
    _, read_s = timed(lambda: read_vectors(place.filesystem, place.path))
    compared = faiss.IndexFlatIP(DIM)
    compared.add(_unit_vectors(_COMPARED_LISTS, seed=1))
    _, compare_s = timed(lambda: compared.search(vectors, 1))
    graph = faiss.IndexHNSWFlat(DIM, 32, faiss.METRIC_INNER_PRODUCT)
    _, grow_s = timed(lambda: graph.add(_unit_vectors(GRAPH_LISTS, seed=2)))
    _, walk_s = timed(lambda: graph.search(vectors, 1))
    index, train_s = timed(lambda: train_index(vectors, plan_index(_ROWS, DIM, IndexConfig(factory=_CODES))))
    _, add_s = timed(lambda: add_vectors(index, row_ids, vectors))
    _, exact_s = timed(lambda: exact_search(vectors[:_QUERIES], [(row_ids, vectors)], _DEPTH))
    return {
        "vectors_bytes": place.local_path.stat().st_size / _ROWS,
        "vectors_read_rows_per_s": _ROWS / read_s,
        "comparisons_per_s": _ROWS * _COMPARED_LISTS / compare_s,
        "graph_grow_rows_per_s": GRAPH_LISTS / grow_s,
        "graph_rows_per_s": _ROWS / walk_s,
        "codes_train_s": train_s,
        "codes_add_rows_per_s": _ROWS / add_s,
        "exact_scores_per_s": _ROWS * _QUERIES / exact_s,
    }


def measure_lookup(folder: Path, texts: list[str]) -> dict[str, float]:
    """Rewriting texts, and the one task that builds BM25, whose memory is traced in a second run."""
    import pyarrow as pa

    from indexing.bm25 import BM25Searcher
    from pipelines.documents import write_documents, write_id_table
    from pipelines.storage import Location

    place, words = Location.parse(folder / "lookup"), folder / "words"
    words.mkdir()
    row_ids = np.arange(len(texts), dtype=np.int64)
    doc_ids = [f"{number:032x}" for number in row_ids]
    table = pa.table({"row_id": row_ids, "doc_id": doc_ids, "text": texts})
    _, texts_s = timed(lambda: write_documents(place, "part-00000", table))

    def build() -> None:
        write_id_table(words, table.column("doc_id").to_pylist(), row_ids)
        BM25Searcher.build(row_ids, table.column("text").to_pylist()).save(words / "bm25")

    _, words_s = timed(build)
    tracemalloc.start()
    build()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {
        "lookup_texts_rows_per_s": len(texts) / texts_s,
        "lookup_texts_bytes": _size(place.local_path) / len(texts),
        "lookup_words_rows_per_s": len(texts) / words_s,
        "lookup_words_bytes": _size(words) / len(texts),
        "lookup_words_memory_bytes": peak / len(texts),
    }


def _unit_vectors(count: int, *, seed: int) -> NDArray[np.float32]:
    rows = np.random.default_rng(seed).standard_normal((count, DIM)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
