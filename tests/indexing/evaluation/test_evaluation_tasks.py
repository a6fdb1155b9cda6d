"""The BEIR-layout reader: what it accepts, what it counts, what it refuses."""

import gzip
import json

import pyarrow.fs
import pytest

from indexing.evaluation.tasks import RetrievalTask, read_beir_corpus, read_beir_task

FILESYSTEM = pyarrow.fs.LocalFileSystem()
HEADER = "query-id\tcorpus-id\tscore\n"


def write(path, text, *, zipped=False, encoding="utf-8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode(encoding)
    path.write_bytes(gzip.compress(data) if zipped else data)


def queries_text(queries, end="\n"):
    return "".join(json.dumps({"_id": i, "text": t}) + end for i, t in queries)


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "queries.jsonl", queries_text([("q1", "one"), ("q2", "two"), ("q3", "three")]))
    write(tmp_path / "qrels" / "test.tsv", HEADER + "q1\td1\t1\nq2\td2\t0\nq1\td9\t0\nq7\td1\t2\n")
    return tmp_path


def test_a_task_keeps_queries_with_relevant_documents_and_counts_the_rest(folder):
    task = read_beir_task(FILESYSTEM, str(folder), name="toy")
    assert (task.name, task.query_ids, task.queries) == ("toy", ["q1"], ["one"])
    assert task.qrels == {"q1": {"d1": 1, "d9": 0}}
    assert (task.num_skipped_queries, task.num_unknown_queries) == (2, 1)
    assert task.judged_doc_ids() == {"d1", "d9"}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_ends_marks_and_compression_do_not_matter(tmp_path, zipped, encoding, end):
    ending = ".gz" if zipped else ""
    options = {"zipped": zipped, "encoding": encoding}
    write(tmp_path / f"queries.jsonl{ending}", queries_text([("q1", "naïve")], end), **options)
    write(tmp_path / f"qrels.tsv{ending}", f"query-id\tcorpus-id\tscore{end}q1\td1\t1{end}{end}", **options)
    line = json.dumps({"_id": "d1", "title": "T", "text": "a\u2028b"}, ensure_ascii=False)
    write(tmp_path / f"corpus.jsonl{ending}", line + end, **options)
    task = read_beir_task(FILESYSTEM, str(tmp_path))
    assert (task.queries, task.qrels) == (["naïve"], {"q1": {"d1": 1}})
    (document,) = read_beir_corpus(FILESYSTEM, str(tmp_path))
    assert document.full_text == "T a\u2028b"


def test_a_qrels_file_without_header_keeps_its_first_line(folder):
    write(folder / "mine.tsv", "q1\td1\t1\n")
    assert read_beir_task(FILESYSTEM, str(folder), qrels_file="mine.tsv").query_ids == ["q1"]


def test_repeated_queries_are_named(folder):
    write(folder / "queries.jsonl", queries_text([("q1", "a"), ("q2", "b"), ("q1", "c")]))
    with pytest.raises(ValueError, match="repeated query ids q1"):
        read_beir_task(FILESYSTEM, str(folder))


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("queries.jsonl", '{"_id": "q1"}\n', "line 1: 'text' must be a string"),
        ("queries.jsonl", '{"_id": "q1", "text": "a"}\n{oops\n', "line 2: not JSON"),
        ("queries.jsonl", "[1]\n", "line 1: expected a JSON object"),
        ("qrels/test.tsv", HEADER + "q1\td1\n", "line 2: expected query-id"),
        ("qrels/test.tsv", HEADER + "q1\td1\thigh\n", "line 2: expected query-id"),
        ("qrels/test.tsv", HEADER + "q1\td1\t1\nq1\td1\t2\n", "line 3: two grades"),
        ("qrels/test.tsv", HEADER + "q9\td1\t1\n", "none of 3 queries has a relevant document"),
    ],
)
def test_malformed_files_are_named_with_line_and_reason(folder, file, text, message):
    write(folder / file, text)
    with pytest.raises(ValueError, match=message):
        read_beir_task(FILESYSTEM, str(folder))


def test_bytes_that_are_not_text_are_refused(folder):
    (folder / "queries.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not readable as UTF-8"):
        read_beir_task(FILESYSTEM, str(folder))
    (folder / "queries.jsonl").unlink()
    (folder / "queries.jsonl.gz").write_bytes(b"not gzip")
    with pytest.raises(ValueError, match="not readable"):
        read_beir_task(FILESYSTEM, str(folder))


def test_missing_files_are_listed(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"qrels/test\.tsv.*qrels\.tsv\.gz"):
        read_beir_task(FILESYSTEM, str(tmp_path))


def test_a_document_in_several_passages_is_yielded_line_by_line(tmp_path):
    lines = [json.dumps({"_id": 7, "text": text}) + "\n" for text in ("a", "b")]
    write(tmp_path / "corpus.jsonl", "".join(lines))
    documents = list(read_beir_corpus(FILESYSTEM, str(tmp_path)))
    assert [(d.doc_id, d.full_text) for d in documents] == [("7", "a"), ("7", "b")]


def test_a_task_made_by_hand_is_checked():
    with pytest.raises(ValueError, match="2 query ids, 1 queries"):
        RetrievalTask("t", ["a", "b"], ["x"], {})
    with pytest.raises(ValueError, match="repeated query ids a"):
        RetrievalTask("t", ["a", "a"], ["x", "y"], {"a": {"d": 1}})
    with pytest.raises(ValueError, match="without a relevant document: b"):
        RetrievalTask("t", ["a", "b"], ["x", "y"], {"a": {"d": 1}, "b": {"d": 0}})
