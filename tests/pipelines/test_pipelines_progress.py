"""Progress: a line tells what, how much, how fast and how long yet; it never fails what it shows."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_builders import quiet_reporter
from rich.console import Console

from pipelines import progress
from pipelines.progress import Reporter


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless it is told otherwise."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_line_shows_label_count_rate_time_left_and_note(clock):
    reporter, written = quiet_reporter()
    with reporter.track("corpus read", total=1_000, unit="rows") as tracker:
        clock[0] += 10
        tracker.set(400, note="loss 1.5")
        assert written.getvalue() == "  corpus read: 400/1,000 rows, 40.0 rows/s, 15 s left, loss 1.5\n"
    assert (
        written.getvalue().splitlines()[-1] == "  corpus read: 400/1,000 rows, 40.0 rows/s, in 10 s, loss 1.5"
    )


def test_lines_come_every_few_seconds_and_once_at_the_end(clock):
    reporter, written = quiet_reporter()
    with reporter.track("x", total=100, unit="rows") as tracker:
        for _ in range(100):
            clock[0] += 0.2
            tracker.advance()
    lines = written.getvalue().splitlines()
    assert 4 <= len(lines) <= 5
    assert lines[-1].startswith("  x: 100/100 rows")


def test_work_of_an_earlier_run_counts_but_not_for_the_rate(clock):
    reporter, written = quiet_reporter()
    with reporter.track("x", total=100, unit="rows") as tracker:
        tracker.resume_at(50)
        clock[0] += 10
        tracker.advance(10)
        assert "60/100 rows, 1.0 rows/s, 40 s left" in written.getvalue()
        tracker.restart_at(60)
        clock[0] += 10
        tracker.advance(20)
        assert "80/100 rows, 2.0 rows/s, 10 s left" in written.getvalue()


def test_long_times_are_told_in_minutes(clock):
    reporter, written = quiet_reporter()
    with reporter.track("x", total=1_000, unit="rows") as tracker:
        clock[0] += 10
        tracker.set(10)
    assert "16 min left" in written.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_nothing_to_do_and_nothing_done_are_no_errors(clock, terminal):
    written = io.StringIO()
    reporter = Reporter(Console(file=written, force_terminal=terminal, width=120))
    for total in (0, 5):
        with reporter.track("x", total=total, unit="rows") as tracker:
            tracker.resume_at(0)
            tracker.set(0)
            clock[0] += 100
            tracker.advance(0, note="waiting")
    assert "x" in written.getvalue()
    if not terminal:
        assert "0/5 rows, 0.0 rows/s, unknown time left" in written.getvalue()


@settings(deadline=None)
@given(
    total=st.integers(0, 10**12),
    steps=st.lists(st.tuples(st.integers(0, 10**12), st.floats(0, 1e6)), max_size=8),
)
def test_no_count_makes_a_line_fail(total, steps):
    reporter, written = quiet_reporter()
    now = [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress.time, "monotonic", lambda: now[0])
        with reporter.track("x", total=total, unit="rows") as tracker:
            for done, seconds in steps:
                now[0] += seconds
                tracker.set(done)
    assert written.getvalue().endswith("s\n")
    assert "-" not in written.getvalue()


def test_a_terminal_gets_a_bar_with_rate_and_note(clock):
    written = io.StringIO()
    reporter = Reporter(Console(file=written, force_terminal=True, width=150))
    with reporter.track("train", total=10, unit="steps") as tracker:
        clock[0] += 2
        tracker.set(4, note="loss 2.5")
    text = written.getvalue()
    assert "train" in text
    assert "4/10 steps" in text
    assert "2.0 steps/s" in text
    assert "loss 2.5" in text


def test_an_error_comes_through_without_a_line_that_says_done(clock):
    reporter, written = quiet_reporter()
    with pytest.raises(KeyError), reporter.track("x", total=5, unit="rows"):
        raise KeyError
    assert written.getvalue() == ""


def test_a_note_is_one_line_and_brackets_in_it_are_no_markup():
    reporter, written = quiet_reporter()
    reporter.note("reading [bold]file[/bold] [1/2] " + "long " * 100)
    assert written.getvalue() == "reading [bold]file[/bold] [1/2] " + "long " * 100 + "\n"
