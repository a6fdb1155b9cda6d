"""Records of a CSV file, strictly: what is not well formed is one bad line, and reading goes on behind it.

A lenient parser lets an unclosed quote swallow all rows up to the next quote. Here a record that does not end
well (junk behind a closing quote, an end of file or 64 MiB within quotes, another number of fields than the
header) costs its first line; the lines behind it are read again as records of their own. Knows nothing of
files or columns' meaning.
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipelines.lines import MAX_LINE_BYTES, LongLine

BAD_QUOTES, WRONG_COLUMNS, TOO_LONG = "bad_quotes", "wrong_columns", "too_long"


@dataclass(frozen=True)
class Record:
    """Fields of a record (an unquoted empty one is None), or why its first line is not one.

    Bytes that are not UTF-8 are lone surrogates in it (surrogateescape).
    """

    fields: Sequence[str | None]
    raw: str
    bad: str = ""


class _LongRecordError(Exception):
    """A record that is longer than a line may be."""


class _Lines:
    """Decoded lines that can be put back; remembers what was taken since `begin`."""

    def __init__(self, lines: Iterator[bytes]):
        self._lines = lines
        self._again: deque[str | LongLine] = deque()
        self._size = 0
        self.taken: list[str | LongLine] = []

    def begin(self) -> None:
        self.taken, self._size = [], 0

    def put_back(self, lines: Sequence[str | LongLine]) -> None:
        self._again.extendleft(reversed(lines))

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else self._decoded(next(self._lines))
        self.taken.append(line)
        self._size += len(line)
        if isinstance(line, LongLine) or self._size > MAX_LINE_BYTES:
            raise _LongRecordError
        return line

    def _decoded(self, line: bytes) -> str | LongLine:
        return line if type(line) is LongLine else line.decode("utf-8", "surrogateescape") + "\n"


def read_records(lines: Iterator[bytes], *, delimiter: str) -> Iterator[Record]:
    """Yields the header and then a record for each row; blank lines are none.

    lines: without line feeds. The number of fields of the first record is that of all.
    """
    csv.field_size_limit(2 * MAX_LINE_BYTES)
    source = _Lines(lines)
    reader = csv.reader(source, delimiter=delimiter, strict=True)
    num_fields = 0
    while True:
        source.begin()
        bad = ""
        fields: list[str] = []
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error:
            bad = BAD_QUOTES
        except _LongRecordError:
            bad = TOO_LONG if isinstance(source.taken[0], LongLine) else BAD_QUOTES
        if not bad and not fields:
            continue
        num_fields = num_fields or len(fields)
        if not bad and len(fields) != num_fields:
            bad = WRONG_COLUMNS
        if bad:
            source.put_back(source.taken[1:])
            yield Record((), _as_text(source.taken[0]), bad)
        else:
            raw = "".join(map(_as_text, source.taken)) if "" in fields else ""
            yield Record(_with_nulls(fields, raw, delimiter), raw)


def _as_text(line: str | LongLine) -> str:
    return line.decode("utf-8", "surrogateescape") if isinstance(line, LongLine) else line


def _with_nulls(fields: list[str], raw: str, delimiter: str) -> Sequence[str | None]:
    """Unquoted empty fields as None; `raw` is the record's text where one of them is empty."""
    if "" not in fields:
        return fields
    if '""' not in raw:
        return [field or None for field in fields]
    quoted = _quoted(raw, delimiter)
    return [field if field or is_quoted else None for field, is_quoted in zip(fields, quoted, strict=True)]


def _quoted(raw: str, delimiter: str) -> list[bool]:
    """Which fields of a well-formed record are quoted."""
    found, place = [], 0
    while True:
        found.append(raw.startswith('"', place))
        if found[-1]:
            place = raw.index('"', place + 1)
            while raw.startswith('""', place):
                place = raw.index('"', place + 2)
        place = raw.find(delimiter, place)
        if place < 0:
            return found
        place += 1
