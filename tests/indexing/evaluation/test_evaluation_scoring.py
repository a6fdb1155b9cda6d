"""Scoring a system on a task: odd input, the tie rule, run files, and rank measures against two oracles."""

import gzip
import json

import numpy as np
import pyarrow.fs
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

from indexing.evaluation.measures import Measure, mean_by_measure, score_run
from indexing.evaluation.readers import read_task
from indexing.evaluation.run_file import read_run
from indexing.evaluation.scorers import BM25Scorer, HybridScorer, VectorScorer
from indexing.evaluation.scoring import rerank_by_run, score_runs, score_task
from indexing.evaluation.text_tasks import Pair, PairTask, RerankQuery, RerankTask
from indexing.fusion import FusionConfig
from tests.indexing.evaluation.useb_builders import encode

FILES = pyarrow.fs.LocalFileSystem()
DOCS = [f"d{number:02d}" for number in range(20)]


def rerank(*candidates, query="disk boot", judged=None, measures=("map",)):
    ids = tuple(f"c{n}" for n in range(len(candidates)))
    queries = (
        RerankQuery(query_id="q", query=query, doc_ids=ids, texts=candidates, judged=judged or {"c0": 1}),
    )
    return RerankTask(name="t", protocol="rerank", queries=queries, measures=measures)


@settings(max_examples=60, deadline=None)
@given(
    grades=st.lists(st.integers(0, 3), min_size=20, max_size=20),
    scores=st.lists(st.integers(0, 6), min_size=20, max_size=20),
    length=st.integers(1, 20),
)
def test_rank_measures_are_those_of_trec_eval_and_of_sentence_transformers(grades, scores, length):
    judged = dict(zip(DOCS, grades, strict=True))
    if not any(grades):
        return
    order = sorted(range(20), key=lambda place: (-scores[place], DOCS[place]))[:length]
    ranking = [(DOCS[place], float(scores[place])) for place in order]
    names = ("ndcg_at_10", "ndcg", "map", "map_at_5", "recall_at_5", "precision_at_5", "mrr_at_10")
    ours = mean_by_measure(score_run({"q": judged}, {"q": ranking}, map(Measure.named, names)))
    # trec_eval orders ties by falling id; scores by place show it the order that we state.
    run = {"q": {doc: float(-place) for place, (doc, _) in enumerate(ranking)}}
    wanted = pytrec_eval.RelevanceEvaluator(
        {"q": judged}, {"ndcg_cut.10", "ndcg", "map", "map_cut.5", "recall.5", "P.5"}
    )
    trec = wanted.evaluate(run)["q"]
    for name, other in zip(
        names, ("ndcg_cut_10", "ndcg", "map", "map_cut_5", "recall_5", "P_5"), strict=False
    ):
        assert ours[name] == pytest.approx(trec[other], abs=1e-6), name
    relevant = {doc for doc, grade in judged.items() if grade}
    second = InformationRetrievalEvaluator(
        {"q": "x"}, {"d": "y"}, {"q": relevant}, mrr_at_k=[10], ndcg_at_k=[10], precision_recall_at_k=[5]
    )
    hits = [[{"corpus_id": doc, "score": -place} for place, (doc, _) in enumerate(ranking)]]
    theirs = second.compute_metrics(hits)
    assert ours["mrr_at_10"] == pytest.approx(theirs["mrr@k"][10], abs=1e-6)
    assert ours["recall_at_5"] == pytest.approx(theirs["recall@k"][5], abs=1e-6)
    assert ours["precision_at_5"] == pytest.approx(theirs["precision@k"][5], abs=1e-6)
    if max(grades) == 1:  # theirs knows relevant and not
        assert ours["ndcg_at_10"] == pytest.approx(theirs["ndcg@k"][10], abs=1e-6)


@pytest.mark.parametrize("scorer", [VectorScorer(encode), BM25Scorer()], ids=["vectors", "bm25"])
def test_equal_scores_keep_the_order_of_the_candidates(scorer):
    task = rerank("panic", "mount", "disk boot", judged={"c1": 1})
    (ranking,) = score_task(task, scorer, system="s").runs[""].values()
    places = [doc for doc, _ in ranking]
    assert places[0] == "c2"
    tied = rerank("wifi", "wifi", "wifi", judged={"c1": 1})
    assert [doc for doc, _ in score_task(tied, scorer, system="s").runs[""]["q"]] == ["c0", "c1", "c2"]


@pytest.mark.parametrize(
    "config",
    [
        FusionConfig(),
        FusionConfig(rank_offset=1, dense_weight=0.8),
        FusionConfig(kind="weighted", dense_weight=0.3),
    ],
)
def test_candidates_are_fused_as_a_search_over_them_would_fuse(config):
    texts = ("wifi card", "disk boot grub", "kernel panic", "disk", "boot boot disk", "user sudo apt")
    hybrid = HybridScorer(VectorScorer(encode), BM25Scorer(), config)
    searched = hybrid.retrieve(["disk boot"], texts, len(texts))
    (scores,) = hybrid.candidate_scores(["disk boot"], [texts])
    np.testing.assert_array_equal(scores[searched.ids[0]], searched.scores[0])
    task = rerank(*texts, judged={"c3": 1})
    (ranking,) = score_task(task, hybrid, system="s").runs[""].values()
    assert [doc for doc, _ in ranking] == [f"c{place}" for place in searched.ids[0]]


