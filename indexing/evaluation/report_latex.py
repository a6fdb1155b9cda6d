"""The report's tables in LaTeX, one `tabular` with the main score of every task, to paste into a paper.

Needs the package `booktabs`. Knows the summary; must not compute statistics.
"""

from indexing.evaluation.report_input import ReportInput
from indexing.evaluation.report_text import measure_label, percent
from indexing.evaluation.summary import mean_of_main_scores, summarise
from indexing.evaluation.table_values import Cell

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def render_latex(report: ReportInput) -> str:
    """A tabular: one row for each system, one column for each task, the mean last.

    Bold: the best of the column. A dagger: differs from the baseline (Holm-corrected p < 0.05).

    Raises:
        ValueError: as `summary.summarise`.
    """
    summaries = summarise(report.rows, pair_rows=report.pair_rows, baseline=report.baseline, seed=report.seed)
    means = mean_of_main_scores(summaries) if len(summaries) > 1 else {}
    systems = list(dict.fromkeys(system for summary in summaries for system in summary.systems))
    heads = [f"{escape_latex(s.task)} {escape_latex(measure_label(s.main_measure))}" for s in summaries]
    heads += ["mean"] if means else []
    is_full = all((system, s.main_measure) in s.cells for s in summaries for system in systems)
    lines = [
        f"% values times 100; baseline: {' '.join(report.baseline.split())}",
        *([] if is_full else ["% --: the system does not apply to the task"]),
        rf"\begin{{tabular}}{{l{'r' * len(heads)}}}",
        r"\toprule",
        " & ".join(["system", *heads]) + r" \\",
        r"\midrule",
    ]
    for system in systems:
        cells = [_cell(summary.cells.get((system, summary.main_measure))) for summary in summaries]
        if means:
            cells.append(_mean(system, means))
        lines.append(" & ".join([escape_latex(system), *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "--"
    value = percent(cell.interval.mean)
    text = rf"\textbf{{{value}}}" if cell.is_best else value
    return text + (r"$^\dagger$" if cell.comparison and cell.comparison.is_significant else "")


def _mean(system: str, means: dict[str, float]) -> str:
    if system not in means:
        return "--"
    value = percent(means[system])
    return rf"\textbf{{{value}}}" if means[system] >= max(means.values()) else value


def escape_latex(text: str) -> str:
    """A text as LaTeX shows it, on one line."""
    return "".join(_SPECIAL.get(sign, sign) for sign in " ".join(text.split()))
