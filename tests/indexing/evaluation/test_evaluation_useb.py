"""USEB's rules, restated here task by task with scikit-learn, scipy and pytrec_eval."""

import json

import numpy as np
import pyarrow.fs
import pytest
import pytrec_eval
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score

from indexing.evaluation.readers import detect_kind, read_task
from indexing.evaluation.scorers import BM25Scorer, VectorScorer
from indexing.evaluation.scoring import score_task
from indexing.evaluation.summary import mean_of_main_scores, summarise
from tests.indexing.evaluation.useb_builders import encode, write_all, write_askubuntu

FILES = pyarrow.fs.LocalFileSystem()
TASKS = ("askubuntu", "cqadupstack", "twitterpara", "scidocs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("useb"))


def cosines(left, right):
    a, b = (x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12) for x in (left, right))
    return a @ b.T


def summary_of(folder, kind, split="test", scorer=None):
    task = read_task(FILES, str(folder / kind), kind=kind, split=split)
    scores = score_task(task, scorer or VectorScorer(encode), system="s")
    (summary,) = summarise(scores.rows, pair_rows=scores.pair_rows, baseline="s")
    return task, summary


def means(summary):
    return {measure: cell.interval.mean for (_, measure), cell in summary.cells.items()}


@pytest.mark.parametrize("split", ["dev", "test"])
def test_askubuntu_ranks_titles_and_keeps_bm25s_order_at_ties(folder, split):
    task, summary = summary_of(folder, "askubuntu", split)
    lines = (folder / "askubuntu" / "text_tokenized.txt").read_text().splitlines()
    titles = {line.split("\t")[0]: line.split("\t")[1] for line in lines}
    wanted = {"map": [], "mrr": [], "precision_at_1": [], "precision_at_5": []}
    skipped = 0
    for line in (folder / "askubuntu" / f"{split}.txt").read_text().splitlines():
        query, relevant, candidates, scores = line.split("\t")
        relevant, candidates = set(relevant.split()), candidates.split()
        if not relevant:
            skipped += 1
            continue
        by_bm25 = sorted(zip(candidates, map(float, scores.split()), strict=True), key=lambda p: -p[1])
        ids = [doc for doc, _ in by_bm25]
        values = np.round(cosines(encode([titles[query]]), encode([titles[i] for i in ids]))[0], 6)
        ranked = [ids[place] for place in sorted(range(20), key=lambda place: -values[place])]
        hits = [place for place, doc in enumerate(ranked, 1) if doc in relevant]
        wanted["map"].append(np.mean([(n + 1) / place for n, place in enumerate(hits)]))
        wanted["mrr"].append(1 / hits[0])
        wanted["precision_at_1"].append(hits[0] == 1)
        wanted["precision_at_5"].append(sum(place <= 5 for place in hits) / 5)
    assert task.counts == {"skipped_queries": skipped, "unreachable_queries": 0}
    assert means(summary) == pytest.approx({name: np.mean(column) for name, column in wanted.items()})
    assert summary.main_measure == "map"


@pytest.mark.parametrize("split", ["valid", "test"])
def test_cqadupstack_averages_forums_and_counts_only_what_the_first_hundred_hold(folder, split):
    _, summary = summary_of(folder, "cqadupstack", split)
    corpus = json.loads((folder / "cqadupstack" / "corpus.json").read_text())
    golds = json.loads((folder / "cqadupstack" / "retrieval_split.json").read_text())[split]
    by_forum = []
    for forum, queries in golds.items():
        pool = [doc for doc in corpus[forum] if doc not in queries]
        vectors = encode([corpus[forum][doc] for doc in pool])
        forum_values = []
        for query, gold in queries.items():
            scores = np.round(cosines(encode([corpus[forum][query]]), vectors)[0], 6)
            top = sorted(range(len(pool)), key=lambda place: -scores[place])[:100]
            labels = [int(pool[place] in gold) for place in top]
            forum_values.append(average_precision_score(labels, scores[top]) if any(labels) else 0.0)
        by_forum.append(np.mean(forum_values))
    assert means(summary)["useb_map_at_100"] == pytest.approx(np.mean(by_forum), abs=2e-3)
    assert summary.measures[:2] == ("useb_map_at_100", "ndcg_at_10")
    assert summary.num_queries == sum(map(len, golds.values()))


