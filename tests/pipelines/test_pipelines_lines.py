"""Lines and records: nothing is lost where a file is cut, where a line is huge, or where a quote is open."""

import csv
import io
import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines import lines
from pipelines.csv_records import read_records
from pipelines.lines import LongLine, count_lines, read_lines

DATA = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r\n", b"\xef\xbb\xbf"]), max_size=30).map(b"".join)


def lines_of(data, start=0, end=None):
    stream = pa.BufferReader(data)
    stream.seek(max(0, start - 1))
    return [line for some in read_lines(stream, start=start, end=end) for line in some]


@given(data=DATA, cuts=st.lists(st.integers(0, 60), max_size=5), read_bytes=st.integers(1, 9))
def test_wherever_a_file_is_cut_every_line_is_read_and_counted_once(data, cuts, read_bytes):
    bounds = sorted({0, len(data), *(cut for cut in cuts if cut <= len(data))})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_READ_BYTES", read_bytes)
        whole = lines_of(data)
        parts = [lines_of(data, start, end) for start, end in itertools.pairwise(bounds)]
        for part, (start, end) in zip(parts, itertools.pairwise(bounds), strict=True):
            stream = pa.BufferReader(data)
            stream.seek(max(0, start - 1))
            assert count_lines(stream, start=start, end=end) == len(part)
    expected = data.split(b"\n")
    expected = expected[:-1] if expected[-1] == b"" else expected
    if expected:
        expected[0] = expected[0].removeprefix(b"\xef\xbb\xbf")
    assert whole == expected or whole == [line for line in expected if line or data]
    assert [line for part in parts for line in part] == whole


def test_of_a_huge_line_only_the_beginning_is_kept_and_the_next_line_is_whole(monkeypatch):
    monkeypatch.setattr(lines, "_READ_BYTES", 100)
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 5_000)
    data = b"first\n" + b"x" * 100_000 + b"\nlast\n"
    first, huge, last = lines_of(data)
    assert (first, last) == (b"first", b"last")
    assert isinstance(huge, LongLine)
    assert huge == b"x" * 1_024
    parts = [lines_of(data, start, start + 1_000) for start in range(0, len(data), 1_000)]
    assert [line for part in parts for line in part] == [first, huge, last]


def records(text, delimiter=","):
    return [
        (list(r.fields), r.bad) for r in read_records(iter(text.encode().split(b"\n")), delimiter=delimiter)
    ]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (
            '1,"open\n2,b\n3,"ok"\n4,d\n',
            [([], "bad_quotes"), (["2", "b"], ""), (["3", "ok"], ""), (["4", "d"], "")],
        ),
        ('1,"open\n2,b\n3,c', [([], "bad_quotes"), (["2", "b"], ""), (["3", "c"], "")]),
        ("1,a,b\n2\n\n3,c\r\n", [([], "wrong_columns"), ([], "wrong_columns"), (["3", "c"], "")]),
        ('1,5" disk\n"2" ,b\n', [(["1", '5" disk'], ""), ([], "bad_quotes")]),
        ('"1","a\nb"\n"",\n,""\n', [(["1", "a\nb"], ""), (["", None], ""), ([None, ""], "")]),
    ],
)
def test_a_record_that_is_not_well_formed_costs_its_first_line_alone(text, rows):
    assert records("id,text\n" + text)[1:] == rows


def test_a_quote_that_stays_open_is_given_up_and_its_lines_are_read_again(monkeypatch):
    monkeypatch.setattr("pipelines.csv_records.MAX_LINE_BYTES", 50)
    text = 'id,text\n1,"open\n' + "".join(f"{i},word\n" for i in range(2, 40))
    assert [fields[0] if fields else bad for fields, bad in records(text)] == [
        *("id", "bad_quotes"),
        *(str(i) for i in range(2, 40)),
    ]


@given(st.lists(st.tuples(st.text(max_size=6), st.text(max_size=6)), min_size=1, max_size=5))
def test_what_a_csv_writer_wrote_is_read_back(rows):
    buffer = io.StringIO(newline="")
    csv.writer(buffer, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([("a", "b"), *rows])
    assert [(tuple(fields), bad) for fields, bad in records(buffer.getvalue())[1:]] == [
        (row, "") for row in rows
    ]
