"""The report of a study: JSON, Markdown, LaTeX, and HTML for people.

Everything is a pure function of the input. Knows the table's values; must not compute statistics.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from indexing.evaluation.report_input import Curve, FactBlock
from indexing.evaluation.report_latex import escape_latex
from indexing.evaluation.report_markdown import escape_markdown
from indexing.evaluation.report_plots import curve_plot, interval_plot
from indexing.evaluation.report_style import STYLE
from indexing.evaluation.report_text import flatten_facts, measure_label, percent
from indexing.evaluation.significance import Interval
from indexing.evaluation.study_choices import (
    CHOICES_LEGEND,
    CHOICES_TITLE,
    Choice,
    choices_html,
    choices_markdown,
)
from indexing.evaluation.study_claims import JudgedClaim
from indexing.evaluation.study_table import MEAN, SeedCell, StudyColumn, StudyTable
from indexing.evaluation.table_values import SIGNIFICANCE_LEVEL


@dataclass(frozen=True, kw_only=True)
class StudyReport:
    """Everything in the report of a study.

    smallest_effect: a difference that claims take for one, in the unit of the measures.
    """

    title: str
    about: str
    table: StudyTable
    claims: tuple[JudgedClaim, ...] = ()
    choices: tuple[Choice, ...] = ()
    curves: tuple[Curve, ...] = ()
    notes: tuple[str, ...] = ()
    facts: tuple[FactBlock, ...] = ()
    smallest_effect: float = 0.0


def study_legend(baseline: str) -> str:
    """How to read the table."""
    return (
        "Values times 100: mean ± standard deviation over the seeds. The best of each column is bold. "
        f"▲ better, ▼ worse than {baseline} (randomisation test paired over queries, in the mean stratified "
        "by task, seeds averaged, Holm-corrected over the column, p < 0.05); "
        "in brackets the figure published by others. The mean is over the columns that are not marked °."
    )


def claims_legend(smallest: float) -> str:
    """How claims are judged."""
    return (
        "The difference is the mean over the paired seeds, with its 95 % interval over seeds and queries; p "
        "is of the randomisation test paired over queries, stratified by task, Holm-corrected over the "
        f"claims. Seen: the interval is above 0, p < {SIGNIFICANCE_LEVEL}, and the difference is at least "
        f"{100 * smallest:.1f} points; not seen: the interval is below that. Of a claim of nearness, seen: "
        "the whole interval is within the bound, and where one is to be ahead, above 0 with p as before; not "
        "seen: it is outside. That one is not below another is seen if the whole interval is above the "
        "claim's margin, not seen if it is below. One against all others is seen if it is against each, not "
        "seen if it is not against one. That one task does not predict the others is seen if the 95 % "
        "interval of the rank correlation over the settings is below the bound in every domain, not seen if "
        "it is above it in every domain. Anything else cannot be told."
    )


CLAIM_HEADS = ("claim", "verdict", "difference", "p", "seeds")


def claim_row(claim: JudgedClaim) -> tuple[str, ...]:
    """A claim as plain texts, in the order of `CLAIM_HEADS`."""
    p_value = "-" if claim.p_value is None else f"{claim.p_value:.4f}"
    seeds = str(claim.num_seeds) if claim.num_seeds else "-"
    return claim.text, claim.verdict, claim.basis or _difference(claim), p_value, seeds


def study_json(report: StudyReport) -> str:
    """Table, claims and curves as JSON with sorted keys; values in [0, 1]."""
    table = report.table
    content = {
        "title": report.title,
        "about": report.about,
        "baseline": table.baseline,
        "columns": [dataclasses.asdict(column) for column in table.columns],
        "cells": [
            {"setting": setting, "column": column}
            | dataclasses.asdict(cell)
            | {"by_seed": {str(seed): value for seed, value in table.values[setting, column].items()}}
            for (setting, column), cell in table.cells.items()
        ],
        "claims": [dataclasses.asdict(claim) for claim in report.claims],
        "choices": [dataclasses.asdict(choice) for choice in report.choices],
        "smallest_effect": report.smallest_effect,
        "curves": [dataclasses.asdict(curve) for curve in report.curves],
        "notes": list(report.notes),
        "facts": [{"title": block.title, "facts": block.facts} for block in report.facts],
    }
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def study_markdown(report: StudyReport) -> str:
    """The report as Markdown."""
    lines = study_summary(report)
    for block in report.facts:
        lines += [f"## {escape_markdown(block.title)}", "", "| | |", "|---|---|"]
        lines += [
            f"| {escape_markdown(key)} | {escape_markdown(value)} |"
            for key, value in flatten_facts(block.facts)
        ]
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def study_summary(report: StudyReport, *, level: int = 1, legends: bool = True) -> list[str]:
    """Markdown: headings from `level` on, table, claims, choices, notes. `legends`: how to read them."""
    lines = [f"{'#' * level} {escape_markdown(report.title)}", ""]
    lines += [escape_markdown(report.about), ""] * bool(report.about)
    heads, rows = _grid(report.table, escape_markdown, bold="**{}**")
    lines += _markdown_table(heads, rows)
    lines += [escape_markdown(study_legend(report.table.baseline)), ""] * legends
    if report.claims:
        lines += [f"{'#' * (level + 1)} Claims", ""] if legends else []
        rows = [[escape_markdown(text) for text in claim_row(claim)] for claim in report.claims]
        lines += _markdown_table(CLAIM_HEADS, rows)
        lines += [escape_markdown(claims_legend(report.smallest_effect)), ""] * legends
    if report.choices:
        lines += [f"{'#' * (level + 1)} {CHOICES_TITLE}", ""] if legends else []
        lines += choices_markdown(report.choices, escape_markdown)
        lines += [CHOICES_LEGEND, ""] * legends
    lines += [f"- {escape_markdown(note)}" for note in report.notes]
    return lines + [""] * bool(report.notes)


def _markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def study_latex(report: StudyReport) -> str:
    """The table as a `tabular` of `booktabs`."""
    heads, rows = _grid(report.table, escape_latex, bold=r"\textbf{{{}}}")
    marks = {" ▲": r"$^\blacktriangle$", " ▼": r"$^\blacktriangledown$", "±": r"$\pm$", "°": r"$^\circ$"}
    lines = [
        f"% values times 100, mean and standard deviation over seeds; baseline: {report.table.baseline}",
        rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
        r"\toprule",
        " & ".join(heads) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    text = "\n".join(lines) + "\n"
    for sign, command in marks.items():
        text = text.replace(sign, command)
    return text


def study_html(report: StudyReport) -> str:
    """One page that needs nothing else; every text from outside is escaped."""
    table = report.table
    body = [f"<h1>{escape(report.title)}</h1>"]
    if report.about:
        body.append(f'<p class="lead">{escape(report.about)}</p>')
    body.append(_html_table(table))
    body.append(f'<p class="legend">{escape(study_legend(table.baseline))}</p>')
    if report.notes:
        body.append('<ul class="notes">' + "".join(f"<li>{escape(n)}</li>" for n in report.notes) + "</ul>")
    if report.claims:
        body.append("<h2>Claims</h2>" + _html_claims(report.claims))
        body.append(f'<p class="legend">{escape(claims_legend(report.smallest_effect))}</p>')
    body.append(choices_html(report.choices))
    body += _curve_sections(report.curves)
    body += [_dots(table, column) for column in _shown_columns(table)]
    for block in report.facts:
        items = "".join(
            f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in flatten_facts(block.facts)
        )
        body.append(f"<details><summary>{escape(block.title)}</summary><dl>{items}</dl></details>")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(report.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def study_lines(table: StudyTable) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the table as plain text."""
    return _grid(table, str, bold="{}")


