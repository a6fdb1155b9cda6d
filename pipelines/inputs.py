"""Finding and reading the user's files: Parquet, JSONL, CSV, TSV and plain text, local or remote.

Owns the formats. Every reader yields Arrow tables of the asked columns, all of them strings, with the row
number of the first row (rows count from 0, lines from 1), and every problem is an InputError that names the
file.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from pipelines.errors import InputError, nearest
from pipelines.storage import Location

_FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
}
_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_BATCH_ROWS = 8_192
# A row longer than this cannot be read; Arrow parses a CSV file block by block.
_CSV_BLOCK_BYTES = 64 << 20
_FOOTER_THREADS = 16


@dataclass(frozen=True)
class InputFile:
    """One file of the input, with what tells a changed file from an unchanged one."""

    place: Location
    relative_name: str
    size_bytes: int
    modified_ns: int

    @property
    def format(self) -> str:
        """parquet, jsonl, csv, tsv or text."""
        found = format_of(self.relative_name)
        assert found is not None
        return found


@dataclass(frozen=True)
class Piece:
    """A part of a file that one task reads; row groups only for Parquet (None = the whole file)."""

    file: InputFile
    row_groups: tuple[int, ...] | None = None


def format_of(name: str) -> str | None:
    """The format that a file name's ending tells, a compression ending aside; None when unknown."""
    lowered = name.lower()
    for ending in _COMPRESSIONS:
        lowered = lowered.removesuffix(ending)
    for ending, found in _FORMATS.items():
        if lowered.endswith(ending):
            return found
    return None


def find_files(text: str) -> list[InputFile]:
    """The input files behind a file, folder, glob or URL, sorted by name.

    Raises:
        InputError: nothing is there, nothing of a known format, or nothing that may be read.
    """
    if not text:
        raise InputError("no input was given; set corpus.input to a file, folder, glob or URL")
    root, pattern = _split_glob(text)
    base = Location.parse(root)
    try:
        info = base.filesystem.get_file_info(base.path)
        found = [info] if info.is_file else base.files(recursive=True)
    except OSError as error:
        raise InputError(f"cannot list '{text}': {error}") from error
    if info.type == pafs.FileType.NotFound:
        raise InputError(f"there is no file or folder '{text}'")
    files = [_input_file(base, one) for one in found if _wanted(base, one, pattern)]
    if not files:
        known = ", ".join(sorted(_FORMATS))
        raise InputError(
            f"'{text}' holds no data files (looked for {known}, also compressed as .gz, .bz2 or .zst)"
        )
    return files


def _split_glob(text: str) -> tuple[str, str | None]:
    """The folder before the first part with a wildcard, and the pattern from there on.

    In a URL, what follows `?` is no pattern but its query (region, endpoint); it stays with the folder.
    """
    path, mark, query = text.partition("?") if "://" in text else (text, "", "")
    parts = path.split("/")
    for i, part in enumerate(parts):
        if any(sign in part for sign in "*?["):
            root = "/".join(parts[:i]) or ("/" if text.startswith("/") else ".")
            return root + mark + query, "/".join(parts[i:])
    return text, None


def _relative(base: Location, info: pafs.FileInfo) -> str:
    return str(info.path)[len(base.path) :].lstrip("/") or base.name


def _wanted(base: Location, info: pafs.FileInfo, pattern: str | None) -> bool:
    """Whether a file is data; below a folder, names that begin with _ or . are other programs' own."""
    relative = _relative(base, info)
    if format_of(relative) is None:
        return False
    parts = relative.split("/")
    hidden = any(part.startswith(("_", ".")) for part in parts)
    if info.path == base.path:
        return True
    return not hidden and (pattern is None or _matches(parts, pattern.split("/")))


