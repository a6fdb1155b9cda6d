"""The files of a study's report, made from its small files alone."""

from __future__ import annotations

from indexing.evaluation.study_report import StudyReport, study_html, study_json, study_latex, study_markdown
from pipelines.storage import Location
from pipelines.study.results import build_report

_WRITERS = {
    "report.json": study_json,
    "report.md": study_markdown,
    "report.tex": study_latex,
    "report.html": study_html,
}


def write_study_report(folder: Location) -> tuple[StudyReport, list[str]]:
    """Writes the report in four formats; returns it and the names of the files.

    Raises:
        InputError: the folder has no study.
    """
    report = build_report(folder)
    for name, write in _WRITERS.items():
        (folder / name).write_bytes(write(report).encode())
    return report, list(_WRITERS)
