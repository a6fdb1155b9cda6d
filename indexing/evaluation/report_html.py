"""The report as one HTML page that needs nothing else: no script, font, image or network.

Knows the summary and the input values; must not compute statistics. Every text from outside is escaped.
"""

from collections.abc import Sequence
from html import escape

from indexing.evaluation.report_input import Curve, QueryExample, ReportInput, SystemRanking
from indexing.evaluation.report_plots import curve_plot, interval_plot
from indexing.evaluation.report_style import STYLE
from indexing.evaluation.report_text import (
    flatten_facts,
    legend,
    mean_title,
    measure_label,
    percent,
    shorten_text,
)
from indexing.evaluation.summary import mean_of_main_scores, mean_over_tasks, summarise
from indexing.evaluation.table_values import Cell, TaskSummary

# The typographic minus is as wide as the plus.
MINUS = "\u2212"


def render_html(report: ReportInput) -> str:
    """The whole page; readable from 360 px width, light and dark.

    Raises:
        ValueError: as `summary.summarise`, or a curve with a point that is not finite.
    """
    summaries = summarise(report.rows, pair_rows=report.pair_rows, baseline=report.baseline, seed=report.seed)
    body = [f"<h1>{escape(report.title)}</h1>"]
    if report.summary:
        body.append(f'<p class="lead">{escape(report.summary)}</p>')
    body += [_task_section(summary, report.baseline) for summary in summaries]
    if len(summaries) > 1:
        body.append(_mean_section(summaries))
    body.append(f'<p class="legend">{escape(legend(report.baseline))}</p>')
    if report.notes:
        items = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
        body.append(f'<ul class="notes">{items}</ul>')
    sections = list(dict.fromkeys(curve.section for curve in report.curves))
    body += [_curves_section(name, [c for c in report.curves if c.section == name]) for name in sections]
    body += [_movers_section(report)]
    if report.map_svg:
        body.append(
            f'<section><h2>Map of the corpus</h2><figure class="map">{report.map_svg}</figure></section>'
        )
    if report.examples:
        body.append("<h2>Example queries</h2>")
        body += [_example(example) for example in report.examples]
    for block in report.facts:
        pairs = flatten_facts(block.facts)
        items = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in pairs)
        body.append(f"<details><summary>{escape(block.title)}</summary><dl>{items}</dl></details>")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(report.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _task_section(summary: TaskSummary, baseline: str) -> str:
    first = summary.measures[0]
    intervals = [(system, summary.cells[system, first].interval) for system in summary.systems]
    head = "".join(f'<th scope="col">{escape(measure_label(name))}</th>' for name in summary.measures)
    rows = ""
    for system in summary.systems:
        tag = '<span class="tag">baseline</span>' if system == baseline else ""
        cells = "".join(_cell(summary.cells[system, measure]) for measure in summary.measures)
        rows += f'<tr><th scope="row">{escape(system)}{tag}</th>{cells}</tr>'
    return (
        f'<section><h2>{escape(summary.task)}</h2><p class="meta">{summary.num_queries:,} {summary.unit}</p>'
        + _table(head, rows)
        + interval_plot(intervals, baseline=baseline, label=measure_label(first))
        + "</section>"
    )


def _cell(cell: Cell) -> str:
    kind = ' class="best"' if cell.is_best else ""
    interval = f"{percent(cell.interval.low)} to {percent(cell.interval.high)}"
    text = f'<span class="v">{percent(cell.interval.mean)}</span><span class="ci">{interval}</span>'
    if cell.comparison:
        difference = 100 * cell.comparison.difference
        shown = f"{difference:+.1f}".replace("-", MINUS)
        mark, tone = "", ""
        if cell.comparison.is_significant:
            mark, tone = ("▲ ", " up") if difference > 0 else ("▼ ", " down")
        counts = (
            f"better on {cell.comparison.num_wins}, equal on {cell.comparison.num_ties}, "
            f"worse on {cell.comparison.num_losses}; "
            f"corrected p = {cell.comparison.adjusted_p_value:.4f}"
        )
        text += f'<span class="d{tone}" title="{escape(counts)}">{mark}{shown}</span>'
    return f"<td{kind}>{text}</td>"


def _mean_section(summaries: list[TaskSummary]) -> str:
    """The mean of the main scores, and of the measures that all tasks share."""
    main = mean_of_main_scores(summaries)
    shared = mean_over_tasks(summaries)
    measures = list(dict.fromkeys(measure for _, measure in shared))
    if len({summary.main_measure for summary in summaries}) == 1:
        measures = [measure for measure in measures if measure != summaries[0].main_measure]
    columns = [("main score", main)] + [
        (measure_label(measure), {s: value for (s, name), value in shared.items() if name == measure})
        for measure in measures
    ]
    head = "".join(f'<th scope="col">{escape(label)}</th>' for label, _ in columns)
    rows = ""
    for system in main:
        cells = ""
        for _, values in columns:
            kind = ' class="best"' if values[system] >= max(values.values()) else ""
            cells += f'<td{kind}><span class="v">{percent(values[system])}</span></td>'
        rows += f'<tr><th scope="row">{escape(system)}</th>{cells}</tr>'
    title = mean_title([s.task for s in summaries], [s.main_measure for s in summaries])
    return f"<section><h2>{escape(title)}</h2>{_table(head, rows)}</section>" if main else ""


def _table(head: str, rows: str) -> str:
    return (
        '<div class="scroll" tabindex="0"><table><thead><tr><th scope="col">System</th>'
        f"{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _movers_section(report: ReportInput) -> str:
    if not report.movers:
        return ""
    before, after = (escape(name) for name in report.moved)
    parts = [f'<section><h2>Winners and losers</h2><p class="meta">from {before} to {after}</p>']
    for task in dict.fromkeys(mover.task for mover in report.movers):
        rows = ""
        for mover in (mover for mover in report.movers if mover.task == task):
            tone, arrow = ("up", "▲") if mover.change > 0 else ("down", "▼")
            rows += (
                f'<li><p class="q">{escape(shorten_text(mover.text, limit=160))}</p>'
                f'<p class="rel">{escape(shorten_text(mover.target, limit=160))}</p>'
                f'<p class="move"><span class="{tone}">{arrow}</span> {escape(mover.before)} '
                f"→ <b>{escape(mover.after)}</b></p></li>"
            )
        parts.append(f'<h3>{escape(task)}</h3><ul class="movers">{rows}</ul>')
    return "".join(parts) + "</section>"


def _curves_section(title: str, curves: Sequence[Curve]) -> str:
    groups: dict[tuple[str, str], list[Curve]] = {}
    for curve in curves:
        groups.setdefault((curve.y_label, curve.x_label), []).append(curve)
    plots = "".join(curve_plot(group) for group in groups.values())
    return f"<section><h2>{escape(title)}</h2>{plots}</section>" if plots else ""


def _example(example: QueryExample) -> str:
    label = f'<span class="tag">{escape(example.label)}</span>' if example.label else ""
    relevant = "".join(
        f'<p class="rel">Relevant: {escape(shorten_text(text))}</p>' for text in example.relevant_texts
    )
    sides = "".join(_ranking(ranking) for ranking in example.rankings)
    return (
        f'<article class="example"><p class="q">{escape(shorten_text(example.query))}{label}</p>'
        f'{relevant}<div class="sides">{sides}</div></article>'
    )


def _ranking(ranking: SystemRanking) -> str:
    rank = ranking.best_relevant_rank
    place = f"relevant at place {rank}" if rank else "relevant not found"
    hits = ""
    for hit in ranking.hits:
        start = '<li class="hit">✓ ' if hit.is_relevant else "<li>"
        hits += f"{start}{escape(shorten_text(hit.text, limit=140))} <small>{hit.score:.3f}</small></li>"
    return (
        f'<div class="side"><h3>{escape(ranking.system)}<span>{place}</span></h3>'
        f"<ol>{hits or '<li>no hits</li>'}</ol></div>"
    )
