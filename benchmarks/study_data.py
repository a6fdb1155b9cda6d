"""Write tasks, corpora and labelled rows for configs/studies from a folder of raw data.

    python benchmarks/study_data.py RAW data/studies

RAW has, each file gzipped: `twitterpara/` (turl_test.tsv, pit_test.tsv, pit_dev.tsv, train_unlabelled.txt,
turl_train_tok_lower.tsv), `semeval2016_task3B/` (train.jsonl, dev.jsonl), `scifact/` and `debian_packages/`
(BEIR layout with names of their own, sentences.txt), `stsb/` and `sick/` (tables), and `debian_prose/`,
`nltk_sentences/`, `wordnet_glosses/` as general text. Nothing is downloaded. Owns which texts are taken: the
Debian collection is cut to 4,000 documents, those that are judged and a sample of others, so that a cell is
quick; development data are smaller still.
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
# For development: as few as still tell rates apart, since every rate of every method is scored on them.
_DEV_PAIRS = 1_500
_DEV_QUESTIONS = 100
_DEV_QUERIES = 300
_DEV_DOCUMENTS = 1_500
# Of PIT's five votes.
_DEBATABLE_VOTES = 2
_MIN_WORDS = 4
# A text of several sentences begins at every so many of them.
_PARAGRAPH_EVERY = 24
_PARAGRAPH_SENTENCES = 5
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
    """The paper's TwitterPara, in the layout of its authors' toolkit; PIT's dev pairs; labelled pairs."""
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
    _pit_dev(folder, out / "tasks/pit-dev.jsonl")
    write_lines(out / "corpora/twitter.txt", lines_of(folder / "train_unlabelled.txt.gz"))
    pairs = (
        {"sentence1": row["sentence1"], "sentence2": row["sentence2"], "label": int(row["label"])}
        for row in rows_of(folder / "turl_train_tok_lower.tsv.gz")
    )
    write_jsonl(out / "labels/twitter_pairs.jsonl", pairs)


def _pit_dev(folder: Path, place: Path) -> None:
    """Three of five votes or more make a paraphrase, one or none make none, two are left out."""
    rows = []
    for row in rows_of(folder / "pit_dev.tsv.gz"):
        votes = int(row["votes"].strip("()").partition(",")[0])
        if votes != _DEBATABLE_VOTES:
            pair = {"sentence1": row["sentence1"], "sentence2": row["sentence2"]}
            rows.append(pair | {"label": int(votes > _DEBATABLE_VOTES)})
    write_jsonl(place, sorted(rows, key=lambda row: _hash(json.dumps(row)))[:_DEV_PAIRS])


def semeval(raw: Path, out: Path) -> None:
    """Ten related questions to put in order; training questions as text, some of them for development."""
    folder = raw / "semeval2016_task3B"
    train = list(lines_of(folder / "train.jsonl.gz"))
    write_jsonl(out / "tasks/semeval.jsonl", _candidates(list(lines_of(folder / "dev.jsonl.gz"))))
    write_jsonl(out / "tasks/semeval-dev.jsonl", _candidates(sorted(train, key=_hash)[:_DEV_QUESTIONS]))
    texts: list[str] = []
    for line in train:
        query = json.loads(line)
        parts = [query["query_subject"], query["query_body"]]
        parts += [text for c in query["candidates"] for text in (c["subject"], c["body"])]
        texts += [sentence for part in parts for sentence in _SENTENCE_END.split(part)]
    write_lines(out / "corpora/semeval.txt", (text for text in texts if len(text.split()) >= _MIN_WORDS))


def _candidates(lines: list[str]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines):
        query = json.loads(line)
        for candidate in query["candidates"]:
            yield {
                "query_id": f"q{number}",
                "query": f"{query['query_subject']} {query['query_body']}",
                "text": f"{candidate['subject']} {candidate['body']}",
                "label": int(candidate["label"] != "Irrelevant"),
            }


