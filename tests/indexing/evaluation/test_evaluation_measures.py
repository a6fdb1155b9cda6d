"""Measures against plain definitions and scikit-learn, with ties and missing queries."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from indexing.evaluation.measures import Measure, mean_by_measure, score_run

NAMES = ("ndcg_at_10", "ndcg_at_3", "map", "map_at_5", "mrr_at_10", "mrr", "recall_at_100", "precision_at_2")
MEASURES = [Measure.named(name) for name in NAMES]


def naive(name: str, judged: dict[str, int], ranking: list[str]) -> float:
    kind, _, cutoff = name.partition("_at_")
    depth = int(cutoff) if cutoff else len(ranking)
    top = ranking[:depth]
    relevant = {doc for doc, grade in judged.items() if grade > 0}
    if kind == "ndcg":
        gains = [max(judged.get(doc, 0), 0) for doc in top]
        ideal = sorted((max(grade, 0) for grade in judged.values()), reverse=True)[:depth]
        dcg, best = (
            sum(gain / math.log2(place + 2) for place, gain in enumerate(column)) for column in (gains, ideal)
        )
        return dcg / best if best else 0.0
    if kind == "map":
        found, total = 0, 0.0
        for place, doc in enumerate(top, start=1):
            if doc in relevant:
                found += 1
                total += found / place
        return total / len(relevant) if relevant else 0.0
    if kind == "mrr":
        return next((1 / place for place, doc in enumerate(top, start=1) if doc in relevant), 0.0)
    found = sum(doc in relevant for doc in top)
    if kind == "recall":
        return found / len(relevant) if relevant else 0.0
    return found / depth


DOCS = [f"d{number}" for number in range(14)]
JUDGED = st.dictionaries(st.sampled_from(DOCS), st.integers(0, 3), min_size=1, max_size=8)
RANKING = st.lists(st.sampled_from(DOCS), unique=True, max_size=14)


@settings(max_examples=150)
@given(
    judged=st.lists(JUDGED, min_size=1, max_size=3),
    rankings=st.lists(RANKING | st.none(), min_size=3, max_size=3),
    tied=st.booleans(),
)
def test_every_measure_equals_its_plain_definition_in_the_given_order(judged, rankings, tied):
    qrels = {f"q{number}": grades for number, grades in enumerate(judged)}
    kept = {f"q{n}": ranking for n, ranking in enumerate(rankings) if ranking is not None}
    run = {q: [(d, 1.0 if tied else -float(p)) for p, d in enumerate(r)] for q, r in kept.items()}
    rows = score_run(qrels, run, MEASURES)
    assert [(row.query_id, row.measure) for row in rows] == [(q, n) for q in qrels for n in NAMES]
    for row in rows:
        wanted = naive(row.measure, qrels[row.query_id], kept.get(row.query_id, []))
        assert row.value == pytest.approx(wanted, abs=1e-5), row


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000), num_docs=st.integers(2, 40))
def test_average_precision_equals_scikit_learn_on_full_rankings(seed, num_docs):
    rng = np.random.default_rng(seed)
    scores, labels = rng.standard_normal(num_docs), rng.integers(0, 2, num_docs)
    labels[0] = 1
    docs = [f"d{n}" for n in range(num_docs)]
    ranking = sorted(zip(docs, scores.tolist(), strict=True), key=lambda pair: -pair[1])
    qrels = {"q": {doc: int(label) for doc, label in zip(docs, labels, strict=True)}}
    value = score_run(qrels, {"q": ranking}, [Measure("map")])[0].value
    assert value == pytest.approx(average_precision_score(labels, scores), abs=1e-6)


def test_a_judged_query_that_is_missing_scores_zero_and_an_unjudged_one_is_left_out():
    rows = score_run({"a": {"d": 1}, "b": {"d": 1}}, {"a": [("d", 1.0)], "c": [("d", 1.0)]})
    assert mean_by_measure(rows) == {
        "ndcg_at_10": 0.5,
        "map": 0.5,
        "mrr_at_10": 0.5,
        "recall_at_100": 0.5,
    }


def test_ties_keep_our_order_although_trec_eval_would_reverse_it():
    run = {"q": [("a", 1.0), ("z", 1.0)]}
    assert score_run({"q": {"a": 1}}, run, [Measure("mrr", 10), Measure("map")])[0].value == 1.0
    assert [row.value for row in score_run({"q": {"z": 1}}, run, [Measure("mrr", 10), Measure("map")])] == [
        0.5,
        0.5,
    ]


def test_rankings_that_are_not_rankings_are_refused():
    qrels = {"q": {"a": 1}}
    with pytest.raises(ValueError, match="'q': scores must fall"):
        score_run(qrels, {"q": [("a", 1.0), ("b", 2.0)]})
    with pytest.raises(ValueError, match="'q': scores must fall"):
        score_run(qrels, {"q": [("a", 1.0), ("b", math.nan)]})
    with pytest.raises(ValueError, match="a are ranked twice"):
        score_run(qrels, {"q": [("a", 1.0), ("a", 1.0)]})
    with pytest.raises(ValueError, match="at least one judged query"):
        score_run({}, {})


@pytest.mark.parametrize("name", NAMES)
def test_names_round_trip_and_are_legal_for_mlflow(name):
    assert Measure.named(name).name == name
    assert "@" not in name


def test_labels_are_for_people():
    assert [Measure.named(n).label for n in ("ndcg_at_10", "map", "mrr_at_10")] == [
        "nDCG@10",
        "MAP",
        "MRR@10",
    ]


@pytest.mark.parametrize("name", ["nDCG@10", "recall", "bleu", "ndcg_at_0", "map_at_"])
def test_unknown_measures_are_refused(name):
    with pytest.raises(ValueError, match="measure"):
        Measure.named(name)
