"""From a task and a system to per-query or per-pair rows, and the rankings behind them.

Owns each protocol's way of ranking and scoring; docs/evaluation.md tells them. Must not know files, encoders
or statistics over queries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from indexing.arrays import Float64Array
from indexing.evaluation.measures import Measure, score_run
from indexing.evaluation.pair_rows import PairRow
from indexing.evaluation.pair_statistics import average_precision
from indexing.evaluation.rows import PerQueryRow, QueryScore, label_rows
from indexing.evaluation.run import Run, run_of_hits
from indexing.evaluation.scorers import Scorer
from indexing.evaluation.text_tasks import CorpusTask, Pair, PairTask, RerankQuery, RerankTask, TextTask

USEB_MAP = "useb_map_at_100"
_USEB_DEPTH = 100
_Grouped = TypeVar("_Grouped", RerankQuery, Pair)


@dataclass(frozen=True)
class TaskScores:
    """What one system got on one task.

    Attributes:
        rows: per query, for re-ranking and retrieval.
        pair_rows: per pair, for pairs.
        runs: group -> query id -> documents, best first.
    """

    rows: tuple[PerQueryRow, ...] = ()
    pair_rows: tuple[PairRow, ...] = ()
    runs: Mapping[str, Run] | None = None


def score_task(task: TextTask, scorer: Scorer, *, system: str) -> TaskScores:
    """Run a system on a task by the task's protocol.

    Raises:
        ValueError: NaN among the scores or vectors.
    """
    if isinstance(task, PairTask):
        return TaskScores(pair_rows=tuple(_pair_rows(task, scorer, system)))
    runs: dict[str, Run] = {}
    if isinstance(task, RerankTask):
        for group, queries in _by_group(task.queries).items():
            runs[group] = _rerank(queries, scorer)
    else:
        for part in task.parts:
            hits = scorer.retrieve(part.queries, part.documents, task.top_k)
            runs[part.group] = run_of_hits(hits, part.query_ids, part.doc_ids)
    return score_runs(task, runs, system=system)


def score_runs(task: RerankTask | CorpusTask, runs: Mapping[str, Run], *, system: str) -> TaskScores:
    """Score rankings that are there already, by group."""
    scores: list[QueryScore] = []
    if isinstance(task, RerankTask):
        for group, queries in _by_group(task.queries).items():
            qrels = {query.query_id: query.judged for query in queries}
            scores += _scores(qrels, runs.get(group, {}), task.measures, group)
    else:
        for part in task.parts:
            scores += _scores(part.qrels, runs.get(part.group, {}), task.measures, part.group)
    return TaskScores(rows=tuple(label_rows(scores, system=system, task=task.name)), runs=runs)


def rerank_by_run(task: RerankTask, run: Run) -> dict[str, Run]:
    """The candidates in the order of a given run; those that it lacks come last, in the task's order."""
    ordered: dict[str, Run] = {}
    for query in task.queries:
        given = dict(run.get(query.query_id, []))
        lowest = min(given.values(), default=0.0) - 1.0
        scores = np.array([given.get(doc_id, lowest) for doc_id in query.doc_ids], np.float64)
        ordered.setdefault(query.group, {})[query.query_id] = _ordered(query, scores)
    return ordered


def _rerank(queries: Sequence[RerankQuery], scorer: Scorer) -> Run:
    found = scorer.candidate_scores([query.query for query in queries], [query.texts for query in queries])
    run: Run = {}
    for query, scores in zip(queries, found, strict=True):
        _refuse_nan(scores)
        run[query.query_id] = _ordered(query, scores.astype(np.float64))
    return run


def _ordered(query: RerankQuery, scores: Float64Array) -> list[tuple[str, float]]:
    """Best first; equal scores keep the order of the candidates."""
    return [(query.doc_ids[place], float(scores[place])) for place in np.argsort(-scores, kind="stable")]


def _pair_rows(task: PairTask, scorer: Scorer, system: str) -> list[PairRow]:
    rows = []
    for group, pairs in _by_group(task.pairs).items():
        scores = scorer.pair_scores([pair.left for pair in pairs], [pair.right for pair in pairs])
        _refuse_nan(scores)
        for pair, score in zip(pairs, scores.tolist(), strict=True):
            positive = -1 if pair.is_positive is None else int(pair.is_positive)
            rows.append(PairRow(system, task.name, group, pair.pair_id, pair.label, positive, score))
    return rows


def _scores(
    qrels: Mapping[str, Mapping[str, int]], run: Run, measures: Sequence[str], group: str
) -> list[QueryScore]:
    plain = [Measure.named(name) for name in measures if name != USEB_MAP]
    found = score_run(qrels, run, plain)
    by_key = {(score.query_id, score.measure): score.value for score in found}
    if USEB_MAP in measures:
        by_key |= {(q, USEB_MAP): _useb_precision(qrels[q], run.get(q, [])) for q in qrels}
    return [QueryScore(q, name, by_key[q, name], group) for q in qrels for name in measures]


def _useb_precision(judged: Mapping[str, int], ranking: Sequence[tuple[str, float]]) -> float:
    """USEB's AP of CQADupStack: of the labels of the first 100 alone, so what is not found does not count."""
    top = ranking[:_USEB_DEPTH]
    labels = [int(judged.get(doc_id, 0) > 0) for doc_id, _ in top]
    return average_precision(labels, [score for _, score in top]) if any(labels) else 0.0


def _by_group(items: Sequence[_Grouped]) -> dict[str, list[_Grouped]]:
    groups: dict[str, list[_Grouped]] = {}
    for item in items:
        groups.setdefault(item.group, []).append(item)
    return groups


def _refuse_nan(scores: npt.NDArray[np.floating]) -> None:
    if not np.isfinite(scores).all():
        raise ValueError(f"{int((~np.isfinite(scores)).sum())} of {len(scores)} scores are NaN or infinite")