def scifact(raw: Path, out: Path) -> None:
    """Claims and abstracts as they are; training claims for development."""
    folder, place = raw / "scifact", out / "tasks/scifact"
    place.mkdir(parents=True, exist_ok=True)
    for name in ("corpus.jsonl.gz", "queries.jsonl.gz", "qrels.tsv.gz"):
        (place / name).write_bytes((folder / name).read_bytes())
    claims = sorted(map(json.loads, lines_of(folder / "queries_train.jsonl.gz")), key=_hash_of)
    documents = [json.loads(line) for line in lines_of(folder / "corpus.jsonl.gz")]
    qrels = _judgements(folder / "qrels_train.tsv.gz")
    write_retrieval(out / "tasks/scifact-dev", claims[:_DEV_QUERIES], qrels, documents, _DEV_DOCUMENTS)
    write_lines(out / "corpora/scifact.txt", lines_of(folder / "sentences.txt.gz"))


def debian(raw: Path, out: Path) -> None:
    """Synopses that look for their descriptions, among a sample of all; other synopses as labelled rows."""
    folder = raw / "debian_packages"
    documents = [json.loads(line) for line in lines_of(folder / "ir_corpus.jsonl.gz")]
    qrels = _judgements(folder / "ir_qrels.tsv.gz")
    sides = {}
    for split in ("test", "dev"):
        queries = [json.loads(line) for line in lines_of(folder / f"ir_queries_{split}.jsonl.gz")]
        sides[split] = sorted(queries, key=_hash_of)
    write_retrieval(
        out / "tasks/debian", sides["test"][:_DEBIAN_QUERIES], qrels, documents, _DEBIAN_DOCUMENTS
    )
    write_retrieval(out / "tasks/debian-dev", sides["dev"][:_DEV_QUERIES], qrels, documents, _DEV_DOCUMENTS)
    texts = {document["_id"]: document["text"] for document in documents}
    unused = [*sides["test"][_DEBIAN_QUERIES:], *sides["dev"][_DEV_QUERIES:]]
    write_jsonl(
        out / "labels/debian.jsonl",
        (
            {"anchor": query["text"], "positive": texts[document]}
            for query in unused
            for document in qrels[query["_id"]]
        ),
    )
    write_lines(out / "corpora/debian.txt", lines_of(folder / "sentences.txt.gz"))


def write_retrieval(
    place: Path,
    queries: list[dict[str, Any]],
    qrels: dict[str, list[str]],
    documents: list[dict[str, Any]],
    num_documents: int,
) -> None:
    """A task in BEIR's layout: all documents that are judged for its queries, and a sample of the others."""
    judged = {document for query in queries for document in qrels[query["_id"]]}
    ordered = sorted(documents, key=lambda document: (document["_id"] not in judged, _hash_of(document)))
    write_jsonl(place / "corpus.jsonl", ordered[: max(num_documents, len(judged))])
    write_jsonl(place / "queries.jsonl", queries)
    lines = [f"{query['_id']}\t{document}\t1" for query in queries for document in qrels[query["_id"]]]
    (place / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")


def _judgements(path: Path) -> dict[str, list[str]]:
    """The relevant documents of each query."""
    found: dict[str, list[str]] = {}
    for row in rows_of(path):
        if int(row["score"]) > 0:
            found.setdefault(row["query-id"], []).append(row["corpus-id"])
    return found


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
    """Text of no domain of the studies, to pre-train the encoder they start from.

    Now and then neighbours stand together as one text: sentences alone are too short to train the places
    that a document's later words have.
    """
    texts = [row["sentence"] for row in rows_of(raw / "nltk_sentences/sentences.tsv.gz")]
    texts += [row["sentence"] for row in rows_of(raw / "debian_prose/sentences.tsv.gz")]
    for name in ("definitions", "examples"):
        texts += lines_of(raw / f"wordnet_glosses/{name}.txt.gz")
    starts = range(0, len(texts), _PARAGRAPH_EVERY)
    paragraphs = [" ".join(texts[start : start + _PARAGRAPH_SENTENCES]) for start in starts]
    kept = (text for text in (*texts, *paragraphs) if len(text.split()) >= _MIN_WORDS)
    write_lines(out / "corpora/general.txt", kept)


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


def _hash_of(row: dict[str, Any]) -> str:
    return _hash(row["_id"])


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    main()
