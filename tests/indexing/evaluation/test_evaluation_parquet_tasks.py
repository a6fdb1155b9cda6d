"""Tasks whose queries, judgements and documents are Parquet: what text gives, or a named reason."""

import json

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from indexing.evaluation.readers import detect_kind, read_task
from indexing.evaluation.tasks import read_beir_corpus, read_beir_task

QUERIES = {"_id": ["q1", "q2", "q3"], "text": ["naïve one", "two", "three"]}
JUDGED = {"query-id": ["q1", "q2", "q1", "q7"], "corpus-id": ["d1", "d2", "d9", "d1"], "score": [1, 0, 0, 2]}
CORPUS = {"_id": ["d1", "d2", "d2"], "title": ["T", "", None], "text": ["a\u2028b", "first", "second"]}
# Files of one table, or a folder of parts as other programs leave it.
LAYOUTS = {
    "files": ("queries.parquet", "qrels/test.parquet", "corpus.parquet"),
    "plain": ("queries.parquet", "qrels.parquet", "corpus.parquet"),
    "parts": ("queries/", "qrels/test.parquet/", "corpus/"),
    "folders": ("queries.parquet/", "qrels.parquet/", "corpus.parquet/"),
}


@pytest.fixture(params=["local", "memory"])
def place(request, tmp_path):
    """A file system and a folder on it; nothing may take a path for a local one."""
    if request.param == "local":
        return pyarrow.fs.LocalFileSystem(), str(tmp_path / "task")
    return pyarrow.fs._MockFileSystem(), "bucket/task"


def put(place, name, columns, *, schema=None):
    """One file, or for a name with `/` at the end a folder of parts, one of them empty, and other files."""
    filesystem, folder = place
    table = pa.table(columns, schema=schema)
    path = f"{folder}/{name}"
    filesystem.create_dir(path.rpartition("/")[0], recursive=True)
    parts = {path: table}
    if name.endswith("/"):
        cuts = {"part-0": table[:1], "part-1": table[1:1], "part-2": table[1:]}
        parts = {f"{path}{part}.parquet": cut for part, cut in cuts.items()}
        for other in ("_SUCCESS", ".part-0.parquet.crc", "_old.parquet"):
            with filesystem.open_output_stream(path + other) as stream:
                stream.write(b"no table")
    for target, part in parts.items():
        with filesystem.open_output_stream(target) as stream:
            pq.write_table(part, stream)


