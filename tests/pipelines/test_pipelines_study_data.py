"""benchmarks/study_data.py on made-up raw files: tasks are read as such, and no test row is used before."""

import gzip
import importlib.util
import json
from pathlib import Path

import pyarrow.fs
import pytest

from indexing.evaluation.readers import read_task

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "study_data.py"
LOCAL = pyarrow.fs.LocalFileSystem()


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("study_data", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def put(raw, name, lines):
    place = raw / name
    place.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(place, "wt", encoding="utf-8") as stream:
        stream.write("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")


def write_retrieval(raw, folder, names, num):
    corpus, queries, qrels = names
    put(raw, f"{folder}/{corpus}", ({"_id": f"d{i}", "text": f"document {i}"} for i in range(num)))
    for split, file in queries.items():
        put(
            raw, f"{folder}/{file}", ({"_id": f"{split}{i}", "text": f"{split} {i}"} for i in range(num // 4))
        )
    for file, splits in qrels.items():
        lines = [f"{split}{i}\td{i * 4 + j}\t1" for j, split in enumerate(splits) for i in range(num // 4)]
        put(raw, f"{folder}/{file}", ["query-id\tcorpus-id\tscore", *lines])
    put(raw, f"{folder}/sentences.txt.gz", ["one sentence here", "another one here"])


@pytest.fixture(scope="module")
def out(script, tmp_path_factory):
    raw, out = tmp_path_factory.mktemp("raw"), tmp_path_factory.mktemp("studies")
    script._DEBIAN_QUERIES, script._DEV_QUERIES, script._DEV_QUESTIONS = 6, 4, 2
    script._DEBIAN_DOCUMENTS, script._DEV_DOCUMENTS = 20, 10
    pit = ["topic_id\ttopic\tvotes\tsentence1\tsentence2"]
    pit += [f"1\tt\t({votes}, {5 - votes})\tleft {votes}\tright {votes}" for votes in range(6)]
    put(raw, "twitterpara/pit_dev.tsv.gz", pit)
    put(
        raw,
        "twitterpara/pit_test.tsv.gz",
        ["topic_id\ttopic\tsentence1\tsentence2\tlabel_0_5", "1\tt\ta\tb\t5", "1\tt\ta\tc\t0"],
    )
    put(raw, "twitterpara/turl_test.tsv.gz", ["sentence1\tsentence2\tvotes_of_6", "a\tb\t6", "a\tc\t0"])
    put(raw, "twitterpara/turl_train_tok_lower.tsv.gz", ["sentence1\tsentence2\tlabel", "a\tb\t1"])
    put(raw, "twitterpara/train_unlabelled.txt.gz", ["a b c", "a b c", "d e f"])
    candidates = [{"subject": "s", "body": f"b{i}", "label": ("Relevant", "Irrelevant")[i]} for i in range(2)]
    for split in ("train", "dev"):
        rows = (
            {"query_subject": f"{split}{i}", "query_body": "what is this here?", "candidates": candidates}
            for i in range(4)
        )
        put(raw, f"semeval2016_task3B/{split}.jsonl.gz", rows)
    names = (
        "corpus.jsonl.gz",
        {"t": "queries.jsonl.gz", "d": "queries_train.jsonl.gz"},
        {"qrels.tsv.gz": "t", "qrels_train.tsv.gz": "d"},
    )
    write_retrieval(raw, "scifact", names, 32)
    names = (
        "ir_corpus.jsonl.gz",
        {"t": "ir_queries_test.jsonl.gz", "d": "ir_queries_dev.jsonl.gz"},
        {"ir_qrels.tsv.gz": "td"},
    )
    write_retrieval(raw, "debian_packages", names, 64)
    for split in ("train", "dev", "test"):
        put(raw, f"stsb/{split}.tsv.gz", ["sentence1\tsentence2\tscore", "a\tb\t3.5", "a\tc\t1"])
    put(raw, "sick/train.tsv.gz", ["sentence1\tsentence2\tentailment", "a\tb\tNEUTRAL"])
    put(
        raw,
        "nltk_sentences/sentences.tsv.gz",
        ["source\tsentence", *(f"x\tsentence number {i} here" for i in range(30))],
    )
    put(raw, "debian_prose/sentences.tsv.gz", ["source\tsentence", "x\ttoo short"])
    for name in ("definitions", "examples"):
        put(raw, f"wordnet_glosses/{name}.txt.gz", [f"one of the {name}"])
    for write in (script.twitter, script.semeval, script.scifact, script.debian, script.sts, script.general):
        write(raw, out)
    return out


@pytest.mark.parametrize(
    ("name", "kind", "num"),
    [
        ("twitterpara", "twitterpara", 4),
        ("pit-dev.jsonl", "pairs", 5),
        ("semeval.jsonl", "rerank", 4),
        ("semeval-dev.jsonl", "rerank", 2),
        ("scifact", "beir", 8),
        ("scifact-dev", "beir", 4),
        ("debian", "beir", 6),
        ("debian-dev", "beir", 4),
        ("stsb", "sts", 2),
    ],
)
def test_every_task_is_read_as_what_the_studies_take_it_for(out, name, kind, num):
    task = read_task(LOCAL, str(out / "tasks" / name), kind=kind)
    if kind == "beir":
        (part,) = task.parts
        assert len(part.queries) == num
        assert set().union(*part.qrels.values()) <= set(part.doc_ids)
        return
    assert len(task.queries if kind == "rerank" else task.pairs) == num


def test_three_votes_of_five_make_a_paraphrase_and_two_nothing(out):
    pairs = read_task(LOCAL, str(out / "tasks/pit-dev.jsonl"), kind="pairs").pairs
    assert {pair.left: pair.is_positive for pair in pairs} == {
        "left 0": False,
        "left 1": False,
        "left 3": True,
        "left 4": True,
        "left 5": True,
    }


def test_no_query_of_a_task_is_a_labelled_row_or_a_development_query(out):
    def texts(name):
        return {json.loads(line)["text"] for line in (out / name).read_text().splitlines()}

    tested, tried = texts("tasks/debian/queries.jsonl"), texts("tasks/debian-dev/queries.jsonl")
    rows = [json.loads(line) for line in (out / "labels/debian.jsonl").read_text().splitlines()]
    labelled = {row["anchor"] for row in rows}
    assert not tested & tried
    assert not labelled & (tested | tried)
    assert len(labelled) == 32 - 6 - 4
    number = {"t": 0, "d": 1}
    for row in rows:
        split, place = row["anchor"].split()
        assert row["positive"] == f"document {int(place) * 4 + number[split]}"
    documents = (out / "tasks/debian/corpus.jsonl").read_text().splitlines()
    assert len(documents) == 20


def test_general_text_has_texts_longer_than_a_sentence(out):
    lines = (out / "corpora/general.txt").read_text().splitlines()
    assert lines[-2] == " ".join(f"sentence number {i} here" for i in range(5))
    assert "too short" not in lines
    assert (out / "corpora/twitter.txt").read_text() == "a b c\nd e f\n"
