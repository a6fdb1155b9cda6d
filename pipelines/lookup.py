"""The lookup stage: what searching needs beside the index, ready to be memory-mapped.

    documents/part-*.arrow   texts, titles and columns, uncompressed: one document is one slice
    id_hashes.npy, id_rows.npy   from a document id to its row
    bm25/                    the lexical index
    vectors/part-*.npy       vectors for exact re-scoring, only where the index keeps compressed ones

Texts are stored a second time because a row of compressed Parquet costs the decoding of a row group; vectors
are stored a second time only where scores would be inexact without them.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from indexing.bm25 import BM25Searcher
from indexing.store import open_index
from indexing.vector_files import write_vector_file
from indexing.vectors import VectorDtype, read_vectors
from pipelines.collection import finished_manifest, iterate_shards
from pipelines.config import RunConfig
from pipelines.documents import write_documents, write_id_table
from pipelines.embed import documents_folder
from pipelines.index_stage import INDEX_FOLDER
from pipelines.manifest import Manifest, ShardRecord, StageFolder
from pipelines.progress import Reporter
from pipelines.shards import ShardFunction, run_shards
from pipelines.storage import Location

LOOKUP_FOLDER = "lookup"
VECTORS_FOLDER = "vectors"
BM25_FOLDER = "bm25"


def build_lookup(config: RunConfig, workspace: Location, *, reporter: Reporter) -> Manifest:
    """Runs the stage unless it is finished; writes `lookup/`.

    Raises:
        InputError: documents, vectors or index are not finished.
    """
    documents = documents_folder(config, workspace)
    manifest = finished_manifest(documents, command="prepare")
    vectors = finished_manifest(workspace / "vectors", command="embed")
    finished_manifest(workspace / INDEX_FOLDER, command="index")
    with (workspace / INDEX_FOLDER).as_local_folder() as folder:
        with_vectors = not open_index(folder).keeps_vectors
    inputs = {"documents": manifest.digest} | ({"vectors": vectors.digest} if with_vectors else {})
    stage = StageFolder(workspace / LOOKUP_FOLDER, stage=LOOKUP_FOLDER, config={}, inputs=inputs)
    num_rows = manifest.counts["rows_kept"]
    if (finished := stage.finished()) is not None:
        reporter.note(f"lookup: up to date, {num_rows:,} documents")
        return finished
    stage.begin()
    items: dict[str, dict[str, Any]] = {shard.name: {} for shard in manifest.shards}
    source = workspace / "vectors" if with_vectors else None
    shards = run_shards(
        stage,
        "documents",
        items,
        _ShardWriter(documents, source, stage.folder, dtype=vectors.config["dtype"]),
        reporter=reporter,
        label="lookup documents",
        unit="documents",
        total_units=num_rows,
    )
    lexical = run_shards(
        stage,
        "lexical",
        {"lexical": {}},
        _LexicalWriter(documents, manifest, stage.folder),
        reporter=reporter,
        label="lookup words",
    )
    counts = {"documents": num_rows, "vectors": num_rows if with_vectors else 0}
    return stage.finish(counts=counts, shards=[*shards, *lexical])


class _ShardWriter:
    """Makes the function that rewrites one shard of documents, and of vectors where they are given."""

    def __init__(
        self, documents: Location, vectors: Location | None, output: Location, *, dtype: VectorDtype
    ):
        self.documents, self.vectors, self.output = documents, vectors, output
        self.dtype = dtype

    def __call__(self) -> ShardFunction:
        return self._write

    def _write(self, name: str, _spec: Mapping[str, Any]) -> ShardRecord:
        place = self.documents / f"{name}.parquet"
        with place.filesystem.open_input_file(place.path) as stream:
            table = pq.ParquetFile(stream).read()
        digest = write_documents(self.output, name, table)
        if self.vectors is not None:
            digest = hashlib.sha256((digest + self._write_vectors(name)).encode()).hexdigest()
        return ShardRecord(name=name, num_rows=table.num_rows, digest=digest)

    def _write_vectors(self, name: str) -> str:
        assert self.vectors is not None
        place = self.vectors / f"{name}.parquet"
        _, rows = read_vectors(place.filesystem, place.path)
        target = self.output / VECTORS_FOLDER / f"{name}.npy"
        with tempfile.TemporaryDirectory(prefix="tsdae-vectors-") as folder:
            write_vector_file(Path(folder) / target.name, rows.astype(self.dtype))
            return (self.output / VECTORS_FOLDER).upload_folder(Path(folder))[target.name]


class _LexicalWriter:
    """Makes the function that builds BM25 and the table of document ids; all texts in one task's memory."""

    def __init__(self, documents: Location, manifest: Manifest, output: Location):
        self.documents, self.manifest, self.output = documents, manifest, output

    def __call__(self) -> ShardFunction:
        return self._write

    def _write(self, name: str, _spec: Mapping[str, Any]) -> ShardRecord:
        parts, doc_ids, texts = [np.empty(0, np.int64)], [], []
        for table in iterate_shards(self.documents, self.manifest, ["row_id", "doc_id", "text"]):
            parts.append(table.column("row_id").to_numpy())
            doc_ids += table.column("doc_id").to_pylist()
            texts += table.column("text").to_pylist()
        row_ids = np.concatenate(parts)
        with tempfile.TemporaryDirectory(prefix="tsdae-lookup-") as folder:
            write_id_table(Path(folder), doc_ids, row_ids)
            BM25Searcher.build(row_ids, texts).save(Path(folder) / BM25_FOLDER)
            digests = self.output.upload_folder(Path(folder))
        digest = hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest()
        return ShardRecord(name=name, num_rows=len(row_ids), digest=digest)
