"""What a person sees of a running study: a table in a terminal, lines in a job's log."""

import io

import pytest
from pipeline_builders import quiet_reporter
from rich.console import Console
from study_builders import write_study, write_world

from pipelines.progress import Reporter
from pipelines.study.grid import cells_of
from pipelines.study.live import StudyView
from pipelines.study.study_file import load_study


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    folder = write_world(tmp_path_factory.mktemp("view"))
    found = cells_of(load_study(write_study(folder)))
    return [(cell, f"key-{i}") for i, cell in enumerate(found)]


def test_a_log_has_a_line_for_each_cell_with_how_many_are_left(cells):
    reporter, written = quiet_reporter()
    view = StudyView(reporter, cells, done=["key-0"])
    with view.shown():
        view.running({"key-1": "train 2/4"})
        view.finished("key-1", "pairs 51.0")
        view.failed("key-2", "no disk")
    lines = written.getvalue().splitlines()
    assert lines[0].startswith("  2/6 cells, ")
    assert lines[0].endswith("min left: tsdae, pairs, seed 1: pairs 51.0")
    assert lines[1].endswith("1 failed: tsdae, rerank, seed 0: FAILED: no disk")


def test_a_terminal_shows_a_table_of_settings_and_domains(cells):
    screen = io.StringIO()
    view = StudyView(Reporter(Console(file=screen, force_terminal=True, width=100)), cells, done=["key-0"])
    with view.shown():
        view.running({"key-1": "train 2/4", "key-0": "an old note"})
        during = screen.getvalue()
        view.finished("key-1", "pairs 51.0")
        view.failed("key-2", "no disk")
    after = screen.getvalue()[len(during) :]
    assert "pairs 51.0" in after
    assert "failed" in after
    table = view._table()
    assert [column.header for column in table.columns] == ["setting", "pairs", "rerank"]
    assert list(table.columns[1].cells) == ["2/2  pairs 51.0", "0/1"]
    assert list(table.columns[2].cells) == ["0/2  [red]failed[/red]", "0/1"]
    assert "an old note" not in screen.getvalue()
