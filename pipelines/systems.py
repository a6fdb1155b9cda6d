"""The systems that an evaluation compares, each as one task: queries in, hits over the documents out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from indexing.arrays import is_among
from indexing.evaluation.measures import DEFAULT_MEASURES, Measure, score_run
from indexing.evaluation.rows import label_rows, write_rows
from indexing.evaluation.run import Run, run_of_hits
from indexing.evaluation.tasks import RetrievalTask
from indexing.exact import exact_search, normalize_rows
from indexing.fusion import FusionConfig, fuse
from indexing.hits import NO_HIT, Hits, recall_at
from indexing.plan import Metric, SearchParams
from indexing.store import open_index
from indexing.vectors import VectorForm, read_vectors
from pipelines.collection import iterate_shards, read_deleted, read_rows
from pipelines.errors import InputError
from pipelines.lexical import lexical_searcher
from pipelines.manifest import Manifest, ShardRecord
from pipelines.prepare import write_parquet
from pipelines.shards import ShardFunction
from pipelines.shown import SHOWN_HITS, ShownQuery, shown_of_run, write_shown
from pipelines.storage import Location
from pipelines.versions import current_version

# Speed is measured on at most so many queries of a task; places beyond 10 let ties at place 10 count.
_SPEED_QUERIES = 200
_SPEED_DEPTH = 20
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

    kind: exact (encoder with exact search), index (encoder through the FAISS index), bm25, or hybrid (index
    and BM25 fused, as `tsdae search --mode hybrid` does).
    encoder, vectors: folder names in the workspace; empty for bm25.
    """

    name: str
    kind: str
    encoder: str = ""
    vectors: str = ""


