"""Rows of one task that wait to be written as numbered parts, so that a task's memory is bounded.

The rows of the file under way can be taken back, also those that are written already.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

PART_BYTES = 64 << 20


class PartBuffer:
    """Collects tables; writes what is there as a part when it is large enough.

    write: gets a part's number (from 0) and rows. delete: removes the part with a number.
    """

    def __init__(self, write: Callable[[int, pa.Table], None], delete: Callable[[int], None]):
        self._write, self._delete = write, delete
        self._settled: list[pa.Table] = []
        self._current: list[pa.Table] = []
        self._size = 0
        self._current_parts = 0
        self.num_parts = 0

    def add(self, rows: pa.Table) -> None:
        """Takes rows of the file under way."""
        if rows.num_rows == 0:
            return
        self._current.append(rows)
        self._size += rows.nbytes
        if self._size >= PART_BYTES:
            self._flush()

    def commit(self) -> None:
        """The file under way is good."""
        self._settled += self._current
        self._current, self._current_parts = [], 0

    def rollback(self) -> None:
        """Takes back every row since the last commit."""
        self._size -= sum(rows.nbytes for rows in self._current)
        self._current = []
        for _ in range(self._current_parts):
            self.num_parts -= 1
            self._delete(self.num_parts)
        self._current_parts = 0

    def close(self) -> int:
        """Writes what is left; returns the number of parts."""
        self.commit()
        self._flush()
        return self.num_parts

    def _flush(self) -> None:
        """Rows of finished files in a part of their own: it stays if the file under way turns out bad."""
        for tables, current in ((self._settled, False), (self._current, True)):
            if tables:
                self._write(self.num_parts, pa.concat_tables(tables))
                self.num_parts += 1
                self._current_parts += current
        self._settled, self._current, self._size = [], [], 0
