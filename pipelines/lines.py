"""Lines of a file, read with bounded memory: any length of line, any part of the file.

Owns where a line begins and ends. Knows nothing of what a line means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

# Of a longer line only the beginning is kept. It bounds what a reading task holds, and is far beyond any text
# that a sentence encoder can use.
MAX_LINE_BYTES = 64 << 20
_READ_BYTES = 4 << 20
_KEPT_OF_LONG_LINE = 1_024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class LongLine(bytes):
    """The first bytes of a line that is longer than `MAX_LINE_BYTES`."""


def read_lines(stream: pa.NativeFile, *, start: int = 0, end: int | None = None) -> Iterator[Sequence[bytes]]:
    """Yields lists of neighbouring lines without their line feeds: those that begin in [start, end).

    stream: at its beginning for start 0, else at the byte before `start`, so that a line which begins at
    `start` is known from one that goes on there. A byte-order mark at the beginning is taken off.
    """
    origin = max(0, start - 1)
    partial = start > 0
    for first, second, after, found in _all_lines(stream):
        lines = found
        if end is not None and origin + first >= end:
            return
        if end is not None and origin + after > end:
            lines = [found[0], *_begun_before(found[1:], origin + second, end)]
        if partial:
            lines, partial = lines[1:], False
        elif origin + first == 0 and type(lines[0]) is not LongLine:
            lines = [lines[0].removeprefix(_BYTE_ORDER_MARK), *lines[1:]]
        if lines:
            yield lines


def count_lines(stream: pa.NativeFile, *, start: int, end: int) -> int:
    """The number of lines that begin in [start, end), an unfinished last one included.

    stream: as for `read_lines`. end: at most the size of the file.
    """
    count, left = int(start == 0 < end), end - 1 - max(0, start - 1)
    while left > 0 and (piece := stream.read(min(left, _READ_BYTES))):
        count += piece.count(b"\n")
        left -= len(piece)
    return count


def _all_lines(stream: pa.NativeFile) -> Iterator[tuple[int, int, int, list[bytes]]]:
    """Yields (place of the first line, place of the second, place after the last, lines); bytes from here."""
    begun: list[bytes] = []
    kept = length = place = 0  # of the line under way: bytes kept, its length so far, where it begins
    while piece := stream.read(_READ_BYTES):
        first, *others = piece.split(b"\n")
        length += len(first)
        if kept <= MAX_LINE_BYTES:
            begun.append(first)
            kept += len(first)
        if others:
            second = place + length + 1
            rest = others.pop()
            lines = [_joined(begun, length), *others]
            after = second + sum(map(len, others)) + len(others)
            yield place, second, after, lines
            begun, kept, length, place = [rest], len(rest), len(rest), after
    if length:
        yield place, place + length, place + length, [_joined(begun, length)]


def _joined(parts: Sequence[bytes], length: int) -> bytes:
    line = b"".join(parts)
    return LongLine(line[:_KEPT_OF_LONG_LINE]) if length > MAX_LINE_BYTES else line


def _begun_before(lines: Sequence[bytes], place: int, end: int) -> Iterator[bytes]:
    for line in lines:
        if place >= end:
            return
        yield line
        place += len(line) + 1
