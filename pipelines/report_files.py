"""The files of a report: four formats and the rows they are made from, and their way to MLflow.

Must not know which systems and tasks there are.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from indexing.evaluation.pair_rows import write_pair_rows
from indexing.evaluation.report import ReportInput, render_html, render_latex, render_markdown, report_json
from indexing.evaluation.rows import write_rows
from pipelines.storage import Location
from pipelines.tracking import Tracker

ROWS_FILE = "per_query.parquet"
PAIR_ROWS_FILE = "per_pair.parquet"


def write_report(
    content: ReportInput, folder: Location, *, html_only: ReportInput | None = None
) -> list[str]:
    """Writes `report.html`, `.md`, `.json`, `.tex` and the rows; returns the names of those files.

    html_only: goes into the page instead of `content` where it has more, such as measured speeds that no two
        runs share.
    """
    texts = {
        "report.json": report_json(content),
        "report.md": render_markdown(content),
        "report.tex": render_latex(content),
        "report.html": render_html(html_only or content),
    }
    for name, text in texts.items():
        (folder / name).write_bytes(text.encode())
    names = list(texts)
    if content.rows:
        with (folder / ROWS_FILE).write_atomically() as target:
            write_rows(target.filesystem, target.path, content.rows)
        names.append(ROWS_FILE)
    if content.pair_rows:
        with (folder / PAIR_ROWS_FILE).write_atomically() as target:
            write_pair_rows(target.filesystem, target.path, content.pair_rows)
        names.append(PAIR_ROWS_FILE)
    return names


def log_report(
    tracker: Tracker,
    run_id: str,
    folder: Location,
    names: list[str],
    scores: dict[str, dict[str, dict[str, float]]],
    *,
    step: int,
) -> None:
    """Scores (by task, system, measure, in [0, 1]) and report files go to an MLflow run."""
    values = {
        f"{_metric_part(task)}.{_metric_part(system)}.{measure}": value
        for task, by_system in scores.items()
        for system, by_measure in by_system.items()
        for measure, value in by_measure.items()
    }
    tracker.log_metrics(run_id, [(step, tracker.now_ms(), values)])
    with tempfile.TemporaryDirectory(prefix="tsdae-report-") as local:
        for name in names:
            path = Path(local) / name
            path.write_bytes((folder / name).read_bytes())
            tracker.log_file(run_id, path, folder="report")


def _metric_part(name: str) -> str:
    """A name made legal for MLflow metrics."""
    return "".join(sign if sign.isalnum() or sign in "_-. " else "_" for sign in name)
