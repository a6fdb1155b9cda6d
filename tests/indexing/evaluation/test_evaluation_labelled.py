"""A user's own pairs and candidates, and STS data, in every layout and format; bad rows are named."""

import gzip
import json

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from indexing.evaluation.readers import detect_kind, read_task

FILES = pyarrow.fs.LocalFileSystem()
PAIRS = [("a b", "a c", 1), ("d", "", 0), ("e", "f", 1)]
CANDIDATES = [
    ("q1", "find x", "d1", "x is here", 1),
    ("q1", "find x", "d2", "no", 0),
    ("q2", "y", "d1", "n", 0),
]


def write(path, rows, columns, *, end="\n", mark=""):
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        pq.write_table(pa.table(dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))), path)
        return path
    if name.endswith(".jsonl"):
        lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in rows]
    else:
        separator = "," if name.endswith(".csv") else "\t"
        lines = [separator.join(map(str, row)) for row in [columns, *rows]]
    data = (mark + end.join(lines) + end).encode()
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
    return path


def read(path, **options):
    return read_task(FILES, str(path), kind=detect_kind(FILES, str(path)), **options)


@pytest.mark.parametrize("file", ["p.parquet", "p.jsonl", "p.tsv", "p.csv", "p.tsv.gz", "p.jsonl.gz"])
@pytest.mark.parametrize("windows", [False, True])
def test_pairs_and_candidates_are_the_same_in_every_format(tmp_path, file, windows):
    options = {"end": "\r\n", "mark": "\ufeff"} if windows else {}
    task = read(write(tmp_path / file, PAIRS, ("sentence1", "sentence2", "label"), **options), name="mine")
    assert [(p.left, p.right, p.is_positive) for p in task.pairs] == [(a, b, bool(y)) for a, b, y in PAIRS]
    columns = ("query_id", "query", "doc_id", "text", "label")
    task = read(write(tmp_path / f"r{file}", CANDIDATES, columns, **options))
    (query,) = task.queries
    assert (query.query, query.doc_ids, query.texts) == ("find x", ("d1", "d2"), ("x is here", "no"))
    assert task.counts == {"skipped_queries": 1}


def test_labels_between_mean_similarity(tmp_path):
    path = write(tmp_path / "s.tsv", [("a", "b", 2.5), ("c", "d", 0)], ("s1", "s2", "score"))
    assert detect_kind(FILES, str(path)) == "sts"
    assert {pair.is_positive for pair in read(path).pairs} == {None}


def test_candidates_may_be_nested(tmp_path):
    lines = [
        {"query": "x", "positive": ["p1", "p2"], "negative": ["n"]},
        {"query": "y", "candidates": [{"text": "c0", "label": 0}, {"text": "c1", "label": 2, "doc_id": "d"}]},
    ]
    (tmp_path / "n.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    first, second = read(tmp_path / "n.jsonl").queries
    assert (first.texts, list(first.judged.values())) == (("p1", "p2", "n"), [1, 1, 0])
    assert (second.doc_ids, second.judged) == (("y/0", "d"), {"y/0": 0, "d": 2})


def test_the_sts_benchmark_takes_quotes_as_they_are(tmp_path):
    line = 'main-captions\tMSRvid\t2012test\t0024\t2.500\tA "girl.\tB girl.\tsource\n'
    (tmp_path / "sts-test.csv").write_text(line)
    (pair,) = read(tmp_path).pairs
    assert (pair.left, pair.label) == ('A "girl.', 2.5)


def test_sick_reads_the_annotated_files_and_the_joint_one(tmp_path):
    (tmp_path / "a").mkdir()
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    (tmp_path / "a" / "SICK_test_annotated.txt").write_text(header + "6\ta\tb\t3.3\tNEUTRAL\n")
    (pair,) = read(tmp_path / "a").pairs
    assert (pair.pair_id, pair.left, pair.label) == ("6", "a", 3.3)
    joint = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tSemEval_set\n"
    joint += "1\ta\tb\t1\tTRAIN\n2\tc\td\t2\tTRIAL\n"
    (tmp_path / "SICK.txt").write_text(joint)
    assert [pair.pair_id for pair in read(tmp_path, split="dev").pairs] == ["2"]


def test_a_year_of_semeval_is_all_its_files_without_the_unscored_lines(tmp_path):
    (tmp_path / "STS.input.answers.txt").write_text("a\tb\textra\nc\td\ne\tf\n")
    (tmp_path / "STS.gs.answers.txt").write_text("1.5\r\n\r\n4\r\n")
    (tmp_path / "STS.input.news.txt").write_text("g\th\n")
    (tmp_path / "STS.gs.news.txt").write_text("5\n")
    task = read(tmp_path, name="STS15")
    assert [pair.label for pair in task.pairs] == [1.5, 4.0, 5.0]
    assert task.counts == {"unscored_pairs": 1}
    (tmp_path / "STS.gs.news.txt").write_text("5\n4\n")
    with pytest.raises(ValueError, match="2 scores for the 1 pairs"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("p.tsv", "sentence1\tsentence2\tlabel\na\tb\n", r"p\.tsv: line 2: expected the 3 columns"),
        (
            "p.tsv",
            "sentence1\tsentence2\tlabel\na\tb\thigh\n",
            r"line 2: label or .* must be a number, got 'high'",
        ),
        ("p.tsv", "sentence1\tsentence2\tlabel\na\tb\tnan\n", "must be a number, got 'nan'"),
        ("p.tsv", "left\tother\tlabel\na\tb\t1\n", "expected a column named sentence2 or"),
        ("p.tsv", "sentence1\tsentence2\tlabel\na\tb\t0\n", "no positive pair"),
        ("p.tsv", "\n", "the file is empty"),
        ("p.jsonl", "{oops\n", "line 1: not JSON"),
        ("p.jsonl", '{"query_id": 1, "query": "a", "text": "b", "label": 0}\n', "no query with a relevant"),
        (
            "p.tsv",
            "query_id\tquery\ttext\tlabel\n1\ta\tb\t1\n1\tc\td\t1\n",
            "line 3: query '1' has two texts: 'a' and 'c'",
        ),
        (
            "p.tsv",
            "query\tdoc_id\ttext\tlabel\na\td\tb\t1\na\td\tc\t0\n",
            "repeated candidates of query 'a': d",
        ),
        ("p.tsv", "pair_id\ts1\ts2\tlabel\n7\ta\tb\t1\n7\tc\td\t1\n", "repeated pair ids"),
        ("p.docx", "x", "expected a folder or a file ending in"),
    ],
)
def test_bad_files_are_named_with_row_and_reason(tmp_path, file, text, message):
    (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match=message):
        read(tmp_path / file)
    (tmp_path / "x.parquet").write_bytes(b"no")
    with pytest.raises(ValueError, match="not a readable Parquet"):
        read(tmp_path / "x.parquet")
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        detect_kind(FILES, str(tmp_path / "absent"))