@dataclass(frozen=True)
class EvaluationTask:
    """Makes the function that runs one system on one task and scores it.

    lexical: where a BM25 index over the documents lies; None builds one (see `pipelines.lexical`).
    fusion: of hybrid systems.
    """

    workspace: Location
    documents: Location
    manifest: Manifest
    output: Location
    top_k: int
    metric: Metric
    form: VectorForm
    search_grid: tuple[SearchParams, ...] = ()
    lexical: Location | None = None
    fusion: FusionConfig = field(default_factory=FusionConfig)

    def __call__(self) -> ShardFunction:
        """The function that runs one cell, for `run_shards`."""
        return self._evaluate

    def _evaluate(self, name: str, spec: Mapping[str, Any]) -> ShardRecord:
        system: System = spec["system"]
        task: RetrievalTask = spec["task"]
        judged = self._judged_rows(task)
        hits = _SEARCH[system.kind](self, system, task.queries)
        ids = np.unique(hits.ids[hits.ids != NO_HIT])
        rows = read_rows(self.documents, ids, ["doc_id"])
        doc_ids = {int(row_id): str(row["doc_id"]) for row_id, row in zip(ids, rows, strict=True)}
        run = run_of_hits(hits, task.query_ids, doc_ids)
        write_shown(self.output / "shown" / f"{name}.parquet", self._shown(task, run, hits, doc_ids, judged))
        if system.kind == "index" and self.search_grid:
            self._measure_speed(name, system, task.queries)
        measures = measures_for(self.top_k)
        scores = label_rows(score_run(task.qrels, run, measures), system=system.name, task=task.name)
        write_parquet(self.output / "runs" / f"{name}.parquet", _run_table(hits, task.query_ids, doc_ids))
        place = self.output / "scores" / f"{name}.parquet"
        with place.write_atomically() as target:
            write_rows(target.filesystem, target.path, scores)
        counts = {
            "skipped_queries": task.num_skipped_queries,
            "unknown_queries": task.num_unknown_queries,
            "unknown_documents": len(task.judged_doc_ids()) - len(judged),
        }
        return ShardRecord(name=name, num_rows=len(scores), digest=place.sha256(), counts=counts)

    def _judged_rows(self, task: RetrievalTask) -> dict[str, int]:
        """Document id -> row id of the judged documents that the collection has (the others are not found).

        Raises:
            InputError: it has none of them.
        """
        judged = pa.array(sorted(task.judged_doc_ids()), pa.string())
        present: dict[str, int] = {}
        for table in iterate_shards(self.documents, self.manifest, ["doc_id", "row_id"]):
            found = table.filter(pc.is_in(table.column("doc_id"), judged))
            for doc_id, row_id in zip(
                *(found.column(c).to_pylist() for c in ("doc_id", "row_id")), strict=True
            ):
                present.setdefault(doc_id, row_id)
        if not present:
            raise InputError(
                f"task '{task.name}': none of its {len(judged)} judged documents is among the "
                f"{self.manifest.counts['rows_kept']} documents; do its ids match documents.id_column?"
            )
        return present

    def _shown(
        self, task: RetrievalTask, run: Run, hits: Hits, doc_ids: Mapping[int, str], judged: Mapping[str, int]
    ) -> list[ShownQuery]:
        """The first hits of every query, and a relevant document, with their texts."""
        relevant = {q: {d for d, grade in task.qrels[q].items() if grade > 0} for q in task.query_ids}
        row_of = dict(judged)
        for ids in hits.ids[:, :SHOWN_HITS].tolist():
            row_of |= {doc_ids[row_id]: row_id for row_id in ids if row_id != NO_HIT}
        wanted = {doc_id for ranking in run.values() for doc_id, _ in ranking[:SHOWN_HITS]}
        wanted |= {doc_id for documents in relevant.values() for doc_id in documents}
        rows = {doc_id: row_of[doc_id] for doc_id in sorted(wanted) if doc_id in row_of}
        texts = read_rows(self.documents, np.array(list(rows.values()), np.int64), ["text"])
        text_of = {doc_id: row["text"] or "" for doc_id, row in zip(rows, texts, strict=True)}
        queries = [(q, text, relevant[q]) for q, text in zip(task.query_ids, task.queries, strict=True)]
        return shown_of_run(run, queries, lambda _, doc_id: text_of.get(doc_id, ""))

    def _measure_speed(self, name: str, system: System, queries: Sequence[str]) -> None:
        """Recall@10 and queries per second of the index for each of its search settings, one thread."""
        vectors = _encode(self.workspace / system.encoder, list(queries[:_SPEED_QUERIES]))
        wanted = self.comparable(self.form.apply(vectors))
        exact = exact_search(wanted, self.blocks(system.vectors), _SPEED_DEPTH)
        points = []
        with current_version(self.workspace / "index").as_local_folder() as folder:
            index = open_index(folder)
            for params in self.search_grid:
                started_s = time.perf_counter()
                found = index.search(vectors, _SPEED_DEPTH, params=params)
                seconds = max(time.perf_counter() - started_s, 1e-9)
                points.append([len(vectors) / seconds, recall_at(found, exact, 10)])
        (self.output / "speed" / f"{name}.json").write_json({"points": points})

    def blocks(self, vectors: str) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Vectors of the documents that are not deleted, shard by shard, ready for inner product."""
        deleted = read_deleted(self.documents, self.manifest)
        for shard in self.manifest.shards:
            place = self.workspace / vectors / f"{shard.name}.parquet"
            row_ids, rows = read_vectors(place.filesystem, place.path)
            kept = ~is_among(row_ids, deleted)
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
    with current_version(task.workspace / "index").as_local_folder() as folder:
        return open_index(folder).search(_encode(task.workspace / system.encoder, queries), task.top_k)


def _hybrid(task: EvaluationTask, system: System, queries: list[str]) -> Hits:
    deep = replace(task, top_k=max(task.top_k, task.fusion.depth))
    return fuse(_index(deep, system, queries), _bm25(deep, system, queries), task.top_k, task.fusion)


def _bm25(task: EvaluationTask, _system: System, queries: list[str]) -> Hits:
    with lexical_searcher(task.lexical, task.documents, task.manifest) as searcher:
        return searcher.retrieve(queries, task.top_k)


_SEARCH: dict[str, Callable[[EvaluationTask, System, list[str]], Hits]] = {
    "exact": _exact,
    "index": _index,
    "bm25": _bm25,
    "hybrid": _hybrid,
}


def _encode(encoder: Location, queries: list[str]) -> NDArray[np.float32]:
    from tsdae_core.encoder import SentenceEncoder

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