def _shown_columns(table: StudyTable) -> list[StudyColumn]:
    """The columns, and before them the mean where it is over several: a wide table begins with it."""
    counted = [column for column in table.columns if column.in_mean]
    return [*([StudyColumn(name=MEAN, measure="")] if len(counted) > 1 else []), *table.columns]


def _head(column: StudyColumn, write: Callable[[str], str]) -> str:
    text = f"{column.name} {measure_label(column.measure)}" if column.measure else column.name
    return write(text.strip()) + ("" if column.in_mean else "°")


def _grid(table: StudyTable, write: Callable[[str], str], *, bold: str) -> tuple[list[str], list[list[str]]]:
    columns = _shown_columns(table)
    heads = ["setting", *(_head(column, write) for column in columns)]
    rows = []
    for setting in table.settings:
        name = write(setting) + (" (baseline)" if setting == table.baseline else "")
        rows.append([name, *(_text(table, setting, column.name, bold) for column in columns)])
    return heads, rows


def _text(table: StudyTable, setting: str, column: str, bold: str) -> str:
    cell = table.cells.get((setting, column))
    if cell is None:
        return "-"
    text = _value(cell)
    if cell.mean == table.best(column):
        text = bold.format(text)
    if cell.published is not None:
        text += f" ({percent(cell.published)})"
    return text + _mark(cell)


