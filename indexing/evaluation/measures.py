"""Measures of a ranking, and the scoring of a run query by query.

A measure is a value; its name is the column in every table, file and MLflow run. Scores come from
`ir_measures` (trec_eval's definitions, MS MARCO's for reciprocal rank with a cut-off). Must not know
searchers, reports or files.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import ir_measures

from indexing.arrays import shorten
from indexing.evaluation.rows import QueryScore

_KINDS = {
    "ndcg": ("nDCG", "nDCG"),
    "map": ("MAP", "AP"),
    "mrr": ("MRR", "RR"),
    "recall": ("Recall", "R"),
    "precision": ("Precision", "P"),
}
_NEED_CUTOFF = ("recall", "precision")


@dataclass(frozen=True)
class Measure:
    """One measure, for instance `Measure("ndcg", 10)`; values lie in [0, 1].

    Attributes:
        kind: ndcg (linear gains, log2 discount), map (average precision), mrr (reciprocal rank of the first
            relevant document), recall, precision. Relevant = grade >= 1.
        cutoff: only the first so many documents count; None = the whole ranking. The denominator of map and
            recall is always the number of all relevant documents, as in trec_eval.

    Raises:
        ValueError: unknown kind, cut-off < 1, or recall and precision without one.
    """

    kind: str
    cutoff: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"unknown measure {self.kind!r}; known: {', '.join(_KINDS)}")
        if self.cutoff is not None and self.cutoff < 1:
            raise ValueError(f"measure {self.kind}: the cut-off must be at least 1, got {self.cutoff}")
        if self.cutoff is None and self.kind in _NEED_CUTOFF:
            raise ValueError(f"measure {self.kind} needs a cut-off, for instance {self.kind}_at_10")

    @classmethod
    def named(cls, name: str) -> "Measure":
        """The measure of a name such as `ndcg_at_10` or `map`.

        Raises:
            ValueError: not such a name.
        """
        found = re.fullmatch(r"([a-z]+)(?:_at_(\d+))?", name)
        if not found:
            raise ValueError(
                f"unknown measure {name!r}; write it like ndcg_at_10, map, mrr_at_10, recall_at_100"
            )
        return cls(found.group(1), int(found.group(2)) if found.group(2) else None)

    @property
    def name(self) -> str:
        """Legal as an MLflow metric name: `ndcg_at_10`, `map`, `mrr_at_10`, `recall_at_100`."""
        return self.kind if self.cutoff is None else f"{self.kind}_at_{self.cutoff}"

    @property
    def label(self) -> str:
        """For people: `nDCG@10`, `MAP`."""
        title = _KINDS[self.kind][0]
        return title if self.cutoff is None else f"{title}@{self.cutoff}"


DEFAULT_MEASURES = (Measure("ndcg", 10), Measure("map"), Measure("mrr", 10), Measure("recall", 100))


def score_run(
    qrels: Mapping[str, Mapping[str, int]],
    run: Mapping[str, Sequence[tuple[str, float]]],
    measures: Iterable[Measure] = DEFAULT_MEASURES,
) -> list[QueryScore]:
    """Score every judged query.

    Args:
        qrels: query id -> document id -> grade; grades <= 0 are not relevant.
        run: query id -> documents, best first. The given order is what is measured: equal scores are not
            reordered by document id, as evaluation tools do on their own. Queries that are not judged are
            left out; judged queries that are missing score 0.
        measures: at least one.

    Returns:
        One row for each judged query and measure, in the order of `qrels` and `measures`.

    Raises:
        ValueError: scores that rise along a ranking, a NaN score, a document twice in one ranking, or no
            judged query.
    """
    wanted = list(measures)
    if not qrels or not wanted:
        raise ValueError("score_run: expected at least one judged query and one measure")
    ranked = {query_id: _by_rank(query_id, run[query_id]) for query_id in qrels if query_id in run}
    by_measure = {_ir_measure(measure): measure for measure in wanted}
    plain_qrels = {query_id: dict(judged) for query_id, judged in qrels.items()}
    values = {
        (metric.query_id, by_measure[metric.measure].name): float(metric.value)
        for metric in ir_measures.iter_calc(list(by_measure), plain_qrels, ranked)
    }
    return [
        QueryScore(query_id=query_id, measure=measure.name, value=values[query_id, measure.name])
        for query_id in qrels
        for measure in wanted
    ]


def mean_by_measure(rows: Iterable[QueryScore]) -> dict[str, float]:
    """Plain mean over queries for each measure name, in order of first appearance."""
    values: dict[str, list[float]] = {}
    for row in rows:
        values.setdefault(row.measure, []).append(row.value)
    return {name: sum(column) / len(column) for name, column in values.items()}


def _by_rank(query_id: str, ranking: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Strictly falling scores by place: trec_eval sorts by score, then id, and so cannot reorder ties."""
    scores = [score for _, score in ranking]
    if any(not later <= earlier for earlier, later in pairwise(scores)):
        raise ValueError(f"score_run: query {query_id!r}: scores must fall along the ranking and not be NaN")
    by_rank = {doc_id: float(len(ranking) - place) for place, (doc_id, _) in enumerate(ranking)}
    if len(by_rank) != len(ranking):
        doc_ids = [doc_id for doc_id, _ in ranking]
        twice = sorted({doc_id for doc_id in doc_ids if doc_ids.count(doc_id) > 1})
        raise ValueError(f"score_run: query {query_id!r}: documents {shorten(twice)} are ranked twice")
    return by_rank


def _ir_measure(measure: Measure) -> ir_measures.Measure:
    base = getattr(ir_measures, _KINDS[measure.kind][1])
    return base if measure.cutoff is None else base @ measure.cutoff