def _matches(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    """Whether a glob means a path or a folder above it; `*` stays within a part, `**` spans any number."""
    if not patterns:
        return True
    if patterns[0] == "**":
        return any(_matches(parts[i:], patterns[1:]) for i in range(len(parts)))
    return bool(parts) and fnmatchcase(parts[0], patterns[0]) and _matches(parts[1:], patterns[1:])


def _input_file(base: Location, info: pafs.FileInfo) -> InputFile:
    place = Location(base.filesystem, str(info.path))
    return InputFile(place, _relative(base, info), int(info.size or 0), int(info.mtime_ns or 0))


def check_files(
    files: Sequence[InputFile], columns: Sequence[str], *, skip_bad: bool = False
) -> dict[str, list[int]]:
    """Opens every Parquet footer and checks the columns; returns row-group sizes in bytes by file path.

    columns: the text column first.
    skip_bad: leave bad files out of the answer, for the task that reads them to set aside.

    Raises:
        InputError: a file is not Parquet, lacks a column, or its text column holds no strings.
    """

    def sizes_of(file: InputFile) -> list[int] | None:
        try:
            return _check_footer(file, columns)
        except InputError:
            if skip_bad:
                return None
            raise

    parquet = [file for file in files if file.format == "parquet"]
    with ThreadPoolExecutor(_FOOTER_THREADS) as pool:
        found = zip(parquet, pool.map(sizes_of, parquet), strict=True)
        return {file.place.path: sizes for file, sizes in found if sizes is not None}


def _check_footer(file: InputFile, columns: Sequence[str]) -> list[int]:
    try:
        with file.place.filesystem.open_input_file(file.place.path) as stream:
            reader = pq.ParquetFile(stream)
            schema, metadata = reader.schema_arrow, reader.metadata
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"'{file.place}' ({file.size_bytes} bytes) is not a readable Parquet file: {error}"
        ) from error
    _check_schema(file, schema, columns)
    return [metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)]


def _check_schema(file: InputFile, schema: pa.Schema, columns: Sequence[str]) -> None:
    """The text column must hold strings; ids and titles whatever has a written form, such as numbers."""
    _require_columns(file, columns, schema.names)
    for column in columns:
        kind = schema.field(column).type
        value_kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if column == columns[0]:
            tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
            if not any(test(value_kind) for test in tests):
                raise InputError(f"column '{column}' of '{file.place}' holds {kind}, expected text (string)")
        elif pa.types.is_nested(value_kind) or "binary" in str(value_kind):
            raise InputError(f"column '{column}' of '{file.place}' holds {kind}, expected text or numbers")


def _require_columns(file: InputFile, columns: Sequence[str], present: Sequence[str]) -> None:
    for column in columns:
        if present.count(column) > 1:
            raise InputError(f"'{file.place}' has {present.count(column)} columns '{column}'; rename one")
        if column not in present:
            found = ", ".join(present)
            hint = nearest(column, present)
            raise InputError(f"'{file.place}' has no column '{column}'; it has: {found}.{hint}")


def read_piece(piece: Piece, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    """Yields (row number of the first row, table of the asked columns as strings) in file order.

    columns: the text column first. Plain text has that column only, whatever it is called.

    Raises:
        InputError: the file cannot be read, lacks a column, or is not UTF-8.
    """
    file = piece.file
    try:
        if file.format == "parquet":
            yield from _read_parquet(piece, columns)
        elif file.format in ("csv", "tsv"):
            yield from _read_csv(file, columns)
        elif file.format == "jsonl":
            yield from _read_jsonl(file, columns)
        else:
            yield from _read_text(file, columns)
    except (pa.ArrowException, OSError, EOFError, csv.Error) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"cannot read '{file.place}' ({file.size_bytes} bytes) as {file.format}: {reason}"
        ) from error


