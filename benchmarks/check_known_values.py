"""Do our readers, measures and baselines give the published numbers? For people who have the data.

    python benchmarks/check_known_values.py FOLDER [--encoder DIR] [--glove FILE]

FOLDER has `askubuntu_labels/` (dev.txt, test.txt), `stsb/test.tsv`, `scifact/` in BEIR layout and
`twitterpara/` (turl_test.tsv, pit_test.tsv), each file plain or `.gz`; TSDAE_DATA is its default. DIR is
all-MiniLM-L6-v2, FILE word vectors. What is missing is left out and said. Exit code 1 when a value is off.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.fs

from indexing.bm25 import BM25Searcher, Tokenizer
from indexing.evaluation.labelled import read_sts
from indexing.evaluation.measures import Measure, mean_by_measure, score_run
from indexing.evaluation.readers import read_beir
from indexing.evaluation.run import run_of_hits
from indexing.evaluation.scorers import BM25Scorer, Scorer, VectorScorer
from indexing.evaluation.scoring import score_task
from indexing.evaluation.summary import summarise
from indexing.evaluation.tables import read_table_rows
from indexing.evaluation.task_files import find_file
from indexing.evaluation.text_tasks import PairTask
from indexing.evaluation.useb import askubuntu_labels, twitter_pair
from indexing.word_vectors import STOPWORDS, read_word_vectors

FILES = pyarrow.fs.LocalFileSystem()
ASKUBUNTU = {"dev": (52.03, 65.99, 51.85, 42.12), "test": (55.99, 68.03, 53.76, 42.47)}
MEASURES = tuple(map(Measure.named, ("map", "mrr", "precision_at_1", "precision_at_5")))


def askubuntu(folder: Path) -> list[tuple[str, float, float, float]]:
    """BM25's own order, from the label files alone."""
    found = []
    for split, published in ASKUBUNTU.items():
        labels = askubuntu_labels(FILES, str(folder / "askubuntu_labels"), split=split)
        judged = {q: {d: int(d in relevant) for d in ranked} for q, relevant, ranked in labels if relevant}
        run = {q: [(d, float(-i)) for i, d in enumerate(ranked)] for q, _, ranked in labels}
        means = mean_by_measure(score_run(judged, run, MEASURES))
        found += [
            (
                f"AskUbuntu {split}, BM25 order, {measure.label}, {len(judged)} queries",
                100 * value,
                known,
                0.005,
            )
            for (measure, value), known in zip(((m, means[m.name]) for m in MEASURES), published, strict=True)
        ]
    return found


def twitterpara(folder: Path) -> PairTask:
    """The two test sets, as tables."""
    pairs = []
    for group, name, label in (
        ("twitterurl", "turl_test.tsv", "votes_of_6"),
        ("pit", "pit_test.tsv", "label_0_5"),
    ):
        path = find_file(FILES, str(folder / "twitterpara"), [name])
        for number, row in enumerate(read_table_rows(FILES, path)):
            left, right = row.text(("sentence1",)), row.text(("sentence2",))
            pairs.append(twitter_pair(group, str(number), left, right, int(row.number((label,)))))
    return PairTask(name="TwitterPara", protocol="twitterpara", pairs=tuple(pairs))


def pair_scores(task: PairTask, scorer: Scorer) -> dict[str, float]:
    """Every statistic of one system, times 100."""
    rows = score_task(task, scorer, system="x").pair_rows
    (summary,) = summarise([], baseline="x", pair_rows=rows)
    return {measure: 100 * cell.interval.mean for (_, measure), cell in summary.cells.items()}


