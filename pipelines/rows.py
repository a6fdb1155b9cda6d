"""Rows of the user's files: Parquet, JSONL, CSV, TSV and plain text.

Owns the formats. A row that cannot be used for its form alone (not UTF-8, not JSON, a text of another type,
an unclosed quote ...) is named with the reason, and reading goes on; a file that cannot be read is an
InputError that names it. Rows count from 0 within their file. Knows nothing of what makes a text good.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.csv_records import BAD_QUOTES, Record, read_records
from pipelines.errors import InputError
from pipelines.inputs import InputFile, Piece, check_schema, format_of, require_columns
from pipelines.lines import LongLine, count_lines, read_lines
from pipelines.unicode_text import has_lone_surrogate

INVALID_UTF8, NOT_JSON, WRONG_TYPE, TOO_LONG = "invalid_utf8", "not_json", "wrong_type", "too_long"
EXCERPT_CHARS = 200
_BATCH_ROWS = 8_192
_BATCH_BYTES = 32 << 20
_PARQUET_BUFFER_BYTES = 8 << 20


@dataclass(frozen=True)
class BadRow:
    """A row set aside by its reader: its number, why, and the beginning of what is there."""

    row: int
    reason: str
    excerpt: str = ""


@dataclass(frozen=True)
class RowBatch:
    """Rows of a file in order: their numbers, the asked columns as texts, and the bad rows among them."""

    rows: Sequence[int]
    columns: Mapping[str, Sequence[str | None]]
    bad: Sequence[BadRow] = ()


class _Batch:
    """A batch that is being filled row by row."""

    def __init__(self, columns: Sequence[str]):
        self.names = columns
        self.rows: list[int] = []
        self.values: list[Sequence[str | None]] = []
        self.bad: list[BadRow] = []
        self.chars = 0

    @property
    def full(self) -> bool:
        return len(self.rows) + len(self.bad) >= _BATCH_ROWS or self.chars >= _BATCH_BYTES

    def add(self, row: int, values: Sequence[str | None]) -> None:
        self.rows.append(row)
        self.values.append(values)
        self.chars += sum(len(value) for value in values if value)

    def set_aside(self, row: int, reason: str, excerpt: str) -> None:
        self.bad.append(BadRow(row, reason, excerpt[:EXCERPT_CHARS]))

    def take(self) -> RowBatch:
        """The rows so far; the batch is empty afterwards."""
        columns = {name: [values[i] for values in self.values] for i, name in enumerate(self.names)}
        taken = RowBatch(self.rows, columns, self.bad)
        self.rows, self.values, self.bad, self.chars = [], [], [], 0
        return taken


def read_piece(piece: Piece, columns: Sequence[str]) -> Iterator[RowBatch]:
    """Yields the rows of a piece in file order.

    columns: the text column first. Plain text has that column only, whatever it is called.

    Raises:
        InputError: the file cannot be read or lacks a column.
    """
    with _named_errors(piece.file):
        if piece.file.format == "parquet":
            yield from _read_parquet(piece, columns)
        elif piece.file.format in ("csv", "tsv"):
            yield from _read_csv(piece.file, columns)
        elif piece.file.format == "jsonl":
            yield from _read_jsonl(piece, columns)
        else:
            yield from _read_text(piece, columns)


def count_rows(piece: Piece) -> int:
    """How many lines begin in a piece of a file that was cut at line ends."""
    assert piece.end is not None
    with _named_errors(piece.file), _open(piece) as stream:
        return count_lines(stream, start=piece.start, end=piece.end)


@contextmanager
def _named_errors(file: InputFile) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, EOFError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"cannot read '{file.place}' ({file.size_bytes} bytes) as "
            f"{format_of(file.relative_name) or 'text'}: {reason}"
        ) from error


@contextmanager
def opened(file: InputFile) -> Iterator[pa.NativeFile]:
    """The bytes of a file, decompressed as its ending tells.

    Raises:
        InputError: it cannot be read; names it.
    """
    with _named_errors(file), _open(Piece(file)) as stream:
        yield stream


def _open(piece: Piece) -> pa.NativeFile:
    """The file's bytes, decompressed as its ending tells; for a piece of lines from the byte before it."""
    place = piece.file.place
    if piece.start == 0:
        return place.filesystem.open_input_stream(place.path, compression=piece.file.compression)
    stream = place.filesystem.open_input_file(place.path)
    stream.seek(piece.start - 1)
    return stream


def _read_parquet(piece: Piece, columns: Sequence[str]) -> Iterator[RowBatch]:
    file = piece.file
    with file.place.filesystem.open_input_file(file.place.path) as stream:
        # Buffered, so that a column of a huge row group is not read whole before its first row.
        reader = pq.ParquetFile(stream, buffer_size=_PARQUET_BUFFER_BYTES)
        check_schema(file, reader.schema_arrow, columns)
        metadata = reader.metadata
        sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        first_rows = [0, *itertools.accumulate(sizes)]
        for group in range(len(sizes)) if piece.row_groups is None else piece.row_groups:
            row = first_rows[group]
            row_bytes = metadata.row_group(group).total_byte_size // max(1, sizes[group])
            batch_rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, row_bytes)))
            for batch in reader.iter_batches(batch_rows, row_groups=[group], columns=list(columns)):
                yield _parquet_rows(batch, columns, row)
                row += batch.num_rows


