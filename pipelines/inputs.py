"""Finding and reading the user's files: Parquet, JSONL, CSV, TSV and plain text, local or remote.

Owns the formats. Every reader yields Arrow batches of the asked columns with the row number of the first
row, and every problem is an InputError that names the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch

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
_COMPRESSIONS = (".gz", ".bz2", ".zst")
_BATCH_ROWS = 8_192
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
        InputError: nothing is there, or nothing of a known format.
    """
    if not text:
        raise InputError("no input was given; set corpus.input to a file, folder, glob or URL")
    root, pattern = _split_glob(text)
    base = Location.parse(root)
    info = base.filesystem.get_file_info(base.path)
    if info.type == pafs.FileType.NotFound:
        raise InputError(f"there is no file or folder '{text}'")
    found = [info] if info.is_file else base.files(recursive=True)
    files = [_input_file(base, one) for one in found if _wanted(base, one, pattern)]
    if not files:
        known = ", ".join(sorted(_FORMATS))
        raise InputError(
            f"'{text}' holds no data files (looked for {known}, also compressed as .gz, .bz2 or .zst)"
        )
    return files


def _split_glob(text: str) -> tuple[str, str | None]:
    """The folder before the first part with a wildcard, and the pattern from there on."""
    parts = text.split("/")
    for i, part in enumerate(parts):
        if any(sign in part for sign in "*?["):
            return "/".join(parts[:i]) or ("/" if text.startswith("/") else "."), "/".join(parts[i:])
    return text, None


def _relative(base: Location, info: pafs.FileInfo) -> str:
    return str(info.path)[len(base.path) :].lstrip("/") or base.name


def _wanted(base: Location, info: pafs.FileInfo, pattern: str | None) -> bool:
    relative = _relative(base, info)
    hidden = any(part.startswith(("_", ".")) for part in relative.split("/"))
    if hidden or format_of(relative) is None:
        return False
    return pattern is None or fnmatch(relative, pattern)


def _input_file(base: Location, info: pafs.FileInfo) -> InputFile:
    place = Location(base.filesystem, str(info.path))
    return InputFile(place, _relative(base, info), int(info.size or 0), int(info.mtime_ns or 0))


def check_files(
    files: Sequence[InputFile], columns: Sequence[str], *, text_column: str
) -> dict[str, list[int]]:
    """Opens every Parquet footer and checks the columns; returns row-group sizes in bytes by file path.

    Raises:
        InputError: a file is not Parquet, lacks a column, or its text column holds no strings.
    """
    parquet = [file for file in files if file.format == "parquet"]
    with ThreadPoolExecutor(_FOOTER_THREADS) as pool:
        sizes = list(pool.map(lambda file: _check_footer(file, columns, text_column), parquet))
    return {file.place.path: size for file, size in zip(parquet, sizes, strict=True)}


def _check_footer(file: InputFile, columns: Sequence[str], text_column: str) -> list[int]:
    try:
        with file.place.filesystem.open_input_file(file.place.path) as stream:
            reader = pq.ParquetFile(stream)
            schema, metadata = reader.schema_arrow, reader.metadata
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"'{file.place}' ({file.size_bytes} bytes) is not a readable Parquet file: {error}"
        ) from error
    _require_columns(file, columns, schema.names)
    kind = schema.field(text_column).type
    value_kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (
        pa.types.is_string(value_kind) or pa.types.is_large_string(value_kind) or pa.types.is_null(value_kind)
    ):
        raise InputError(f"column '{text_column}' of '{file.place}' holds {kind}, expected text (string)")
    return [metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)]


def _require_columns(file: InputFile, columns: Sequence[str], present: Sequence[str]) -> None:
    for column in columns:
        if column not in present:
            found = ", ".join(present)
            hint = nearest(column, present)
            raise InputError(f"'{file.place}' has no column '{column}'; it has: {found}.{hint}")


def read_piece(piece: Piece, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    """Yields (row number of the first row, table of the asked columns) in file order.

    Plain text has one column named like the first asked column, whatever that is called.

    Raises:
        InputError: the file cannot be read, or lacks a column.
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
    except (pa.ArrowException, OSError, UnicodeDecodeError, EOFError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"cannot read '{file.place}' ({file.size_bytes} bytes) as {file.format}: {reason}"
        ) from error


def _read_parquet(piece: Piece, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    file = piece.file
    with file.place.filesystem.open_input_file(file.place.path) as stream:
        reader = pq.ParquetFile(stream)
        metadata = reader.metadata
        groups = range(metadata.num_row_groups) if piece.row_groups is None else piece.row_groups
        first_rows = [0]
        for i in range(metadata.num_row_groups):
            first_rows.append(first_rows[-1] + metadata.row_group(i).num_rows)
        for group in groups:
            row = first_rows[group]
            for batch in reader.iter_batches(_BATCH_ROWS, row_groups=[group], columns=list(columns)):
                yield row, pa.Table.from_batches([batch])
                row += batch.num_rows


def _read_csv(file: InputFile, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    delimiter = "\t" if file.format == "tsv" else ","
    with file.place.filesystem.open_input_stream(file.place.path) as stream:
        if file.size_bytes == 0:
            raise InputError(f"'{file.place}' is empty (0 bytes)")
        reader = pacsv.open_csv(
            stream,
            parse_options=pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=pacsv.ConvertOptions(
                column_types=dict.fromkeys(columns, pa.string()),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        _require_columns(file, columns, reader.schema.names)
        row = 0
        for batch in reader:
            yield row, pa.Table.from_batches([batch]).select(list(columns))
            row += batch.num_rows


def _read_jsonl(file: InputFile, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    row, values = 0, list[list[str | None]]()
    for number, line in _lines(file):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"'{file.place}' line {number + 1} is not JSON: {error.msg}") from error
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
    """JSON strings as they are, numbers (ids) as text, anything else as null."""
    if isinstance(value, bool) or value is None:
        return None
    return value if isinstance(value, str) else str(value) if isinstance(value, int) else None


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
    with file.place.filesystem.open_input_stream(file.place.path) as stream:
        rest, number = b"", 0
        while piece := stream.read(1 << 20):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield number, _decode(line, number)
                number += 1
        if rest:
            yield number, _decode(rest, number)


def _decode(line: bytes, number: int) -> str:
    if number == 0:
        line = line.removeprefix(b"\xef\xbb\xbf")
    return line.removesuffix(b"\r").decode("utf-8")


def _table(values: list[list[str | None]], columns: Sequence[str]) -> pa.Table:
    arrays = [pa.array([row[i] for row in values], pa.string()) for i in range(len(columns))]
    return pa.table(arrays, names=list(columns))