def test_twitterpara_drops_the_middle_label_for_precision_and_keeps_it_for_spearman(folder):
    task, summary = summary_of(folder, "twitterpara")
    found = means(summary)
    for group in ("twitterurl", "pit"):
        pairs = [pair for pair in task.pairs if pair.group == group]
        left, right = encode([p.left for p in pairs]), encode([p.right for p in pairs])
        scores = np.round([cosines(a[None], b[None])[0, 0] for a, b in zip(left, right, strict=True)], 7)
        labels = np.array([pair.label for pair in pairs])
        kept = labels != 3
        ap = average_precision_score(labels[kept] > 3, scores[kept])
        assert found[f"ap.{group}"] == pytest.approx(ap, abs=1e-4)
        assert found[f"spearman.{group}"] == pytest.approx(spearmanr(labels, scores).statistic, abs=1e-3)
    assert found["ap"] == pytest.approx((found["ap.twitterurl"] + found["ap.pit"]) / 2)
    assert sum(pair.is_positive is None for pair in task.pairs) == 9 + 10


def test_scidocs_is_trec_evals_map_over_titled_candidates(folder):
    task, summary = summary_of(folder, "scidocs")
    tree = json.loads((folder / "scidocs" / "data.json").read_text())
    titles = {doc: entry["title"] or "" for doc, entry in tree["corpus"].items()}
    found = means(summary)
    for relation, by_query in tree["test"].items():
        run = {}
        for query, judged in by_query.items():
            docs = [doc for doc in judged if titles[doc]]
            values = cosines(encode([titles[query]]), encode([titles[doc] for doc in docs]))[0]
            run[query] = dict(zip(docs, map(float, np.round(values, 6)), strict=True))
        result = pytrec_eval.RelevanceEvaluator(by_query, {"map", "ndcg"}).evaluate(run).values()
        for name in ("map", "ndcg"):
            wanted = np.mean([values[name] for values in result])
            assert found[f"{name}.{relation}"] == pytest.approx(wanted, abs=1e-4)
    assert found["map"] == pytest.approx(np.mean([found[f"map.{r}"] for r in tree["test"]]))
    assert task.counts["candidates_without_title"] > 0


def test_the_four_tasks_are_known_by_their_files_and_their_mean_is_usebs(folder):
    summaries = []
    for kind in TASKS:
        assert detect_kind(FILES, str(folder / kind)) == kind
        summaries.append(summary_of(folder, kind, scorer=BM25Scorer())[1])
    main = [means(summary)[summary.main_measure] for summary in summaries]
    assert mean_of_main_scores(summaries) == {"s": pytest.approx(np.mean(main))}


def test_windows_line_ends_and_a_byte_order_mark_change_nothing(tmp_path):
    for name, options in (("plain", {}), ("windows", {"end": "\r\n", "mark": "\ufeff"})):
        write_askubuntu(tmp_path / name, np.random.default_rng(3), **options)
    plain, windows = (
        read_task(FILES, str(tmp_path / n), kind="askubuntu").queries for n in ("plain", "windows")
    )
    assert plain == windows


def test_malformed_files_are_named_with_the_line(tmp_path):
    write_all(tmp_path)
    (tmp_path / "askubuntu" / "test.txt").write_text("1\t2\t3 4\t1.0\n")
    with pytest.raises(ValueError, match=r"test\.txt: line 1: 2 candidates and 1 BM25 scores"):
        read_task(FILES, str(tmp_path / "askubuntu"), kind="askubuntu")
    (tmp_path / "askubuntu" / "test.txt").write_text("999\t100\t100\t1.0\n")
    with pytest.raises(ValueError, match="no text for question '999'"):
        read_task(FILES, str(tmp_path / "askubuntu"), kind="askubuntu")
    (tmp_path / "twitterpara" / "Twitter_URL_Corpus_test.txt").write_text("a\tb\tmany\n")
    with pytest.raises(ValueError, match=r"line 1: expected votes such as \(4, 6\)"):
        read_task(FILES, str(tmp_path / "twitterpara"), kind="twitterpara")
    (tmp_path / "scidocs" / "data.json").write_text("{oops")
    with pytest.raises(ValueError, match="not JSON"):
        read_task(FILES, str(tmp_path / "scidocs"), kind="scidocs")
    with pytest.raises(FileNotFoundError, match=r"corpus\.json"):
        read_task(FILES, str(tmp_path), kind="cqadupstack")
    with pytest.raises(ValueError, match="is no task that is known"):
        detect_kind(FILES, str(tmp_path))