def put_all(place, layout="files"):
    for name, columns in zip(LAYOUTS[layout], (QUERIES, JUDGED, CORPUS), strict=True):
        put(place, name, columns)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_task_in_parquet_is_the_task_of_the_same_rows_in_text(place, tmp_path, layout):
    text = tmp_path / "text"
    text.mkdir()
    for name, columns in (("queries", QUERIES), ("corpus", CORPUS)):
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        (text / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = ["\t".join(map(str, row)) for row in zip(*JUDGED.values(), strict=True)]
    (text / "qrels.tsv").write_text("\n".join(["\t".join(JUDGED), *lines]) + "\n")
    put_all(place, layout)
    local = (pyarrow.fs.LocalFileSystem(), str(text))
    assert read_beir_task(*place, name="toy") == read_beir_task(*local, name="toy")
    assert list(read_beir_corpus(*place)) == list(read_beir_corpus(*local))
    assert detect_kind(*place) == "beir"
    assert read_task(*place, kind="beir", name="toy") == read_task(*local, kind="beir", name="toy")


def test_columns_go_by_other_names_and_ids_may_be_numbers(place):
    codes = pa.array(["one", "two"]).dictionary_encode()
    put(place, "queries.parquet", {"id": pa.array([1, 2], pa.uint32()), "query": codes, "more": [[1], []]})
    judged = {"query_id": [1, 2], "doc_id": pa.array([7, 8], pa.int16()), "relevance": [1.0, 2.0]}
    put(place, "mine/judged.parquet", judged)
    put(place, "corpus.parquet", {"doc_id": [7, 8], "text": pa.array(["a", "b"], pa.large_string())})
    task = read_beir_task(*place, qrels_file="mine/judged.parquet")
    assert (task.query_ids, task.queries) == (["1", "2"], ["one", "two"])
    assert task.qrels == {"1": {"7": 1}, "2": {"8": 2}}
    assert [(d.doc_id, d.full_text) for d in read_beir_corpus(*place)] == [("7", "a"), ("8", "b")]


def test_where_text_and_parquet_are_both_there_the_text_is_taken(tmp_path):
    place = (pyarrow.fs.LocalFileSystem(), str(tmp_path / "task"))
    put_all(place)
    (tmp_path / "task/queries.jsonl").write_text('{"_id": "q1", "text": "from text"}\n')
    (tmp_path / "task/qrels/test.tsv").write_text("q1\td1\t1\n")
    assert read_beir_task(*place).queries == ["from text"]


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        (
            "queries.parquet",
            {"text": ["a"], "number": [1]},
            r"queries\.parquet: expected a column named _id or query_id or .*; there is text, number",
        ),
        ("queries.parquet", {"_id": ["q1"], "words": ["a"]}, "expected a column named text or query"),
        (
            "queries.parquet",
            {"_id": ["q1"], "text": [["a"]]},
            r"column 'text' holds list<.*>, expected text$",
        ),
        ("queries.parquet", {"_id": ["q1"], "text": [1]}, "column 'text' holds int64, expected text"),
        (
            "queries.parquet",
            {"_id": [1.5], "text": ["a"]},
            "column '_id' holds double, expected text or whole numbers",
        ),
        (
            "queries.parquet",
            {"_id": ["q1", "q2"], "text": ["a", None]},
            r"row 1: no value in column 'text', expected text",
        ),
        ("queries.parquet", {"_id": ["q1"], "text": [None]}, "row 0: no value in column 'text'"),
        ("queries.parquet", {"_id": ["q1", "q1"], "text": ["a", "b"]}, "repeated query ids q1"),
        ("qrels/test.parquet", {"query-id": ["q1"], "score": [1]}, "expected a column named corpus-id or"),
        (
            "qrels/test.parquet",
            {"query-id": ["q1"], "corpus-id": ["d1"], "score": ["1"]},
            "column 'score' holds string, expected whole numbers",
        ),
        (
            "qrels/test.parquet",
            {"query-id": ["q1"], "corpus-id": ["d1"], "score": [0.5]},
            "row 0: column 'score' holds 0.5, expected a whole number",
        ),
        (
            "qrels/test.parquet",
            {"query-id": ["q1", "q1"], "corpus-id": ["d1", "d1"], "score": [1, 2]},
            r"test\.parquet: row 1: two grades for query 'q1', document 'd1'",
        ),
        (
            "qrels/test.parquet",
            {"query-id": ["q9"], "corpus-id": ["d1"], "score": [1]},
            "none of 3 queries has a relevant document",
        ),
        ("corpus.parquet", {"_id": ["d1"], "title": ["T"]}, "expected a column named text; there is _id"),
        (
            "corpus.parquet",
            {"_id": ["d1"], "title": [1], "text": ["a"]},
            "column 'title' holds int64, expected text",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_named_with_its_column_or_row(place, name, columns, message):
    put_all(place)
    put(place, name, columns)
    with pytest.raises(ValueError, match=message):
        read_task(*place, kind="beir")


def test_a_column_that_is_there_twice_is_refused(place):
    put_all(place)
    fields = [("_id", pa.string()), ("text", pa.string()), ("text", pa.string())]
    put(place, "queries.parquet", [pa.array(["a"])] * 3, schema=pa.schema(fields))
    with pytest.raises(ValueError, match="there are 2 columns 'text'; rename one"):
        read_beir_task(*place)


def test_a_damaged_file_and_a_folder_without_parts_are_named(place):
    filesystem, folder = place
    put_all(place)
    with filesystem.open_output_stream(f"{folder}/qrels/test.parquet") as stream:
        stream.write(b"PAR1 these are only words PAR1")
    with pytest.raises(ValueError, match=r"qrels/test\.parquet: not a readable Parquet file"):
        read_beir_task(*place)
    filesystem.delete_file(f"{folder}/qrels/test.parquet")
    with pytest.raises(FileNotFoundError, match=r"qrels/test\.tsv.*qrels/test\.parquet.*qrels\.parquet"):
        read_beir_task(*place)
    put(place, "qrels/test.parquet", JUDGED)
    filesystem.delete_file(f"{folder}/queries.parquet")
    filesystem.create_dir(f"{folder}/queries")
    with pytest.raises(FileNotFoundError, match=r"there is no Parquet file at '.*/queries' or in it"):
        read_beir_task(*place)


@pytest.mark.parametrize("is_folder", [False, True])
def test_labelled_rows_may_be_a_folder_of_parts(place, is_folder):
    filesystem, folder = place
    ending = "/" if is_folder else ""
    pairs = {"sentence1": ["a", "b", "c"], "sentence2": ["x", "y", "z"], "label": [True, False, True]}
    put(place, f"pairs.parquet{ending}", pairs)
    path = f"{folder}/pairs.parquet"
    assert detect_kind(filesystem, path) == "pairs"
    task = read_task(filesystem, path, kind="pairs")
    assert [(p.left, p.right, p.is_positive) for p in task.pairs] == [
        ("a", "x", True), ("b", "y", False), ("c", "z", True)
    ]  # fmt: skip
    put(place, f"sts.parquet{ending}", pairs | {"label": [0.5, 2.0, 4.5]})
    assert detect_kind(filesystem, f"{folder}/sts.parquet") == "sts"
    similar = read_task(filesystem, f"{folder}/sts.parquet", kind="sts")
    assert [pair.label for pair in similar.pairs] == [0.5, 2.0, 4.5]
    candidates = {"query": ["q", "q"], "text": ["t", "u"], "label": [1, 0]}
    put(place, f"rerank.parquet{ending}", candidates)
    assert detect_kind(filesystem, f"{folder}/rerank.parquet") == "rerank"
    (query,) = read_task(filesystem, f"{folder}/rerank.parquet", kind="rerank").queries
    assert (query.query, query.texts) == ("q", ("t", "u"))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"sentence1": [["a"]], "sentence2": ["b"], "label": [1]},
            r"row 0: sentence1 or .* must be text or a number, got \['a'\]",
        ),
        ({"sentence1": [b"a"], "sentence2": ["b"], "label": [1]}, "must be text or a number, got b'a'"),
        ({"sentence1": ["a"], "sentence2": [None], "label": [1]}, "row 0: no value in column sentence2"),
        ({"sentence1": ["a"], "label": [1]}, "expected a column named sentence2 or"),
        ({"sentence1": ["a"], "sentence2": ["b"], "label": ["yes"]}, "must be a number, got 'yes'"),
        ({"sentence1": ["a"], "sentence2": ["b"], "label": [None]}, "row 0: no value in column label"),
    ],
)
def test_a_labelled_row_of_another_type_is_named(place, columns, message):
    put(place, "pairs.parquet", columns)
    with pytest.raises(ValueError, match=message):
        read_task(place[0], f"{place[1]}/pairs.parquet", kind="pairs")
