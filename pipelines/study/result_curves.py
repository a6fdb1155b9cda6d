"""The curves of a study's report: scores by axis, training steps and labelled rows, with spreads.

Must not know files or statistics beyond a deviation over seeds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from indexing.evaluation.report_input import Curve
from indexing.evaluation.study_table import MEAN, StudyTable
from pipelines.study.comparisons import CellKeys

# An axis whose values spread so widely is drawn by its logarithm.
_WIDE = 16.0
_BAND = "one standard deviation over the seeds"


def axis_curves(study: Mapping[str, Any], table: StudyTable) -> list[Curve]:
    """Scores by the values of the only axis, where those are numbers."""
    if len(study["axes"]) != 1:
        return []
    ((axis, _),) = study["axes"].items()
    labels = [(setting["label"], setting["values"][axis]) for setting in study["settings"]]
    try:
        points = [(label, float(value)) for label, value in labels]
    except ValueError:
        return []
    if len(points) < 2 or not all(math.isfinite(x) for _, x in points):
        return []
    low, high = min(x for _, x in points), max(x for _, x in points)
    wide = low > 0 and high / low >= _WIDE
    name = axis.rpartition(".")[2].replace("_", " ")
    curves = []
    for column in [*(column.name for column in table.columns), MEAN]:
        line = sorted(
            (math.log2(x) if wide else x, 100 * cell.mean, 100 * (cell.std or 0.0))
            for label, x in points
            if (cell := table.cells.get((label, column))) is not None
        )
        if line:
            curves.append(
                Curve(
                    name=column,
                    y_label="score, times 100",
                    x_label=f"log2 of {name}" if wide else name,
                    section="Scores by setting",
                    points=tuple((x, y) for x, y, _ in line),
                    spreads=tuple(spread for _, _, spread in line),
                    band=_BAND,
                )
            )
    return curves


def step_curves(study: Mapping[str, Any], keys: CellKeys, raw: Mapping[str, Any]) -> list[Curve]:
    """Scores by training steps, mean over the seeds, for each column and setting."""
    curves = []
    for column, setting in itertools.product(study["columns"], study["settings"]):
        label, task = setting["label"], column["task"]
        by_step: dict[int, list[float]] = {}
        for key in keys.get((label, column["domain"]), {}).values():
            measure = raw[key]["tasks"][task]["main_measure"]
            for step, values in raw[key]["steps"].get(task, {}).items():
                by_step.setdefault(int(step), []).append(values[measure])
        if by_step:
            points = tuple((float(step), 100 * float(np.mean(v))) for step, v in sorted(by_step.items()))
            curves.append(
                Curve(
                    name=label,
                    y_label=f"{column['name']}, times 100",
                    section="Scores by steps",
                    points=points,
                    spreads=tuple(100 * _std(v) for _, v in sorted(by_step.items())),
                    band=_BAND,
                )
            )
    return curves


def search_curves(searches: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Scores by labelled rows of every search, and the score to be met as a flat line.

    The encoder without any is not drawn: the axis is a logarithm.
    """
    curves = []
    for search in searches:
        trials = sorted(
            (trial for trial in search["trials"] if trial["number"]), key=lambda t: int(t["number"])
        )
        if not trials:
            continue
        points = [(math.log2(trial["number"]), 100 * trial["score"]) for trial in trials]
        spreads = tuple(100 * trial["std"] for trial in trials)
        label = {
            "y_label": f"{search['domain']}, score times 100",
            "x_label": "log2 of labelled rows",
            "section": "Labelled rows",
            "band": _BAND,
        }
        ends = (points[0][0], points[-1][0])
        target = tuple((x, 100 * search["target"]) for x in ends)
        curves.append(Curve(name=search["setting"], points=tuple(points), spreads=spreads, **label))
        flat = (100 * search["precision"],) * 2
        curves.append(Curve(name=search["match"], points=target, spreads=flat, **label))
    return curves


def _std(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