def twitter_values(folder: Path, glove: Path | None) -> list[tuple[str, float, float, float]]:
    """Pair counts, BM25 and averaged word vectors next to the paper's."""
    task = twitterpara(folder)
    counts = {
        g: sum(p.group == g and p.is_positive is not None for p in task.pairs) for g in ("twitterurl", "pit")
    }
    found = [
        ("TwitterPara, scored URL pairs", float(counts["twitterurl"]), 9334.0, 0.0),
        ("TwitterPara, scored PIT pairs", float(counts["pit"]), 838.0, 0.0),
    ]
    systems: list[tuple[str, Scorer, tuple[float, float]]] = [("BM25", BM25Scorer(), (71.9, 70.5))]
    if glove is not None:
        texts = [text for pair in task.pairs for text in (pair.left, pair.right)]
        words = {word for text in texts for word in Tokenizer().words_of(text)} - STOPWORDS
        vectors = read_word_vectors(glove, only=words)
        systems.append(
            (f"{glove.name}, {vectors.dim} dimensions", VectorScorer(vectors.encode), (70.1, 52.1))
        )
        weighted = vectors.weighted_by_idf(texts)
        systems.append((f"{glove.name}, IDF", VectorScorer(weighted.encode), (70.1, 52.1)))
    for name, scorer, published in systems:
        values = pair_scores(task, scorer)
        for group, known in zip(("twitterurl", "pit"), published, strict=True):
            # Vectors and BM25's settings are not the paper's: shown, not judged.
            found.append((f"TwitterPara {group} AP, {name}", values[f"ap.{group}"], known, float("inf")))
    return found


def scifact(folder: Path) -> list[tuple[str, float, float, float]]:
    """BM25 on SciFact, nDCG@10; 66.5 is Anserini's, whose tokeniser stems and drops stop words."""
    task = read_beir(FILES, str(folder / "scifact"))
    (part,) = task.parts
    found = []
    for stemmer, stopwords in ((None, None), ("en_plural", "en")):
        searcher = BM25Searcher.build(
            range(len(part.documents)), part.documents, stemmer=stemmer, stopwords=stopwords
        )
        run = run_of_hits(searcher.retrieve(part.queries, 100), part.query_ids, part.doc_ids)
        means = mean_by_measure(score_run(part.qrels, run, [Measure("ndcg", 10)]))
        name = f"SciFact nDCG@10, BM25, stemmer {stemmer}, stop words {stopwords}"
        found.append((name, 100 * means["ndcg_at_10"], 66.4, 2.0))
    return found


def sts_benchmark(folder: Path, encoder: Path | None) -> list[tuple[str, float, float, float]]:
    """all-MiniLM-L6-v2 on the STS benchmark's test set."""
    if encoder is None:
        return []
    from tsdae_core.encoder import SentenceEncoder

    task = read_sts(FILES, find_file(FILES, str(folder / "stsb"), ["test.tsv"]))
    values = pair_scores(task, VectorScorer(SentenceEncoder.load(encoder).encode))
    return [("STS benchmark test, all-MiniLM-L6-v2, Spearman", values["spearman"], 82.03, 0.005)]


def main() -> int:
    """Prints one line for each value."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("TSDAE_DATA"))
    parser.add_argument("--encoder", type=Path)
    parser.add_argument("--glove", type=Path)
    options = parser.parse_args()
    if options.folder is None:
        parser.error("name the data folder, or set TSDAE_DATA")
    checks: list[tuple[str, Callable[[], list[tuple[str, float, float, float]]]]] = [
        ("askubuntu", lambda: askubuntu(options.folder)),
        ("twitterpara", lambda: twitter_values(options.folder, options.glove)),
        ("scifact", lambda: scifact(options.folder)),
        ("stsb", lambda: sts_benchmark(options.folder, options.encoder)),
    ]
    num_off = 0
    for name, check in checks:
        try:
            values = check()
        except FileNotFoundError as error:
            print(f"-    {name}: left out, {error}")
            continue
        for title, value, known, tolerance in values:
            ok = abs(value - known) <= tolerance + 1e-9
            num_off += not ok
            mark = "    " if tolerance == float("inf") else "ok  " if ok else "OFF "
            print(f"{mark} {title}: {value:.2f} (published {known:g})")
    return 1 if num_off else 0


if __name__ == "__main__":
    sys.exit(main())
