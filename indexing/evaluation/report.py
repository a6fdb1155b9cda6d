"""The report of an evaluation: JSON, Markdown, LaTeX, and HTML for people.

Owns the public face and the JSON form; the others live in `report_markdown`, `report_latex`, `report_html`.
Everything is a pure function of the input: equal input gives equal text.
"""

import dataclasses
import json

from indexing.evaluation.report_html import render_html
from indexing.evaluation.report_input import (
    Curve,
    ExampleHit,
    FactBlock,
    Mover,
    QueryExample,
    ReportInput,
    SystemRanking,
)
from indexing.evaluation.report_latex import render_latex
from indexing.evaluation.report_markdown import render_markdown
from indexing.evaluation.summary import mean_of_main_scores, mean_over_tasks, summarise
from indexing.evaluation.table_values import TaskSummary

__all__ = [
    "Curve",
    "ExampleHit",
    "FactBlock",
    "Mover",
    "QueryExample",
    "ReportInput",
    "SystemRanking",
    "render_html",
    "render_latex",
    "render_markdown",
    "report_json",
]


def report_json(report: ReportInput) -> str:
    """The tables, examples, curves and facts as JSON with sorted keys; values in [0, 1], not times 100.

    The per-query rows themselves go to Parquet (`rows.write_rows`).

    Raises:
        ValueError: as `summary.summarise`, or a fact that JSON cannot express.
    """
    summaries = summarise(report.rows, pair_rows=report.pair_rows, baseline=report.baseline, seed=report.seed)
    content = {
        "title": report.title,
        "summary": report.summary,
        "baseline": report.baseline,
        "notes": list(report.notes),
        "tasks": [_task_json(summary) for summary in summaries],
        "mean_over_tasks": [
            {"system": system, "measure": measure, "mean": mean}
            for (system, measure), mean in mean_over_tasks(summaries).items()
        ],
        "mean_of_main_scores": mean_of_main_scores(summaries),
        "moved": list(report.moved),
        "movers": [dataclasses.asdict(mover) for mover in report.movers],
        "examples": [dataclasses.asdict(example) for example in report.examples],
        "curves": [dataclasses.asdict(curve) for curve in report.curves],
        "facts": [{"title": block.title, "facts": block.facts} for block in report.facts],
    }
    try:
        return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    except TypeError as error:
        raise ValueError(f"report: a fact cannot be written as JSON: {error}") from error


def _task_json(summary: TaskSummary) -> dict[str, object]:
    return {
        "task": summary.task,
        "num_queries": summary.num_queries,
        "unit": summary.unit,
        "main_measure": summary.main_measure,
        "scores": [
            {
                "system": cell.system,
                "measure": cell.measure,
                "mean": cell.interval.mean,
                "interval_95": [cell.interval.low, cell.interval.high],
                "is_best": cell.is_best,
                "against_baseline": dataclasses.asdict(cell.comparison) if cell.comparison else None,
            }
            for cell in summary.cells.values()
        ],
    }
