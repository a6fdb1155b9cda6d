"""The command `tsdae study`: a grid of trainings and evaluations, and its report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import Overrides

if TYPE_CHECKING:
    from rich.console import Console

    from indexing.evaluation.study_report import StudyReport

_StudyPath = Annotated[
    Path,
    typer.Argument(
        metavar="STUDY", help="YAML file; the shipped ones are in configs/studies/.", show_default=False
    ),
]


def study(
    config: _StudyPath,
    overrides: Overrides = None,
    size: Annotated[
        str, typer.Option("--size", help="Which of the study's sizes, e.g. toy, cpu or paper.")
    ] = "",
    report_only: Annotated[
        bool,
        typer.Option("--report-only", help="Make the report again from what is there; run nothing."),
    ] = False,
    list_cells: Annotated[bool, typer.Option("--list", help="Print the cells and run nothing.")] = False,
) -> None:
    """Run a study: every setting on every domain with every seed, then one report.

    Cells that are there are not run again, in whatever study they were run; a killed one goes on from its
    last checkpoint. Settings are given as variables.NAME=VALUE, base.train.num_steps=100, seeds=[0,1] ...
    """
    from rich.console import Console

    from pipelines.progress import Reporter
    from pipelines.study.grid import cells_of
    from pipelines.study.run_study import run_study, study_folder
    from pipelines.study.study_file import chosen_size, load_study
    from pipelines.study.study_report_files import write_study_report
    from pipelines.study.tuning import tunings_of

    console = Console(highlight=False)
    size = chosen_size(config, size)
    loaded = load_study(config, overrides or (), size=size)
    folder = study_folder(loaded, size)
    if list_cells:
        for tuning in tunings_of(loaded):
            for trial in tuning.trials:
                console.print(f"{trial.cell.title} (development data)", markup=False, soft_wrap=True)
        for cell in cells_of(loaded):
            console.print(cell.title, markup=False, soft_wrap=True)
        return
    if report_only:
        report, _ = write_study_report(folder)
    else:
        report = run_study(loaded, size=size, reporter=Reporter())
    _print(report, console)
    console.print(f"\nReport: {folder / 'report.html'}", markup=False, soft_wrap=True)


def _print(report: StudyReport, console: Console) -> None:
    """Table and claims, for people."""
    from rich.table import Table

    from indexing.evaluation.study_report import study_legend, study_lines

    heads, rows = study_lines(report.table)
    shown = Table(title=report.title, title_justify="left")
    for number, head in enumerate(heads):
        shown.add_column(head, justify="right" if number else "left")
    for row in rows:
        shown.add_row(*row)
    console.print(shown)
    console.print(study_legend(report.table.baseline), markup=False)
    for claim in report.claims:
        console.print(f"  {claim.verdict:<14} {claim.text}", markup=False, soft_wrap=True)
    for note in report.notes:
        console.print(f"  {note}", markup=False, soft_wrap=True)
