"""One system on one task that carries its own texts, as one Ray task: scores, rows, what is shown of them.

Owns the files of such a cell. Must not know which cells there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from indexing.evaluation.pair_rows import PairRow, read_pair_rows, write_pair_rows
from indexing.evaluation.rows import PerQueryRow, read_rows, write_rows
from indexing.evaluation.run_file import read_run
from indexing.evaluation.scoring import TaskScores, rerank_by_run, score_runs, score_task
from indexing.evaluation.text_tasks import CorpusTask, PairTask, RerankTask, TextTask
from pipelines.compared_system import ComparedSystem
from pipelines.manifest import ShardRecord
from pipelines.shards import ShardFunction
from pipelines.shown import ShownQuery, shown_of_run, write_shown
from pipelines.storage import Location
from pipelines.task_source import TaskSource


@dataclass(frozen=True)
class EvaluationCell:
    """Makes the function that runs one cell, for `run_shards`.

    Files: `scores/NAME.parquet` or `pairs/NAME.parquet`, and `shown/NAME.parquet`.
    """

    output: Location
    threads: int = 1
    device: str = "cpu"

    def __call__(self) -> ShardFunction:
        """The function itself; its spec has `task`, a TaskSource, and `system`, a ComparedSystem."""
        return self._evaluate

    def _evaluate(self, name: str, spec: Mapping[str, Any]) -> ShardRecord:
        source: TaskSource = spec["task"]
        system: ComparedSystem = spec["system"]
        task = source.load()
        scores = self._scores(task, system)
        write_shown(self.output / "shown" / f"{name}.parquet", _shown(task, scores))
        folder = "pairs" if scores.pair_rows else "scores"
        place = self.output / folder / f"{name}.parquet"
        with place.write_atomically() as target:
            if scores.pair_rows:
                write_pair_rows(target.filesystem, target.path, scores.pair_rows)
            else:
                write_rows(target.filesystem, target.path, scores.rows)
        num_rows = len(scores.pair_rows) + len(scores.rows)
        return ShardRecord(name=name, num_rows=num_rows, digest=place.sha256(), counts=dict(task.counts))

    def _scores(self, task: TextTask, system: ComparedSystem) -> TaskScores:
        if system.kind != "run":
            scorer = system.scorer(task, threads=self.threads, device=self.device)
            return score_task(task, scorer, system=system.name)
        assert not isinstance(task, PairTask)
        place = Location.parse(system.source)
        run = read_run(place.filesystem, place.path)
        if isinstance(task, RerankTask):
            return score_runs(task, rerank_by_run(task, run), system=system.name)
        return score_runs(task, {part.group: run for part in task.parts}, system=system.name)


def read_cell(
    output: Location, name: str, *, system: str, task: str
) -> tuple[list[PerQueryRow], list[PairRow]]:
    """The rows of a finished cell under the names that they go by now (a cell outlives names)."""
    scores, pairs = (output / folder / f"{name}.parquet" for folder in ("scores", "pairs"))
    if scores.exists():
        rows = read_rows(scores.filesystem, scores.path)
        return [replace(row, system=system, task=task) for row in rows], []
    found = read_pair_rows(pairs.filesystem, pairs.path)
    return [], [replace(row, system=system, task=task) for row in found]


def _shown(task: TextTask, scores: TaskScores) -> list[ShownQuery]:
    if isinstance(task, PairTask):
        return _shown_pairs(task, scores.pair_rows)
    runs = scores.runs or {}
    if isinstance(task, CorpusTask):
        shown = []
        for part in task.parts:
            texts = dict(zip(reversed(part.doc_ids), reversed(part.documents), strict=True))
            queries = [
                (query_id, query, {doc_id for doc_id, grade in part.qrels[query_id].items() if grade > 0})
                for query_id, query in zip(part.query_ids, part.queries, strict=True)
            ]
            shown += shown_of_run(
                runs.get(part.group, {}),
                queries,
                _text_by_id(texts),
                group=part.group,
            )
        return shown
    shown = []
    for group, run in runs.items():
        mine = {query.query_id: query for query in task.queries if query.group == group}
        texts_of = {q: dict(zip(query.doc_ids, query.texts, strict=True)) for q, query in mine.items()}
        queries = [
            (q, query.query, {doc_id for doc_id, grade in query.judged.items() if grade > 0})
            for q, query in mine.items()
        ]
        shown += shown_of_run(run, queries, _text_by_query(texts_of), group=group)
    return shown


def _text_by_id(texts: Mapping[str, str]) -> Callable[[str, str], str]:
    return lambda _, doc_id: texts.get(doc_id, "")


def _text_by_query(texts: Mapping[str, Mapping[str, str]]) -> Callable[[str, str], str]:
    return lambda query_id, doc_id: texts[query_id].get(doc_id, "")


def _shown_pairs(task: PairTask, rows: Sequence[PairRow]) -> list[ShownQuery]:
    """Pairs with their place by score within their group, 1 = most alike."""
    texts = {(pair.group, pair.pair_id): pair for pair in task.pairs}
    places: dict[tuple[str, str], int] = {}
    for group in dict.fromkeys(row.group for row in rows):
        mine = [row for row in rows if row.group == group]
        order = np.argsort([-row.score for row in mine], kind="stable")
        places |= {(group, mine[number].pair_id): place for place, number in enumerate(order.tolist(), 1)}
    return [
        ShownQuery(
            group=row.group,
            query_id=row.pair_id,
            query=texts[row.group, row.pair_id].left,
            relevant_text=texts[row.group, row.pair_id].right,
            best_rank=places[row.group, row.pair_id],
            hits=(),
        )
        for row in rows
    ]
