"""Progress that a person can follow: a live bar in a terminal, one line every few seconds in a job log.

Owns the look of progress only; what is counted is the caller's.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_SECONDS_BETWEEN_LINES = 5.0
_SECONDS_BETWEEN_EQUAL_LINES = 30.0


class Reporter:
    """Prints stage headings, notes and progress to one console (standard error by default)."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console(stderr=True, highlight=False, soft_wrap=True)

    @staticmethod
    def silent() -> Reporter:
        """One that says nothing, for work that somebody else reports on."""
        return Reporter(Console(quiet=True))

    def note(self, message: str) -> None:
        """One line for the reader."""
        self.console.print(message, markup=False)

    @contextmanager
    def track(self, label: str, *, total: int, unit: str) -> Iterator[Tracker]:
        """Counts up to `total` units while the body runs; shows rate and time left."""
        if self.console.is_terminal:
            with _bar(self.console) as bar:
                yield _BarTracker(bar, label, total=total, unit=unit)
        else:
            tracker = _LineTracker(self, label, total=total, unit=unit)
            yield tracker
            tracker.line(final=True)


class Tracker(ABC):
    """Counts finished units; `note` is shown beside the count (for instance the loss)."""

    def __init__(self, *, total: int, unit: str):
        self.total = total
        self.unit = unit
        self.done = 0
        self.started_s = time.monotonic()
        self.initial = 0

    def resume_at(self, done: int) -> None:
        """Units that an earlier, interrupted run had finished; they do not count for the rate."""
        self.initial = self.done = done

    def restart_at(self, done: int) -> None:
        """Begins to count time and rate now, from this many units (work that had a long start)."""
        self.started_s = time.monotonic()
        self.resume_at(done)

    def set(self, done: int, *, note: str = "") -> None:
        """Sets the number of finished units."""
        self.done = done
        self.show(note)

    def advance(self, count: int = 1, *, note: str = "") -> None:
        """Adds finished units."""
        self.set(self.done + count, note=note)

    def rate(self) -> float:
        """Units per second since the start; 0 where a restart has set the count back."""
        return max(0, self.done - self.initial) / max(time.monotonic() - self.started_s, 1e-9)

    @abstractmethod
    def show(self, note: str) -> None:
        """Draws the present state."""


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f} {task.fields[unit]}"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
    )


class _BarTracker(Tracker):
    def __init__(self, bar: Progress, label: str, *, total: int, unit: str):
        super().__init__(total=total, unit=unit)
        self._bar = bar
        self._task = bar.add_task(label, total=total, unit=unit, rate="", note="")

    def show(self, note: str) -> None:
        rate = f"{self.rate():,.1f} {self.unit}/s"
        self._bar.update(self._task, completed=self.done, rate=rate, note=note)


class _LineTracker(Tracker):
    def __init__(self, reporter: Reporter, label: str, *, total: int, unit: str):
        super().__init__(total=total, unit=unit)
        self._reporter = reporter
        self._label = label
        self._note = ""
        self._shown_at_s = time.monotonic()
        self._shown_done = 0

    def show(self, note: str) -> None:
        self._note = note or self._note
        moved = self.done != self._shown_done
        pause_s = _SECONDS_BETWEEN_LINES if moved else _SECONDS_BETWEEN_EQUAL_LINES
        if time.monotonic() - self._shown_at_s >= pause_s:
            self.line()

    def line(self, *, final: bool = False) -> None:
        self._shown_at_s = time.monotonic()
        self._shown_done = self.done
        rate = self.rate()
        elapsed = time.monotonic() - self.started_s
        left = max(0, self.total - self.done)
        time_text = f"in {elapsed:.0f} s" if final else f"{_left(left, rate)} left"
        parts = [
            f"{self.done:,}/{self.total:,} {self.unit}",
            f"{rate:,.1f} {self.unit}/s",
            time_text,
            self._note,
        ]
        self._reporter.note(f"  {self._label}: " + ", ".join(part for part in parts if part))


def _left(units: int, rate: float) -> str:
    if rate <= 0:
        return "unknown time"
    seconds = units / rate
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