def test_a_candidate_without_a_word_of_the_query_has_a_place_in_the_dense_order_alone():
    hybrid = HybridScorer(VectorScorer(encode), BM25Scorer(), FusionConfig())
    found = hybrid.candidate_scores(["disk", "sudo", "apt"], [("wifi", "disk"), (), ("wifi", "grub")])
    assert [len(scores) for scores in found] == [2, 0, 2]
    assert found[0] == pytest.approx([0.5 / 62, 0.5 / 61 + 0.5 / 61])
    assert sorted(found[2]) == pytest.approx([0.5 / 62, 0.5 / 61]), "no lexical order at all"


@pytest.mark.parametrize("scorer", [VectorScorer(encode), BM25Scorer()], ids=["vectors", "bm25"])
def test_empty_texts_and_a_single_candidate_are_scored(scorer):
    assert score_task(rerank(""), scorer, system="s").rows[0].value == 1.0
    assert score_task(rerank("disk", query=""), scorer, system="s").rows[0].value == 1.0
    pairs = tuple(
        Pair(pair_id=str(n), left=t, right="", label=n, is_positive=n > 0) for n, t in enumerate(("", "a"))
    )
    rows = score_task(PairTask(name="t", protocol="pairs", pairs=pairs), scorer, system="s").pair_rows
    assert [row.score for row in rows] == [0.0, 0.0]


def test_vectors_that_are_not_numbers_are_refused_and_rows_must_match():
    def broken(texts):
        return np.full((len(texts), 3), np.nan, np.float32)

    with pytest.raises(ValueError, match="NaN or infinity"):
        score_task(rerank("a", "b"), VectorScorer(broken), system="s")
    with pytest.raises(ValueError, match="1 vectors for 2 texts"):
        VectorScorer(lambda texts: np.ones((1, 3))).pair_scores(["a"], ["b"])


def write_beir(
    folder, *, documents=("disk boot", "wifi card"), qrels="q1\td0\t1\nq2\td9\t1\nq3\td1\t0\nq8\td0\t1\n"
):
    folder.mkdir(exist_ok=True)
    queries = [{"_id": f"q{n}", "text": t} for n, t in enumerate(("none", "boot disk", "lost", "zero"))]
    (folder / "queries.jsonl").write_text("".join(json.dumps(q) + "\n" for q in queries))
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + qrels)
    lines = [json.dumps({"_id": f"d{n}", "title": "", "text": t}) + "\n" for n, t in enumerate(documents)]
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode()))
    return folder


def test_unknown_ids_are_counted_and_documents_that_are_absent_are_not_found(tmp_path):
    task = read_task(FILES, str(write_beir(tmp_path)), kind="beir")
    assert task.counts == {"skipped_queries": 2, "unknown_queries": 1, "unknown_documents": 1}
    rows = score_task(task, VectorScorer(encode), system="s").rows
    assert {(r.query_id, r.measure): r.value for r in rows if r.measure == "map"} == {
        ("q1", "map"): 1.0,
        ("q2", "map"): 0.0,
    }
    with pytest.raises(ValueError, match="none of its 1 judged documents"):
        read_task(FILES, str(write_beir(tmp_path, qrels="q1\tother\t1\n")), kind="beir")


def test_a_run_file_is_scored_like_a_system(tmp_path):
    task = read_task(FILES, str(write_beir(tmp_path / "b")), kind="beir")
    (tmp_path / "run.txt").write_bytes(
        b"\xef\xbb\xbfq1 Q0 d1 1 2.5 me\r\nq1 Q0 d0 2 2.5 me\r\nq7 Q0 d0 1 1 me\r\n"
    )
    run = read_run(FILES, str(tmp_path / "run.txt"))
    assert run["q1"] == [("d1", 2.5), ("d0", 2.5)]
    rows = score_runs(task, {"": run}, system="run").rows
    assert {(r.query_id, r.measure): r.value for r in rows}["q1", "map"] == 0.5
    ordered = rerank_by_run(rerank("a", "b", "c"), {"q": [("c2", 0.1), ("other", 9.0), ("c1", -4.0)]})
    assert [doc for doc, _ in ordered[""]["q"]] == ["c2", "c1", "c0"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q d 1\n", "line 1: expected query-id Q0"),
        ("q Q0 d 1 high me\n", "line 1: expected query-id Q0"),
        ("q Q0 d 1 nan me\n", "must be a finite number"),
        ("q Q0 d 1 2 me\nq Q0 d 2 1 me\n", "documents twice: d"),
        ("\n", "the run is empty"),
    ],
)
def test_files_that_are_no_runs_are_refused(tmp_path, text, message):
    (tmp_path / "run").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_run(FILES, str(tmp_path / "run"))
