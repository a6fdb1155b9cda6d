"""Write tasks, corpora and labelled rows for configs/studies from a folder of raw data.

    python benchmarks/study_data.py RAW data/studies

RAW has, each file gzipped: `twitterpara/` (turl_test.tsv, pit_test.tsv, train_unlabelled.txt,
turl_train_tok_lower.tsv), `semeval2016_task3B/` (train.jsonl, dev.jsonl), `scifact/` and `debian_packages/`
(BEIR layout with names of their own, sentences.txt), `stsb/` and `sick/` (tables), and `debian_prose/`,
`nltk_sentences/`, `wordnet_glosses/` as general text. Nothing is downloaded. Owns which texts are taken: the
Debian collection is cut to documents that are judged and a sample of others, so that a cell takes seconds.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_DEBIAN_DOCUMENTS = 4_000
_DEBIAN_QUERIES = 300
_MIN_WORDS = 4
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a gzipped text."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for line in stream:
            yield line.rstrip("\n")


def rows_of(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a gzipped TSV with a header; quotes are plain signs."""
    yield from csv.DictReader(lines_of(path), delimiter="\t", quoting=csv.QUOTE_NONE)


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Writes each different line once, in order; returns how many."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = list(dict.fromkeys(" ".join(line.split()) for line in lines))
    path.write_text("".join(f"{line}\n" for line in kept if line), encoding="utf-8")
    return len(kept)


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """One object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def twitter(raw: Path, out: Path) -> None:
    """The paper's TwitterPara, in the layout of its authors' toolkit; labelled pairs of its training part."""
    folder = raw / "twitterpara"
    urls = (
        f"{row['sentence1']}\t{row['sentence2']}\t({row['votes_of_6']}, 6)"
        for row in rows_of(folder / "turl_test.tsv.gz")
    )
    place = out / "tasks/twitterpara"
    place.mkdir(parents=True, exist_ok=True)
    (place / "Twitter_URL_Corpus_test.txt").write_text("\n".join(urls) + "\n", encoding="utf-8")
    pit = (
        "\t".join(row[key] for key in ("topic_id", "topic", "sentence1", "sentence2", "label_0_5"))
        for row in rows_of(folder / "pit_test.tsv.gz")
    )
    (place / "test.data").write_text("\n".join(pit) + "\n", encoding="utf-8")
    write_lines(out / "corpora/twitter.txt", lines_of(folder / "train_unlabelled.txt.gz"))
    pairs = (
        {"sentence1": row["sentence1"], "sentence2": row["sentence2"], "label": int(row["label"])}
        for row in rows_of(folder / "turl_train_tok_lower.tsv.gz")
    )
    write_jsonl(out / "labels/twitter_pairs.jsonl", pairs)


def semeval(raw: Path, out: Path) -> None:
    """Ten related questions to put in order; training questions as text."""
    folder = raw / "semeval2016_task3B"
    rows = []
    for number, line in enumerate(lines_of(folder / "dev.jsonl.gz")):
        query = json.loads(line)
        rows += [
            {
                "query_id": f"q{number}",
                "query": f"{query['query_subject']} {query['query_body']}",
                "text": f"{candidate['subject']} {candidate['body']}",
                "label": int(candidate["label"] != "Irrelevant"),
            }
            for candidate in query["candidates"]
        ]
    write_jsonl(out / "tasks/semeval.jsonl", rows)
    texts: list[str] = []
    for line in lines_of(folder / "train.jsonl.gz"):
        query = json.loads(line)
        parts = [query["query_subject"], query["query_body"]]
        parts += [text for c in query["candidates"] for text in (c["subject"], c["body"])]
        texts += [sentence for part in parts for sentence in _SENTENCE_END.split(part)]
    write_lines(out / "corpora/semeval.txt", (text for text in texts if len(text.split()) >= _MIN_WORDS))


def scifact(raw: Path, out: Path) -> None:
    """Claims and abstracts as they are."""
    place = out / "tasks/scifact"
    place.mkdir(parents=True, exist_ok=True)
    for name in ("corpus.jsonl.gz", "queries.jsonl.gz", "qrels.tsv.gz"):
        (place / name).write_bytes((raw / "scifact" / name).read_bytes())
    write_lines(out / "corpora/scifact.txt", lines_of(raw / "scifact/sentences.txt.gz"))


def debian(raw: Path, out: Path) -> None:
    """Synopses that look for their descriptions, among a sample of all."""
    folder, place = raw / "debian_packages", out / "tasks/debian"
    queries = [json.loads(line) for line in lines_of(folder / "ir_queries_test.jsonl.gz")]
    queries = sorted(queries, key=lambda query: _hash(query["_id"]))[:_DEBIAN_QUERIES]
    wanted = {query["_id"] for query in queries}
    qrels = [line for line in lines_of(folder / "ir_qrels.tsv.gz") if line.split("\t")[0] in wanted]
    judged = {line.split("\t")[1] for line in qrels}
    documents = [json.loads(line) for line in lines_of(folder / "ir_corpus.jsonl.gz")]
    documents.sort(key=lambda document: (document["_id"] not in judged, _hash(document["_id"])))
    write_jsonl(place / "corpus.jsonl", documents[:_DEBIAN_DOCUMENTS])
    write_jsonl(place / "queries.jsonl", queries)
    (place / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *qrels]) + "\n")
    write_lines(out / "corpora/debian.txt", lines_of(folder / "sentences.txt.gz"))


def sts(raw: Path, out: Path) -> None:
    """The STS benchmark; its training sentences as text, its training pairs and SICK's as labelled rows."""
    for split in ("dev", "test"):
        place = out / f"tasks/stsb/{split}.tsv"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("\n".join(lines_of(raw / f"stsb/{split}.tsv.gz")) + "\n", encoding="utf-8")
    rows = list(rows_of(raw / "stsb/train.tsv.gz"))
    both = (row[key] for row in rows for key in ("sentence1", "sentence2"))
    write_lines(out / "corpora/stsb.txt", both)
    scored = (
        {"sentence1": row["sentence1"], "sentence2": row["sentence2"], "score": float(row["score"])}
        for row in rows
    )
    write_jsonl(out / "labels/stsb.jsonl", scored)
    inferences = (
        {"premise": r["sentence1"], "hypothesis": r["sentence2"], "label": r["entailment"].lower()}
        for r in rows_of(raw / "sick/train.tsv.gz")
    )
    write_jsonl(out / "labels/sick_nli.jsonl", inferences)


def general(raw: Path, out: Path) -> None:
    """Text of no domain of the studies, to pre-train the encoder they start from."""
    texts = [row["sentence"] for row in rows_of(raw / "nltk_sentences/sentences.tsv.gz")]
    texts += [row["sentence"] for row in rows_of(raw / "debian_prose/sentences.tsv.gz")]
    for name in ("definitions", "examples"):
        texts += lines_of(raw / f"wordnet_glosses/{name}.txt.gz")
    write_lines(out / "corpora/general.txt", (text for text in texts if len(text.split()) >= _MIN_WORDS))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("raw", type=Path)
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    for write in (twitter, semeval, scifact, debian, sts, general):
        write(args.raw, args.output)
        print(f"{write.__name__}: {(write.__doc__ or '').splitlines()[0]}")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    main()