def _parquet_rows(batch: pa.RecordBatch, columns: Sequence[str], first_row: int) -> RowBatch:
    """The columns as strings; Arrow takes bytes from Parquet unseen, so it is here that UTF-8 is checked."""
    arrays = [batch.column(column).cast(pa.string()) for column in columns]
    rows = range(first_row, first_row + batch.num_rows)
    broken: dict[int, str] = {}
    for array in arrays:
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            broken |= _not_utf8(array)
    if not broken:
        return RowBatch(rows, {name: array.to_pylist() for name, array in zip(columns, arrays, strict=True)})
    good = pa.array([i for i in range(len(rows)) if i not in broken], pa.int64())
    values = {name: array.take(good).to_pylist() for name, array in zip(columns, arrays, strict=True)}
    bad = [BadRow(rows[i], INVALID_UTF8, excerpt) for i, excerpt in sorted(broken.items())]
    return RowBatch([rows[i] for i in good.to_pylist()], values, bad)


def _not_utf8(array: pa.StringArray) -> dict[int, str]:
    """The places of values that are not UTF-8, with an excerpt of each."""
    found = {}
    for i, value in enumerate(array.cast(pa.binary()).to_pylist()):
        try:
            (value or b"").decode("utf-8")
        except UnicodeDecodeError:
            found[i] = value[: 4 * EXCERPT_CHARS].decode("utf-8", "replace")[:EXCERPT_CHARS]
    return found


def _read_csv(file: InputFile, columns: Sequence[str]) -> Iterator[RowBatch]:
    """Only an unquoted empty field is null: `NA` and `null` are words, `""` is an empty text."""
    with _open(Piece(file)) as stream:
        lines = (line for some in read_lines(stream) for line in some)
        records = read_records(lines, delimiter="\t" if file.format == "tsv" else ",")
        header = next(records, None)
        if header is None:
            raise InputError(f"'{file.place}' is empty ({file.size_bytes} bytes)")
        places = _places(file, header, columns)
        batch = _Batch(columns)
        for row, record in enumerate(records):
            values = [] if record.bad else [record.fields[place] for place in places]
            if record.bad:
                batch.set_aside(row, record.bad, _readable(record.raw.rstrip("\r\n")))
            elif all(value is None or value.isascii() or not has_lone_surrogate(value) for value in values):
                batch.add(row, values)
            else:
                batch.set_aside(row, INVALID_UTF8, _readable(values[0] or ""))
            if batch.full:
                yield batch.take()
        yield batch.take()


def _places(file: InputFile, header: Record, columns: Sequence[str]) -> list[int]:
    """Where the asked columns stand."""
    if header.bad:
        reason = "an unclosed quote" if header.bad == BAD_QUOTES else header.bad
        raise InputError(f"'{file.place}' line 1 is not a header of columns: {reason}")
    names = [name or "" for name in header.fields]
    if any(map(has_lone_surrogate, names)):
        raise InputError(f"'{file.place}' line 1 is not valid UTF-8; save the file as UTF-8")
    require_columns(file, columns, names)
    return [names.index(column) for column in columns]


def _readable(text: str) -> str:
    """An excerpt in which bytes that are not UTF-8 are replaced by a sign."""
    return text[:EXCERPT_CHARS].encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _read_jsonl(piece: Piece, columns: Sequence[str]) -> Iterator[RowBatch]:
    """A row is a line; blank ones have a number and are left out."""
    batch, checked, first_bad = _Batch(columns), piece.start > 0, ""
    for row, line in _numbered_lines(piece):
        if not line.strip():
            continue
        value, reason, detail = _parse_json(line)
        if not reason:
            if not checked:
                require_columns(piece.file, columns, list(value))
                checked = True
            text = value.get(columns[0])
            reason = "" if text is None or isinstance(text, str) else WRONG_TYPE
        if reason:
            first_bad = first_bad or f"line {row + 1} is not JSON: {detail}"
            batch.set_aside(row, reason, line[: 4 * EXCERPT_CHARS].decode("utf-8", "replace"))
        else:
            batch.add(row, [_as_text(value.get(column)) for column in columns])
        if batch.full:
            yield batch.take()
    if not checked and first_bad:
        raise InputError(f"'{piece.file.place}' holds no JSON object; {first_bad}")
    yield batch.take()


def _parse_json(line: bytes) -> tuple[dict[str, object], str, str]:
    """The object of a line, or the reason why there is none and a detail for people."""
    if type(line) is LongLine:
        return {}, TOO_LONG, "the line is too long"
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return {}, INVALID_UTF8, f"not valid UTF-8, {error.reason}"
    except (ValueError, RecursionError) as error:
        return {}, NOT_JSON, error.msg if isinstance(error, json.JSONDecodeError) else str(error)
    return (value, "", "") if isinstance(value, dict) else ({}, NOT_JSON, "not an object")


def _as_text(value: object) -> str | None:
    """JSON strings without lone surrogates, numbers (ids) as text, anything else as null."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    text = str(value)
    return text if text.isascii() else text.encode("utf-8", "ignore").decode("utf-8")


def _read_text(piece: Piece, columns: Sequence[str]) -> Iterator[RowBatch]:
    if len(columns) > 1:
        raise InputError(
            f"'{piece.file.place}' is plain text; it has no columns besides the text "
            f"(asked: {', '.join(columns)})"
        )
    batch = _Batch(columns)
    for row, line in _numbered_lines(piece):
        try:
            text = line.removesuffix(b"\r").decode("utf-8", "replace" if type(line) is LongLine else "strict")
        except UnicodeDecodeError:
            batch.set_aside(row, INVALID_UTF8, line[: 4 * EXCERPT_CHARS].decode("utf-8", "replace"))
        else:
            if type(line) is LongLine:
                batch.set_aside(row, TOO_LONG, text)
            else:
                batch.add(row, [text])
        if batch.full:
            yield batch.take()
    yield batch.take()


def _numbered_lines(piece: Piece) -> Iterator[tuple[int, bytes]]:
    row = piece.first_row
    with _open(piece) as stream:
        for lines in read_lines(stream, start=piece.start, end=piece.end):
            yield from enumerate(lines, row)
            row += len(lines)