def _value(cell: SeedCell) -> str:
    return percent(cell.mean) + ("" if cell.std is None else f" ± {percent(cell.std)}")


def _mark(cell: SeedCell) -> str:
    if cell.p_value is None or cell.difference is None or cell.p_value >= SIGNIFICANCE_LEVEL:
        return ""
    return " ▲" if cell.difference > 0 else " ▼"


def _difference(claim: JudgedClaim) -> str:
    if claim.difference is None:
        return "-"
    text = f"{100 * claim.difference:+.1f}"
    if claim.low is None or claim.high is None:
        return text
    return f"{text} [{100 * claim.low:+.1f}, {100 * claim.high:+.1f}]"


def _html_claims(claims: Sequence[JudgedClaim]) -> str:
    rows = ""
    for claim in claims:
        text, *others = map(escape, claim_row(claim))
        rows += (
            f'<tr><th scope="row">{text}</th>' + "".join(f"<td>{other}</td>" for other in others) + "</tr>"
        )
    head = "".join(f'<th scope="col">{name}</th>' for name in CLAIM_HEADS)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div class="scroll claims">{table}</div>'


def _html_table(table: StudyTable) -> str:
    columns = _shown_columns(table)
    head = "".join(f'<th scope="col">{_head(column, escape)}</th>' for column in columns)
    rows = ""
    for setting in table.settings:
        tag = '<span class="tag">baseline</span>' if setting == table.baseline else ""
        cells = "".join(_html_cell(table, setting, column.name) for column in columns)
        rows += f'<tr><th scope="row">{escape(setting)}{tag}</th>{cells}</tr>'
    return (
        f'<div class="scroll wide"><table><thead><tr><th scope="col">setting</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _html_cell(table: StudyTable, setting: str, column: str) -> str:
    cell = table.cells.get((setting, column))
    if cell is None:
        return "<td>-</td>"
    kind = ' class="best"' if cell.mean == table.best(column) else ""
    text = f'<span class="v">{percent(cell.mean)}</span>'
    if cell.std is not None:
        text += f'<span class="ci">± {percent(cell.std)}, {cell.num_seeds} seeds</span>'
    if cell.difference is not None:
        shown = f"{100 * cell.difference:+.1f}".replace("-", "\u2212")
        mark = _mark(cell).strip()
        tone = {"▲": " up", "▼": " down"}.get(mark, "")
        told = f"above the baseline on {cell.num_better} of {cell.num_paired} seeds"
        if cell.p_value is not None:
            told += f"; corrected p = {cell.p_value:.4f}"
        text += f'<span class="d{tone}" title="{escape(told)}">{mark} {shown}</span>'
    if cell.published is not None:
        text += f'<span class="ci">published {percent(cell.published)}</span>'
    return f"<td{kind}>{text}</td>"


def _curve_sections(curves: Sequence[Curve]) -> list[str]:
    parts = []
    for section in dict.fromkeys(curve.section for curve in curves):
        groups: dict[tuple[str, str], list[Curve]] = {}
        for curve in curves:
            if curve.section == section:
                groups.setdefault((curve.y_label, curve.x_label), []).append(curve)
        plots = "".join(curve_plot(group) for group in groups.values())
        parts.append(f"<section><h2>{escape(section)}</h2>{plots}</section>")
    return parts


def _dots(table: StudyTable, column: StudyColumn) -> str:
    found = [
        (setting, table.cells[setting, column.name])
        for setting in table.settings
        if (setting, column.name) in table.cells
    ]
    if not found:
        return ""
    intervals = [
        (setting, Interval(cell.mean, cell.mean - (cell.std or 0.0), cell.mean + (cell.std or 0.0)))
        for setting, cell in found
    ]
    label = f"{column.name} {measure_label(column.measure)}".strip() if column.measure else column.name
    plot = interval_plot(intervals, baseline=table.baseline, label=label, band="one standard deviation")
    return f"<section><h2>{escape(column.name)}</h2>{plot}</section>"
