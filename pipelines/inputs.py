"""Finding the user's files, local or remote, and cutting them into work. Their content is `rows`' business.

Every problem is an InputError that names the file.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from pipelines.errors import InputError, MissingColumnError, nearest
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
_FOOTER_THREADS = 16
# Work that a task does in seconds to a minute: a kill loses little, and a hundred tasks find their share.
_PIECE_BYTES = 64 << 20
# Opening a file in an object store takes as long as reading a megabyte.
_PIECE_FILES = 500


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

    @property
    def compression(self) -> str | None:
        """gzip, bz2, zstd or None, as the file's ending tells."""
        name = self.relative_name.lower()
        return next((codec for ending, codec in _COMPRESSIONS.items() if name.endswith(ending)), None)

    @property
    def has_lines(self) -> bool:
        """Whether the file can be cut at line ends: a row is a line, and no compression hides where it is."""
        return self.format in ("jsonl", "text") and self.compression is None


@dataclass(frozen=True)
class Piece:
    """A part of a file that one task reads: all, or some row groups, or the lines that begin in [start, end).

    first_row: the number of lines before the piece.
    """

    file: InputFile
    row_groups: tuple[int, ...] | None = None
    start: int = 0
    end: int | None = None
    first_row: int = 0


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
    check_schema(file, schema, columns)
    return [metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)]


def check_schema(file: InputFile, schema: pa.Schema, columns: Sequence[str]) -> None:
    """The text column must hold strings; ids and titles whatever has a written form, such as numbers."""
    require_columns(file, columns, schema.names)
    for column in columns:
        kind = schema.field(column).type
        value_kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if column == columns[0]:
            tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
            if not any(test(value_kind) for test in tests):
                raise InputError(f"column '{column}' of '{file.place}' holds {kind}, expected text (string)")
        elif pa.types.is_nested(value_kind) or "binary" in str(value_kind):
            raise InputError(f"column '{column}' of '{file.place}' holds {kind}, expected text or numbers")


def require_columns(file: InputFile, columns: Sequence[str], present: Sequence[str]) -> None:
    """Refuses a file that lacks a column or has it twice."""
    for column in columns:
        if present.count(column) > 1:
            raise InputError(f"'{file.place}' has {present.count(column)} columns '{column}'; rename one")
        if column not in present:
            found = ", ".join(present)
            hint = nearest(column, present)
            raise MissingColumnError(f"'{file.place}' has no column '{column}'; it has: {found}.{hint}")


def plan_pieces(files: Sequence[InputFile], row_groups: Mapping[str, Sequence[int]]) -> list[list[Piece]]:
    """Work of about 64 MiB each: huge files cut where their format allows it, tiny files taken together.

    Parquet is cut at row groups, plain text and JSON lines at line ends. CSV, whose quoted fields may hold
    line ends, and compressed files cannot be cut: one task reads them as a stream.
    """
    work: list[list[Piece]] = []
    filled = 0
    for file in files:
        for size, piece in _cut(file, row_groups.get(file.place.path)):
            if not work or filled + size > _PIECE_BYTES or len(work[-1]) >= _PIECE_FILES:
                work.append([])
                filled = 0
            work[-1].append(piece)
            filled += size
    return work


def _cut(file: InputFile, row_groups: Sequence[int] | None) -> list[tuple[int, Piece]]:
    """The pieces of a file with their sizes in bytes."""
    if row_groups is not None and sum(row_groups) > _PIECE_BYTES:
        return _cut_at_row_groups(file, row_groups)
    if row_groups is None and file.has_lines and file.size_bytes > _PIECE_BYTES:
        bounds = [*range(0, file.size_bytes, _PIECE_BYTES), file.size_bytes]
        return [(end - start, Piece(file, start=start, end=end)) for start, end in itertools.pairwise(bounds)]
    return [(file.size_bytes if row_groups is None else sum(row_groups), Piece(file))]


def _cut_at_row_groups(file: InputFile, sizes: Sequence[int]) -> list[tuple[int, Piece]]:
    """Neighbouring row groups together, so that a footer is not read for each of thousands of small ones."""
    pieces: list[tuple[int, Piece]] = []
    first = filled = 0
    for group, size in enumerate(sizes):
        if group > first and filled + size > _PIECE_BYTES:
            pieces.append((filled, Piece(file, tuple(range(first, group)))))
            first, filled = group, 0
        filled += size
    return [*pieces, (filled, Piece(file, tuple(range(first, len(sizes)))))]
