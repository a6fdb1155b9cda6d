"""The report as Markdown: the same tables as the HTML page, readable in a terminal or a repository.

Knows the summary and the input values; must not compute statistics.
"""

import re

from indexing.evaluation.report_input import QueryExample, ReportInput
from indexing.evaluation.report_text import (
    flatten_facts,
    legend,
    mean_title,
    measure_label,
    percent,
    shorten_text,
)
from indexing.evaluation.summary import mean_of_main_scores, summarise
from indexing.evaluation.table_values import Cell, TaskSummary

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def render_markdown(report: ReportInput) -> str:
    """The whole report, values times 100, ending in a newline.

    Raises:
        ValueError: as `summary.summarise`.
    """
    summaries = summarise(report.rows, pair_rows=report.pair_rows, baseline=report.baseline, seed=report.seed)
    lines = [f"# {escape_markdown(report.title)}", ""]
    if report.summary:
        lines += [escape_markdown(report.summary), ""]
    for summary in summaries:
        lines += [f"## {escape_markdown(summary.task)}", "", f"{summary.num_queries:,} {summary.unit}", ""]
        lines += [*_task_table(summary, report.baseline), ""]
    if len(summaries) > 1:
        lines += _mean_lines(summaries)
    lines += [escape_markdown(legend(report.baseline)), ""]
    lines += [f"- {escape_markdown(note)}" for note in report.notes] + [""] * bool(report.notes)
    lines += _mover_lines(report)
    if report.examples:
        lines += ["## Example queries", ""]
        for example in report.examples:
            lines += _example_lines(example)
    for curve in report.curves:
        if curve.points:
            (first_x, first_y), (last_x, last_y) = curve.points[0], curve.points[-1]
            lines.append(
                f"- {escape_markdown(curve.name)}: {escape_markdown(curve.y_label)} {first_y:.4g} "
                f"at {escape_markdown(curve.x_label)} {first_x:g}, {last_y:.4g} at {last_x:g}"
            )
    lines += [""] * bool(report.curves)
    for block in report.facts:
        lines += [f"## {escape_markdown(block.title)}", "", "| | |", "|---|---|"]
        lines += [
            f"| {escape_markdown(key)} | {escape_markdown(value)} |"
            for key, value in flatten_facts(block.facts)
        ]
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _task_table(summary: TaskSummary, baseline: str) -> list[str]:
    lines = [
        "| system | " + " | ".join(measure_label(measure) for measure in summary.measures) + " |",
        "|---|" + "---:|" * len(summary.measures),
    ]
    for system in summary.systems:
        name = escape_markdown(system) + (" (baseline)" if system == baseline else "")
        cells = [_cell_text(summary.cells[system, measure]) for measure in summary.measures]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _cell_text(cell: Cell) -> str:
    mean = percent(cell.interval.mean)
    text = f"**{mean}**" if cell.is_best else mean
    if cell.comparison and cell.comparison.is_significant:
        text += " ▲" if cell.comparison.difference > 0 else " ▼"
    return f"{text} [{percent(cell.interval.low)}, {percent(cell.interval.high)}]"


def _mean_lines(summaries: list[TaskSummary]) -> list[str]:
    title = mean_title([s.task for s in summaries], [s.main_measure for s in summaries])
    main = mean_of_main_scores(summaries)
    rows = [f"| {escape_markdown(system)} | {percent(value)} |" for system, value in main.items()]
    return [f"## {title}", "", "| system | mean |", "|---|---:|", *rows, ""] if main else []


def _mover_lines(report: ReportInput) -> list[str]:
    if not report.movers:
        return []
    lines = [
        "## Winners and losers",
        "",
        f"From {escape_markdown(report.moved[0])} to {escape_markdown(report.moved[1])}.",
        "",
    ]
    for mover in report.movers:
        arrow = "▲" if mover.change > 0 else "▼"
        texts = f"{escape_markdown(shorten_text(mover.text))} | {escape_markdown(shorten_text(mover.target))}"
        lines.append(f"- {arrow} {escape_markdown(mover.task)}: {mover.before} → {mover.after}: {texts}")
    return [*lines, ""]


def _example_lines(example: QueryExample) -> list[str]:
    label = f" ({escape_markdown(example.label)})" if example.label else ""
    lines = [f"### {escape_markdown(shorten_text(example.query))}{label}", ""]
    for ranking in example.rankings:
        rank = ranking.best_relevant_rank
        place = f"relevant at place {rank}" if rank else "relevant not found"
        lines.append(f"- {escape_markdown(ranking.system)}: {place}")
        for number, hit in enumerate(ranking.hits, start=1):
            mark = "✓ " if hit.is_relevant else ""
            lines.append(f"    {number}. {mark}{escape_markdown(shorten_text(hit.text))} ({hit.score:.3f})")
    return [*lines, ""]


def escape_markdown(text: str) -> str:
    """A text as Markdown shows it, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
