"""How long opening a large workspace takes, and how much of it is read for the first answers.

    python benchmarks/open_index.py [--rows 1000000] [--dim 384] [--folder FOLDER]

Writes an index over synthetic vectors, vector files and documents as the stages do, then opens them in
another process by memory map, searches with exact re-scoring, and looks texts up by row id. Needs about 2 GB
of disk at the default size.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from indexing.build import add_vectors, train_index
from indexing.exact import normalize_rows
from indexing.plan import IndexConfig, SearchParams, plan_index
from indexing.store import IndexMetadata, open_index, save_index
from indexing.vector_files import VectorFiles, write_vector_file
from pipelines.documents import Documents, write_documents, write_id_table
from pipelines.prepare import ROWS_PER_SHARD_BITS
from pipelines.storage import Location

NUM_SHARDS = 8
NUM_CENTRES = 2_000


def main() -> None:
    """Writes, then measures in another process so that nothing is warm in this one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--factory", default="IVF1024,SQ8")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only-open", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only_open:
        measure(options.folder)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        write(Path(folder), options.rows, options.dim, options.factory)
        command = [sys.executable, __file__, "--only-open", "--folder", folder]
        subprocess.run(command, check=True)


def write(folder: Path, num_rows: int, dim: int, factory: str) -> None:
    """An index, vector files and documents of synthetic rows."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((NUM_CENTRES, dim), dtype=np.float32)
    plan = plan_index(num_rows, dim, IndexConfig(factory=factory))
    index, all_ids, doc_ids = None, [], []
    (folder / "vectors").mkdir()
    per_shard = num_rows // NUM_SHARDS
    started = time.perf_counter()
    for shard in range(NUM_SHARDS):
        noise = rng.standard_normal((per_shard, dim), dtype=np.float32)
        vectors = normalize_rows(centres[rng.integers(0, NUM_CENTRES, per_shard)] + 0.5 * noise)
        ids = (shard << ROWS_PER_SHARD_BITS) + np.arange(per_shard, dtype=np.int64)
        if index is None:
            index = train_index(vectors[:60_000], plan)
        add_vectors(index, ids, vectors)
        write_vector_file(folder / "vectors" / f"part-{shard:05d}.npy", vectors.astype(np.float16))
        names = [f"doc-{row}" for row in ids.tolist()]
        texts = [f"document {name} " + "some words of a text " * 12 for name in names]
        table = pa.table({"row_id": ids, "doc_id": names, "text": texts, "title": names})
        write_documents(Location.parse(folder), f"part-{shard:05d}", table)
        all_ids.append(ids)
        doc_ids += names
    write_id_table(folder, doc_ids, np.concatenate(all_ids))
    metadata = IndexMetadata(
        factory=plan.factory,
        metric="cosine",
        dim=dim,
        num_vectors=per_shard * NUM_SHARDS,
        search_params=SearchParams(num_probes=16),
        recall_at_10=None,
        target_recall_at_10=0.95,
        encoder_fingerprint="none",
        documents_digest="none",
    )
    save_index(folder / "index", index, metadata)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(
        f"{per_shard * NUM_SHARDS:,} rows of {dim}, {plan.factory}: {size / 2**20:,.0f} MiB "
        f"written in {time.perf_counter() - started:.0f} s"
    )


def measure(folder: Path) -> None:
    """Times of opening, of a first and of later searches, and of documents."""
    started = time.perf_counter()
    files = VectorFiles.open(folder / "vectors", shard_bits=ROWS_PER_SHARD_BITS)
    index = open_index(folder / "index", full_vectors=files)
    documents = Documents.open(folder)
    print(f"open: {1000 * (time.perf_counter() - started):.0f} ms, {resident_mib():.0f} MiB resident")
    queries = files.rows(np.arange(50, dtype=np.int64) * 997 % (len(documents) // NUM_SHARDS))
    for name, part in (("first search", queries[:1]), ("49 more", queries[1:])):
        started = time.perf_counter()
        hits = [index.search(query[None], 10) for query in part]
        taken = 1000 * (time.perf_counter() - started) / len(part)
        print(f"{name}: {taken:.1f} ms a query, {resident_mib():.0f} MiB resident")
    started = time.perf_counter()
    rows = [documents.rows(hit.ids[0]) for hit in hits]
    taken = 1000 * (time.perf_counter() - started) / len(rows)
    print(f"texts of 10 hits: {taken:.2f} ms, {resident_mib():.0f} MiB resident")
    started = time.perf_counter()
    found = documents.row_ids_of([row["doc_id"] for row in rows[0]])
    print(f"10 rows by document id: {1000 * (time.perf_counter() - started):.2f} ms")
    assert found.tolist() == hits[0].ids[0].tolist()


def resident_mib() -> float:
    """Memory of this process that no file backs and that is in use, in MiB; mapped pages aside."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon"))) / 1024


if __name__ == "__main__":
    main()
