"""A study while it runs: a table that moves in a terminal, plain lines in a job's log.

Owns the look of it, and the board on which cells write how far they are. Knows nothing of what cells do.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayError
from rich.live import Live
from rich.table import Table

from pipelines.progress import Reporter
from pipelines.study.grid import Cell

_SECONDS_BETWEEN_LINES = 20.0
_READ_TIMEOUT_S = 10.0


class _Board:
    def __init__(self) -> None:
        self.notes: dict[str, str] = {}

    def write(self, key: str, note: str) -> None:
        self.notes[key] = note

    def read(self) -> dict[str, str]:
        return self.notes


def new_cell_board() -> Any:
    """An actor that keeps one note for each cell; it uses no CPU."""
    return ray.remote(num_cpus=0, max_restarts=-1)(_Board).remote()


def read_notes(board: Any) -> dict[str, str]:
    """The notes; nothing while the board's node is gone: a lost display must not fail what it displays."""
    try:
        notes: dict[str, str] = ray.get(board.read.remote(), timeout=_READ_TIMEOUT_S)
    except RayError:
        return {}
    return notes


class StudyView:
    """What a person sees of the cells."""

    def __init__(self, reporter: Reporter, cells: Sequence[tuple[Cell, str]], *, done: Sequence[str]):
        self._reporter = reporter
        self._cells = list(cells)
        self._done, self._failed = set(done), set[str]()
        self._scores: dict[str, str] = {}
        self._notes: Mapping[str, str] = {}
        self._shown_at_s = self._started_s = time.monotonic()
        self._num_before = len(self._done)
        self._live: Live | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """The table moves while the body runs (in a terminal)."""
        if not self._reporter.console.is_terminal:
            yield
            return
        with Live(self._table(), console=self._reporter.console, refresh_per_second=2) as live:
            self._live = live
            try:
                yield
            finally:
                self._draw()
                self._live = None

    def running(self, notes: Mapping[str, str]) -> None:
        """Takes what running cells say of themselves."""
        self._notes = notes
        if self._live is not None:
            self._draw()
        elif time.monotonic() - self._shown_at_s >= _SECONDS_BETWEEN_LINES:
            self._line("; ".join(f"{self._title(key)}: {note}" for key, note in self._active().items()))

    def finished(self, key: str, scores: str) -> None:
        """A cell is done; `scores` is what it got, in words."""
        self._done.add(key)
        self._scores[key] = scores
        self._tell(f"{self._title(key)}: {scores}")

    def failed(self, key: str, reason: str) -> None:
        """A cell cannot be run."""
        self._failed.add(key)
        self._tell(f"{self._title(key)}: FAILED: {reason}")

    def _tell(self, text: str) -> None:
        if self._live is not None:
            self._draw()
        else:
            self._line(text)

    def _draw(self) -> None:
        if self._live is not None:
            self._live.update(self._table())

    def _line(self, text: str) -> None:
        self._shown_at_s = time.monotonic()
        self._reporter.note(f"  {self._count()}: {text}" if text else f"  {self._count()}")

    def _count(self) -> str:
        total = len({key for _, key in self._cells})
        text = f"{len(self._done)}/{total} cells"
        fresh = len(self._done) - self._num_before
        if fresh and len(self._done) < total:
            left_s = (time.monotonic() - self._started_s) / fresh * (total - len(self._done))
            text += f", {left_s / 60:.0f} min left"
        return text + (f", {len(self._failed)} failed" if self._failed else "")

    def _active(self) -> dict[str, str]:
        over = self._done | self._failed
        return {key: note for key, note in self._notes.items() if key not in over}

    def _title(self, key: str) -> str:
        return next(cell.title for cell, other in self._cells if other == key)

    def _table(self) -> Table:
        """A row for each setting, a column for each domain: what is done, what runs, the last scores."""
        domains = list(dict.fromkeys(cell.domain for cell, _ in self._cells))
        table = Table(title=self._count(), title_justify="left")
        table.add_column("setting")
        for domain in domains:
            table.add_column(domain)
        active = self._active()
        for setting in dict.fromkeys(cell.setting.label for cell, _ in self._cells):
            row = []
            for domain in domains:
                keys = [
                    key for cell, key in self._cells if (cell.setting.label, cell.domain) == (setting, domain)
                ]
                row.append(self._state(keys, active))
            table.add_row(setting, *row)
        return table

    def _state(self, keys: Sequence[str], active: Mapping[str, str]) -> str:
        done = [key for key in keys if key in self._done]
        text = f"{len(done)}/{len(keys)}"
        if running := [active[key] for key in keys if key in active]:
            text += f"  {running[0]}"
        elif scores := [self._scores[key] for key in done if key in self._scores]:
            text += f"  {scores[-1]}"
        return text + ("  [red]failed[/red]" if any(key in self._failed for key in keys) else "")
