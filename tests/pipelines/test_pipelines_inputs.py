"""Input files: every format read alike, every problem an error that names the file."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_builders import write_rows

from pipelines.errors import InputError
from pipelines.inputs import Piece, check_files, find_files
from pipelines.rows import read_piece

FORMATS = ["parquet", "jsonl", "ndjson", "jsonl.gz", "csv", "csv.gz", "tsv", "tsv.gz"]
ROWS = [
    ("1", "plain"),
    ("2", 'quo"ted, with comma'),
    ("3", "two\nlines\tand tab"),
    ("4", ""),
    ("5", None),
    ("6", "NA"),
]


def piece_of(path):
    (file,) = find_files(str(path))
    return Piece(file)


def read(path, *columns):
    columns = columns or ["text"]
    batches = list(read_piece(piece_of(path), columns))
    assert not [row for batch in batches for row in batch.bad]
    return [row for batch in batches for row in zip(*(batch.columns[name] for name in columns), strict=True)]


def rows_and_bad(path, *columns):
    """Good rows (number, text) and bad rows (number, reason) of a file."""
    batches = list(read_piece(piece_of(path), columns or ["text"]))
    good = [row for b in batches for row in zip(b.rows, b.columns[(columns or ["text"])[0]], strict=True)]
    return good, [(row.row, row.reason) for batch in batches for row in batch.bad]


def error_of(path, *columns):
    """The error of reading a file; it must be one line that names the file."""
    with pytest.raises(InputError) as caught:
        read(path, *columns)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_gives_the_same_rows_with_quotes_newlines_and_nulls(tmp_path, ending):
    path = write_rows(tmp_path / f"data.{ending}", ROWS)
    assert read(path, "text", "id") == [(text, row_id) for row_id, text in ROWS]
    assert read(path, "id") == [(row_id,) for row_id, _ in ROWS]


@settings(deadline=None, max_examples=25)
@given(
    rows=st.lists(
        st.tuples(
            st.text(max_size=5),
            st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8),
        ),
        min_size=1,
        max_size=6,
    ),
    ending=st.sampled_from(["jsonl", "csv", "tsv.gz", "parquet"]),
)
def test_any_text_survives_every_format(tmp_path_factory, rows, ending):
    path = write_rows(tmp_path_factory.mktemp("any") / f"data.{ending}", rows)
    assert read(path, "id", "text") == rows


@pytest.mark.parametrize("ending", ["txt", "txt.gz", "TXT", "txt.GZ", "txt.zst", "txt.bz2"])
def test_plain_text_has_one_text_per_line_however_it_is_compressed(tmp_path, ending):
    path = tmp_path / f"lines.{ending}"
    codec = {"gz": "gzip", "zst": "zstd", "bz2": "bz2"}.get(ending.lower().partition(".")[2])
    with pa.output_stream(str(path), compression=codec) as stream:
        stream.write(b"one\n\n  two \r\n\xef\xbb\xbfthree\nno end")
    lines = [("one",), ("",), ("  two ",), ("\ufeffthree",), ("no end",)]
    assert read(path, "whatever") == lines


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "\ufeffé\r\nb\r\n"),
        ("a.jsonl", '\ufeff{"text": "é"}\r\n\r\n{"text": "b"}\r\n'),
        ("a.csv", '\ufefftext,n\r\n"é",1\r\nb,2\r\n'),
        ("a.tsv", "\ufefftext\tn\r\né\t1\r\nb\t2\r\n"),
    ],
)
def test_byte_order_mark_and_windows_line_ends_are_no_text(tmp_path, name, content):
    assert read(put(tmp_path / name, content)) == [("é",), ("b",)]


def test_only_an_unquoted_empty_csv_field_is_null(tmp_path):
    path = put(tmp_path / "a.csv", 'id,text\n1,\n2,""\n3,NA\n4,null\n5,nan\n')
    assert read(path) == [(None,), ("",), ("NA",), ("null",), ("nan",)]


def test_csv_columns_that_nobody_asked_for_may_hold_anything(tmp_path):
    lines = ["text,other", *(f"t{i},{i}" for i in range(200_000)), "last,words", "end,"]
    rows = read(put(tmp_path / "a.csv", "\n".join(lines)))
    assert (len(rows), rows[-2:]) == (200_002, [("last",), ("end",)])


def test_a_csv_value_of_several_megabytes_is_read(tmp_path):
    path = put(tmp_path / "a.csv", "text,n\nshort,1\n" + '"' + "long \n" * 600_000 + '",2\nshort,3\n')
    assert [len(text) for (text,) in read(path)] == [5, 3_600_000, 5]


def test_row_numbers_go_on_through_batches_and_row_groups(tmp_path):
    texts = [str(i) for i in range(20_000)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=9_000)
    put(tmp_path / "b.txt", "\n".join(texts))
    put(tmp_path / "c.jsonl", "\n".join(json.dumps({"text": text}) for text in texts))
    for name in ("a.parquet", "b.txt", "c.jsonl"):
        parts = list(read_piece(piece_of(tmp_path / name), ["text"]))
        assert len(parts) > 2
        assert [(row, text) for b in parts for row, text in zip(b.rows, b.columns["text"], strict=True)] == [
            *enumerate(texts)
        ]
    file = piece_of(tmp_path / "a.parquet").file
    first, *_ = read_piece(Piece(file, (1,)), ["text"])
    assert (first.rows[0], first.columns["text"][0]) == (9_000, "9000")


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv", "tsv.gz"])
def test_a_missing_column_names_the_file_its_columns_and_the_nearest(tmp_path, ending):
    path = write_rows(tmp_path / f"a.{ending}", [("1", "x")], columns=("doc", "texte"))
    message = error_of(path, "text")
    assert "no column 'text'" in message
    assert "doc, texte" in message
    assert "Did you mean 'texte'?" in message
    assert "no column 'title'" in error_of(path, "texte", "title")


@pytest.mark.parametrize(("name", "content"), [("a.csv", "text,n,text\na,1,b\n")])
def test_a_column_that_is_there_twice_is_refused(tmp_path, name, content):
    assert "2 columns 'text'" in error_of(put(tmp_path / name, content))
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 2, ["text", "text"]), tmp_path / "b.parquet")
    assert "2 columns 'text'" in error_of(tmp_path / "b.parquet")


@pytest.mark.parametrize(
    ("column", "array", "part"),
    [
        ("text", pa.array([1, 2]), "int64"),
        ("text", pa.array([b"a"]), "binary"),
        ("text", pa.array([["a"]]), "list"),
        ("text", pa.array([1.5]), "double"),
        ("text", pa.array([1, 1]).dictionary_encode(), "int64"),
        ("id", pa.array([["a"]]), "list"),
        ("id", pa.array([b"0123456789abcdef"], pa.binary(16)), "fixed_size_binary"),
        ("title", pa.array([{"a": 1}]), "struct"),
    ],
)
def test_a_column_of_another_type_is_refused_before_anything_is_read(tmp_path, column, array, part):
    path = tmp_path / "a.parquet"
    columns = {"text": pa.array(["x"] * len(array)), column: array}
    pq.write_table(pa.table(columns), path)
    asked = list(dict.fromkeys(["text", column]))
    assert f"column '{column}'" in error_of(path, *asked)
    with pytest.raises(InputError, match=part):
        check_files(find_files(str(path)), asked)


def test_texts_of_every_string_type_and_ids_of_every_number_type_are_read(tmp_path):
    words = pa.array(["a", None, "b"])
    columns = {
        "plain": words,
        "large": words.cast(pa.large_string()),
        "view": words.cast(pa.string_view()),
        "dictionary": words.dictionary_encode(),
        "nothing": pa.nulls(3),
        "int": pa.array([1, 2**40, None]),
        "float": pa.array([1.5, None, 3.0]),
        "date": pa.array([0, 1, 2], pa.date32()),
    }
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path)
    check_files(find_files(str(path)), ["plain", *columns])
    for name in ("plain", "large", "view", "dictionary"):
        assert read(path, name) == [("a",), (None,), ("b",)]
    assert read(path, "nothing") == [(None,)] * 3
    assert read(path, "plain", "int") == [("a", "1"), (None, str(2**40)), ("b", None)]
    assert read(path, "plain", "date")[1] == (None, "1970-01-02")


def test_json_numbers_are_ids_and_other_json_values_are_null(tmp_path):
    values = [7, 2**70, -1, 1.5, "007", True, None, ["a"], {"a": 1}, float("nan"), "é"]
    path = put(tmp_path / "a.jsonl", "".join(json.dumps({"id": v, "text": "t"}) + "\n" for v in values))
    ids = [row_id for _, row_id in read(path, "text", "id")]
    assert ids == ["7", str(2**70), "-1", "1.5", "007", None, None, None, None, None, "é"]


def test_a_json_key_that_later_rows_lack_is_null(tmp_path):
    path = put(tmp_path / "a.jsonl", '{"text": "a", "id": "1"}\n{"id": "2"}\n{"text": "c"}\n')
    assert read(path, "text", "id") == [("a", "1"), (None, "2"), ("c", None)]


def test_lone_surrogates_of_json_are_dropped_and_pairs_kept(tmp_path):
    path = put(tmp_path / "a.jsonl", b'{"text": "cut \\ud83d"}\n{"text": "whole \\ud83d\\ude00"}\n')
    assert read(path) == [("cut ",), ("whole 😀",)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("not json", "not_json"),
        ('{"text": "a"', "not_json"),
        ('["text"]', "not_json"),
        ('"text"', "not_json"),
        ("null", "not_json"),
        ('{"text": ' + "9" * 5_000 + "}", "not_json"),
        ('{"text": ' + "[" * 100_000, "not_json"),
        ('{"text": 5}', "wrong_type"),
        ('{"text": ["a"]}', "wrong_type"),
        ('{"text": true}', "wrong_type"),
    ],
)
def test_a_line_that_holds_no_text_is_one_bad_row(tmp_path, line, reason):
    path = put(tmp_path / "a.jsonl", f'{{"text": "fine"}}\n\n{line}\n{{"text": "too"}}\n')
    assert rows_and_bad(path) == ([(0, "fine"), (3, "too")], [(2, reason)])


def test_a_file_without_one_json_object_is_a_bad_file(tmp_path):
    assert "line 2 is not JSON" in error_of(put(tmp_path / "a.jsonl", "\nwords\n[1]\n"))


@pytest.mark.parametrize(
    ("name", "content", "good", "bad"),
    [
        ("a.txt", b"one\n\xff\xfe\nthree\n", [(0, "one"), (2, "three")], 1),
        ("a.txt.gz", gzip.compress(b"one\ntwo\ncaf\xe9\n", mtime=0), [(0, "one"), (1, "two")], 2),
        ("a.jsonl", b'{"text": "one"}\n\n{"text": "caf\xe9"}\n', [(0, "one")], 2),
        ("a.csv", b"text,n\none,1\ncaf\xe9,2\nx,3\n", [(0, "one"), (2, "x")], 1),
    ],
)
def test_a_row_that_is_not_utf8_is_set_aside_alone(tmp_path, name, content, good, bad):
    assert rows_and_bad(put(tmp_path / name, content)) == (good, [(bad, "invalid_utf8")])


def test_a_header_that_is_not_utf8_is_a_bad_file(tmp_path):
    for content in ("text,n\none,1\n".encode("utf-16"), b"t\xe9xt,n\none,1\n"):
        assert "line 1 is not valid UTF-8" in error_of(put(tmp_path / "a.csv", content))


def test_parquet_strings_that_are_not_utf8_are_bad_rows_of_the_asked_columns_alone(tmp_path):
    raw = pa.array([b"one", None, b"caf\xe9", b"x"], pa.binary())
    broken = pa.Array.from_buffers(pa.string(), 4, raw.buffers())
    good = pa.array(["a"] * 4)
    pq.write_table(pa.table({"text": good, "id": broken}), tmp_path / "a.parquet", row_group_size=2)
    kept = [(0, "a"), (1, "a"), (3, "a")]
    assert rows_and_bad(tmp_path / "a.parquet", "text", "id") == (kept, [(2, "invalid_utf8")])
    (batch,) = [b for b in read_piece(piece_of(tmp_path / "a.parquet"), ["id"]) if b.bad]
    assert batch.bad[0].excerpt == "caf\ufffd"
    assert len(read(tmp_path / "a.parquet", "text")) == 4


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.parquet", b""),
        ("words.parquet", b"PAR1 these are only words PAR1"),
        ("empty.csv", b""),
        ("blank.csv", b"\n\n"),
        ("words.txt.gz", b"these are only words"),
        ("cut.txt.gz", gzip.compress(b"hello\n" * 10_000, mtime=0)[:-30]),
        ("cut.csv.gz", gzip.compress(b"text\n" + b"hello\n" * 10_000, mtime=0)[:-30]),
        ("words.jsonl.zst", b"these are only words"),
    ],
)
def test_a_broken_file_is_named(tmp_path, name, content):
    error_of(put(tmp_path / name, content))


def test_a_parquet_file_broken_in_its_data_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"text number {i}" for i in range(5_000)]}), path)
    content = bytearray(path.read_bytes())
    content[100:2_000] = b"\xa5" * 1_900
    path.write_bytes(content)
    assert check_files(find_files(str(path)), ["text"])
    error_of(path)


def test_footers_of_broken_files_fail_the_check_unless_they_are_to_be_skipped(tmp_path):
    good = write_rows(tmp_path / "a.parquet", [("1", "x")])
    bad = put(tmp_path / "b.parquet", b"")
    write_rows(tmp_path / "c.parquet", [("1", "x")], columns=("id", "words"))
    files = find_files(str(tmp_path))
    with pytest.raises(InputError, match=r"b\.parquet' \(0 bytes\)"):
        check_files(files[:2], ["text"])
    with pytest.raises(InputError, match=r"c\.parquet"):
        check_files(files[2:], ["text"])
    assert list(check_files(files, ["text"], skip_bad=True)) == [str(good)]
    assert bad.exists()


def test_plain_text_has_no_other_columns(tmp_path):
    assert "asked: text, id" in error_of(put(tmp_path / "a.txt", "one\n"), "text", "id")


def test_a_file_that_vanished_is_named(tmp_path):
    piece = piece_of(put(tmp_path / "a.txt", "one\n"))
    Path(piece.file.place.path).unlink()
    with pytest.raises(InputError, match=r"a\.txt"):
        list(read_piece(piece, ["text"]))
