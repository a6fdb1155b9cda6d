"""Parallel text files as rows: line n of every file together, as in the training folders of USEB.

Owns finding the files of a folder, plain or compressed, and reading them side by side in bounded memory.
Knows nothing of what a line means.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from pipelines.errors import InputError
from pipelines.inputs import InputFile
from pipelines.lines import LongLine, read_lines
from pipelines.rows import EXCERPT_CHARS, INVALID_UTF8, TOO_LONG, BadRow, RowBatch, opened
from pipelines.storage import Location

_BATCH_ROWS = 8_192
_ENDINGS = ("", ".gz", ".bz2", ".zst")


def find_parallel(folder: str, names: Sequence[str]) -> list[InputFile]:
    """The named files of a folder, in that order; each may be compressed.

    Raises:
        InputError: the folder or one of the files is not there.
    """
    place = Location.parse(folder)
    if not place.is_dir():
        raise InputError(f"there is no folder '{folder}' (train.labels.input with layout useb)")
    by_name = {info.base_name: info for info in place.files()}
    found = []
    for name in names:
        info = next((by_name[name + ending] for ending in _ENDINGS if name + ending in by_name), None)
        if info is None:
            there = ", ".join(sorted(by_name)) or "nothing"
            raise InputError(f"'{folder}' has no file '{name}'; it has: {there}")
        file = Location(place.filesystem, str(info.path))
        found.append(InputFile(file, info.base_name, int(info.size or 0), int(info.mtime_ns or 0)))
    return found


def read_parallel(files: Sequence[InputFile], columns: Sequence[str]) -> Iterator[RowBatch]:
    """Yields line n of every file as row n (from 0), under the column names given.

    Raises:
        InputError: a file cannot be read, or one ends before another.
    """
    streams = [_lines(file) for file in files]
    rows = enumerate(itertools.zip_longest(*streams))
    while block := list(itertools.islice(rows, _BATCH_ROWS)):
        good, values, bad = [], [], []
        for row, lines in block:
            _refuse_short(files, lines, row)
            texts, reason, excerpt = _decoded(lines)
            if reason:
                bad.append(BadRow(row, reason, excerpt))
            else:
                good.append(row)
                values.append(texts)
        found = {name: [texts[i] for texts in values] for i, name in enumerate(columns)}
        yield RowBatch(good, found, bad)


def _lines(file: InputFile) -> Iterator[bytes]:
    with opened(file) as stream:
        for lines in read_lines(stream):
            yield from lines


def _refuse_short(files: Sequence[InputFile], lines: Sequence[bytes | None], row: int) -> None:
    ended = [file for file, line in zip(files, lines, strict=True) if line is None]
    if ended:
        other = next(file for file, line in zip(files, lines, strict=True) if line is not None)
        raise InputError(
            f"'{ended[0].place}' ends after {row} lines and '{other.place}' goes on; parallel files need "
            "one line per row each"
        )


def _decoded(lines: Sequence[bytes]) -> tuple[list[str], str, str]:
    """The lines as texts; or no texts, a reason and an excerpt."""
    texts = []
    for line in lines:
        excerpt = line[: 4 * EXCERPT_CHARS].decode("utf-8", "replace")[:EXCERPT_CHARS]
        if type(line) is LongLine:
            return [], TOO_LONG, excerpt
        try:
            texts.append(line.removesuffix(b"\r").decode("utf-8"))
        except UnicodeDecodeError:
            return [], INVALID_UTF8, excerpt
    return texts, "", ""