def _read_parquet(piece: Piece, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    file = piece.file
    with file.place.filesystem.open_input_file(file.place.path) as stream:
        reader = pq.ParquetFile(stream)
        _check_schema(file, reader.schema_arrow, columns)
        metadata = reader.metadata
        groups = range(metadata.num_row_groups) if piece.row_groups is None else piece.row_groups
        first_rows = [0]
        for i in range(metadata.num_row_groups):
            first_rows.append(first_rows[-1] + metadata.row_group(i).num_rows)
        for group in groups:
            row = first_rows[group]
            for batch in reader.iter_batches(_BATCH_ROWS, row_groups=[group], columns=list(columns)):
                yield row, _as_strings(file, batch, columns, row)
                row += batch.num_rows


def _as_strings(file: InputFile, batch: pa.RecordBatch, columns: Sequence[str], first_row: int) -> pa.Table:
    """The columns as strings; Arrow takes bytes from Parquet unseen, so it is here that UTF-8 is checked."""
    arrays = [batch.column(column).cast(pa.string()) for column in columns]
    for column, array in zip(columns, arrays, strict=True):
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            row = first_row + _first_not_utf8(array)
            raise InputError(f"'{file.place}' row {row}: column '{column}' is not valid UTF-8") from error
    return pa.table(arrays, names=list(columns))


def _first_not_utf8(array: pa.StringArray) -> int:
    for i, value in enumerate(array.cast(pa.binary()).to_pylist()):
        try:
            (value or b"").decode("utf-8")
        except UnicodeDecodeError:
            return i
    return 0


def _open(file: InputFile) -> pa.NativeFile:
    """The file's bytes, decompressed as its ending tells."""
    name = file.relative_name.lower()
    codec = next((codec for ending, codec in _COMPRESSIONS.items() if name.endswith(ending)), None)
    return file.place.filesystem.open_input_stream(file.place.path, compression=codec)


def _read_csv(file: InputFile, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    """Only an unquoted empty field is null: `NA` and `null` are words, `""` is an empty text."""
    delimiter = "\t" if file.format == "tsv" else ","
    header = csv.reader((line for _, line in _lines(file)), delimiter=delimiter)
    names = next((cells for cells in header if cells), None)
    if names is None:
        raise InputError(f"'{file.place}' is empty ({file.size_bytes} bytes)")
    _require_columns(file, columns, names)
    with _open(file) as stream:
        reader = pacsv.open_csv(
            stream,
            # One thread: a task has one CPU, and errors then name the row.
            read_options=pacsv.ReadOptions(use_threads=False, block_size=_CSV_BLOCK_BYTES),
            parse_options=pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=pacsv.ConvertOptions(
                # The asked columns alone, so that the type of no other one is guessed.
                include_columns=list(columns),
                column_types=dict.fromkeys(columns, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        row = 0
        for batch in reader:
            yield row, pa.Table.from_batches([batch])
            row += batch.num_rows


def _read_jsonl(file: InputFile, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    row, values = 0, list[list[str | None]]()
    for number, line in _lines(file):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else error
            raise InputError(f"'{file.place}' line {number + 1} is not JSON: {reason}") from error
        if not isinstance(value, dict):
            raise InputError(f"'{file.place}' line {number + 1} is not a JSON object")
        if row == 0 and not values:
            _require_columns(file, columns, list(value))
        values.append([_as_text(value.get(column)) for column in columns])
        if len(values) == _BATCH_ROWS:
            yield row, _table(values, columns)
            row, values = row + len(values), []
    if values:
        yield row, _table(values, columns)


def _as_text(value: object) -> str | None:
    """JSON strings without lone surrogates, numbers (ids) as text, anything else as null."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    text = str(value)
    return text if text.isascii() else text.encode("utf-8", "ignore").decode("utf-8")


def _read_text(file: InputFile, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    if len(columns) > 1:
        raise InputError(
            f"'{file.place}' is plain text; it has no columns besides the text (asked: {', '.join(columns)})"
        )
    row, values = 0, list[list[str | None]]()
    for _, line in _lines(file):
        values.append([line])
        if len(values) == _BATCH_ROWS:
            yield row, _table(values, columns)
            row, values = row + len(values), []
    if values:
        yield row, _table(values, columns)


def _lines(file: InputFile) -> Iterator[tuple[int, str]]:
    """Lines without their ends; a byte-order mark and Windows line ends are taken off."""
    with _open(file) as stream:
        rest, number = b"", 0
        while piece := stream.read(1 << 20):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield number, _decode(file, line, number)
                number += 1
        if rest:
            yield number, _decode(file, rest, number)


def _decode(file: InputFile, line: bytes, number: int) -> str:
    if number == 0:
        line = line.removeprefix(b"\xef\xbb\xbf")
    try:
        return line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"'{file.place}' line {number + 1} is not valid UTF-8: {error.reason}") from error


def _table(values: list[list[str | None]], columns: Sequence[str]) -> pa.Table:
    arrays = [pa.array([row[i] for row in values], pa.string()) for i in range(len(columns))]
    return pa.table(arrays, names=list(columns))
