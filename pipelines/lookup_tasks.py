"""The work of the lookup stage, one shard at a time.

In a file of its own because its tasks need it and nothing else: they start without loading torch.
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
from indexing.vector_files import write_vector_file
from indexing.vectors import VectorDtype, read_vectors
from pipelines.collection import iterate_shards
from pipelines.documents import write_documents, write_id_table
from pipelines.manifest import Manifest, ShardRecord
from pipelines.names import BM25_FOLDER, VECTORS_FOLDER
from pipelines.shards import ShardFunction
from pipelines.storage import Location


class ShardWriter:
    """Makes the function that rewrites one shard of documents, and of vectors where they are given."""

    def __init__(
        self, documents: Location, vectors: Location | None, output: Location, *, dtype: VectorDtype
    ):
        self.documents, self.vectors, self.output = documents, vectors, output
        self.dtype = dtype

    def __call__(self) -> ShardFunction:
        """The function, for `run_shards`."""
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


class LexicalWriter:
    """Makes the function that builds BM25 and the table of document ids; all texts in one task's memory."""

    def __init__(self, documents: Location, manifest: Manifest, output: Location):
        self.documents, self.manifest, self.output = documents, manifest, output

    def __call__(self) -> ShardFunction:
        """The function, for `run_shards`."""
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
