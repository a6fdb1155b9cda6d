"""The systems that an evaluation compares, each as one task: queries in, hits over the documents out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from indexing.bm25 import BM25Searcher
from indexing.evaluation.measures import DEFAULT_MEASURES, Measure, score_run
from indexing.evaluation.rows import label_rows, write_rows
from indexing.evaluation.run import run_of_hits
from indexing.evaluation.tasks import RetrievalTask
from indexing.exact import exact_search, normalize_rows
from indexing.hits import NO_HIT, Hits
from indexing.plan import Metric
from indexing.store import open_index
from indexing.vectors import VectorForm, read_vectors
from pipelines.collection import iterate_shards, read_deleted, read_rows
from pipelines.errors import InputError
from pipelines.manifest import Manifest, ShardRecord
from pipelines.prepare import write_parquet
from pipelines.shards import ShardFunction
from pipelines.storage import Location
from tsdae_core.encoder import SentenceEncoder

RUN_SCHEMA = pa.schema(
    [
        ("query_id", pa.string()),
        ("rank", pa.int32()),
        ("doc_id", pa.string()),
        ("row_id", pa.int64()),
        ("score", pa.float32()),
    ]
)


@dataclass(frozen=True, kw_only=True)
class System:
    """A row of the table.

    kind: exact (encoder with exact search), index (encoder through the FAISS index) or bm25.
    encoder, vectors: folder names in the workspace; empty for bm25.
    """

    name: str
    kind: str
    encoder: str = ""
    vectors: str = ""


@dataclass(frozen=True)
class EvaluationTask:
    """Makes the function that runs one system on one task and scores it."""

    workspace: Location
    documents: Location
    manifest: Manifest
    output: Location
    top_k: int
    metric: Metric
    form: VectorForm

    def __call__(self) -> ShardFunction:
        """The function that runs one cell, for `run_shards`."""
        return self._evaluate

    def _evaluate(self, name: str, spec: Mapping[str, Any]) -> ShardRecord:
        system: System = spec["system"]
        task: RetrievalTask = spec["task"]
        missing = self._missing_documents(task)
        hits = _SEARCH[system.kind](self, system, task.queries)
        ids = np.unique(hits.ids[hits.ids != NO_HIT])
        rows = read_rows(self.documents, ids, ["doc_id"])
        doc_ids = {int(row_id): str(row["doc_id"]) for row_id, row in zip(ids, rows, strict=True)}
        run = run_of_hits(hits, task.query_ids, doc_ids)
        measures = measures_for(self.top_k)
        scores = label_rows(score_run(task.qrels, run, measures), system=system.name, task=task.name)
        write_parquet(self.output / "runs" / f"{name}.parquet", _run_table(hits, task.query_ids, doc_ids))
        place = self.output / "scores" / f"{name}.parquet"
        with place.write_atomically() as target:
            write_rows(target.filesystem, target.path, scores)
        counts = {"queries": len(task.query_ids), "missing_documents": missing}
        return ShardRecord(name=name, num_rows=len(scores), digest=place.sha256(), counts=counts)

    def _missing_documents(self, task: RetrievalTask) -> int:
        """Number of judged documents that the collection lacks (they count as not found).

        Raises:
            InputError: it has none of them.
        """
        judged = pa.array(sorted(task.judged_doc_ids()), pa.string())
        present: set[str] = set()
        for table in iterate_shards(self.documents, self.manifest, ["doc_id"]):
            ids = table.column("doc_id")
            present.update(ids.filter(pc.is_in(ids, judged)).to_pylist())
        if not present:
            raise InputError(
                f"task '{task.name}': none of its {len(judged)} judged documents is among the "
                f"{self.manifest.counts['rows_kept']} documents; do its ids match documents.id_column?"
            )
        return len(judged) - len(present)

    def blocks(self, vectors: str) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Vectors of the documents that are not deleted, shard by shard, ready for inner product."""
        deleted = read_deleted(self.documents, self.manifest)
        for shard in self.manifest.shards:
            place = self.workspace / vectors / f"{shard.name}.parquet"
            row_ids, rows = read_vectors(place.filesystem, place.path)
            kept = ~np.isin(row_ids, deleted)
            yield row_ids[kept], self.comparable(rows[kept])

    def comparable(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Vectors whose inner product is the metric: normalised for cosine, as they are otherwise."""
        return normalize_rows(vectors) if self.metric == "cosine" else vectors


def cell_name(task_number: int, system_number: int) -> str:
    """The name of the files of one system on one task; names sort like the numbers."""
    return f"task-{task_number:04d}-system-{system_number:04d}"


def measures_for(top_k: int) -> list[Measure]:
    """nDCG@10, MAP, MRR@10, Recall@100, as far as the number of kept hits carries them."""
    return [measure for measure in DEFAULT_MEASURES if measure.cutoff is None or measure.cutoff <= top_k]


def _exact(task: EvaluationTask, system: System, queries: list[str]) -> Hits:
    vectors = task.comparable(task.form.apply(_encode(task.workspace / system.encoder, queries)))
    return exact_search(vectors, task.blocks(system.vectors), task.top_k)


def _index(task: EvaluationTask, system: System, queries: list[str]) -> Hits:
    with (task.workspace / "index").as_local_folder() as folder:
        return open_index(folder).search(_encode(task.workspace / system.encoder, queries), task.top_k)


def _bm25(task: EvaluationTask, _system: System, queries: list[str]) -> Hits:
    """Holds all documents of the collection in this one task's memory."""
    row_ids, texts = [], []
    for table in iterate_shards(task.documents, task.manifest, ["row_id", "text"]):
        row_ids.append(table.column("row_id").to_numpy())
        texts += table.column("text").to_pylist()
    return BM25Searcher.build(np.concatenate(row_ids), texts).retrieve(queries, task.top_k)


_SEARCH: dict[str, Callable[[EvaluationTask, System, list[str]], Hits]] = {
    "exact": _exact,
    "index": _index,
    "bm25": _bm25,
}


def _encode(encoder: Location, queries: list[str]) -> NDArray[np.float32]:
    with encoder.as_local_folder() as folder:
        return SentenceEncoder.load(str(folder)).encode(queries)


def _run_table(hits: Hits, query_ids: list[str], doc_ids: Mapping[int, str]) -> pa.Table:
    rows = [
        (query_id, rank, doc_ids[row_id], row_id, score)
        for query_id, ids, scores in zip(query_ids, hits.ids.tolist(), hits.scores.tolist(), strict=True)
        for rank, (row_id, score) in enumerate(zip(ids, scores, strict=True), 1)
        if row_id != NO_HIT
    ]
    columns = list(zip(*rows, strict=True)) or [()] * len(RUN_SCHEMA)
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, RUN_SCHEMA, strict=True)], schema=RUN_SCHEMA
    )
