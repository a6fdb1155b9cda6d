"""From the small files of a study to its table, claims, curves and notes. No Ray, no torch, no data.

p-values take a while on large tasks, so they are kept beside the files, by what they are computed from.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from indexing.evaluation.report_input import Curve, FactBlock
from indexing.evaluation.seeds import paired_p_value
from indexing.evaluation.study_report import StudyReport
from indexing.evaluation.study_table import MEAN, JudgedClaim, StudyColumn, StudyTable, judge, study_table
from pipelines.manifest import stable_hash
from pipelines.storage import Location
from pipelines.study.raw import read_raw, read_study_file, rows_copy
from pipelines.study.task_scores import read_any_rows

_P_VALUES = "p_values.json"
# An axis whose values spread so widely is drawn by its logarithm.
_WIDE = 16.0

# Keys of the cells by (setting, domain) and seed.
_Keys = Mapping[tuple[str, str], Mapping[int, str]]


def build_report(folder: Location) -> StudyReport:
    """Everything that a study's report shows.

    Raises:
        InputError: the folder has no study.
    """
    study = read_study_file(folder)
    raw = read_raw(folder, [cell["key"] for cell in study["cells"]])
    keys: dict[tuple[str, str], dict[int, str]] = {}
    for cell in study["cells"]:
        if cell["key"] in raw:
            keys.setdefault((cell["setting"], cell["domain"]), {})[cell["seed"]] = cell["key"]
    settings = [setting["label"] for setting in study["settings"]]
    columns = [_column(column, keys, raw) for column in study["columns"]]
    values = {
        (setting, column["name"]): {
            seed: _main(raw[key]["tasks"][column["task"]])
            for seed, key in keys.get((setting, column["domain"]), {}).items()
        }
        for setting in settings
        for column in study["columns"]
    }
    published = {
        (setting, column["name"]): value / 100
        for column in study["columns"]
        for setting, value in column["published"].items()
    }
    p_values, num_missing = _p_values(folder, study, keys, raw)
    table = study_table(
        settings, columns, values, baseline=study["baseline"], p_values=p_values, published=published
    )
    return StudyReport(
        title=study["title"],
        about=study["about"],
        table=table,
        claims=tuple(_judged(claim, table) for claim in study["claims"]),
        curves=(
            *_axis_curves(study, table),
            *_step_curves(study, keys, raw),
            *_search_curves(study["searches"]),
        ),
        notes=(*_notes(study, raw, num_missing), *map(_search_note, study["searches"])),
        facts=(
            FactBlock(title="Recipe", facts=study["recipe"]),
            FactBlock(title="Settings", facts=study["overrides"]),
            FactBlock(title="Versions", facts=study["versions"]),
        ),
    )


def _column(column: Mapping[str, Any], keys: _Keys, raw: Mapping[str, Any]) -> StudyColumn:
    found = (
        raw[key]["tasks"][column["task"]]["main_measure"]
        for (_, domain), by_seed in keys.items()
        if domain == column["domain"]
        for key in by_seed.values()
    )
    return StudyColumn(name=column["name"], measure=next(found, ""), in_mean=column["in_mean"])


def _main(scores: Mapping[str, Any]) -> float:
    return float(scores["values"][scores["main_measure"]])


def _judged(claim: Mapping[str, Any], table: StudyTable) -> JudgedClaim:
    return judge(
        table,
        text=claim["text"],
        better=claim["better"],
        than=claim["than"],
        within=claim["within"] / 100,
        column=claim["task"] or MEAN,
    )


def _p_values(
    folder: Location, study: Mapping[str, Any], keys: _Keys, raw: Mapping[str, Any]
) -> tuple[dict[tuple[str, str], float], int]:
    """By (setting, column) against the baseline, and how many cannot be computed for want of rows."""
    place = folder / _P_VALUES
    kept: dict[str, float] = place.read_json() if place.exists() else {}
    found: dict[str, float] = {}
    values: dict[tuple[str, str], float] = {}
    num_missing = 0
    for column, setting in itertools.product(study["columns"], study["settings"]):
        label, task = setting["label"], column["task"]
        sides = [list(keys.get((side, column["domain"]), {}).values()) for side in (label, study["baseline"])]
        if label == study["baseline"] or not all(sides):
            continue
        name = stable_hash([sides, task])[:20]
        if name not in kept:
            if not all(rows_copy(folder, key, task).exists() for side in sides for key in side):
                num_missing += 1
                continue
            left, right = (
                [
                    read_any_rows(rows_copy(folder, key, task), is_pairs=raw[key]["tasks"][task]["is_pairs"])
                    for key in side
                ]
                for side in sides
            )
            kept[name] = paired_p_value(left, right)
        found[name] = values[label, column["name"]] = kept[name]
    if found:
        place.write_json(found)
    return values, num_missing


def _axis_curves(study: Mapping[str, Any], table: StudyTable) -> list[Curve]:
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
        line = [
            (math.log2(x) if wide else x, 100 * table.cells[label, column].mean)
            for label, x in points
            if (label, column) in table.cells
        ]
        if line:
            curves.append(
                Curve(
                    name=column,
                    y_label="score, times 100",
                    x_label=f"log2 of {name}" if wide else name,
                    section="Scores by setting",
                    points=tuple(sorted(line)),
                )
            )
    return curves


def _step_curves(study: Mapping[str, Any], keys: _Keys, raw: Mapping[str, Any]) -> list[Curve]:
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
            name = column["name"]
            curves.append(
                Curve(name=label, y_label=f"{name}, times 100", section="Scores by steps", points=points)
            )
    return curves


def _search_curves(searches: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Scores by labelled rows of every search, and the score to be met as a flat line."""
    curves = []
    for search in searches:
        points = sorted((math.log2(number), 100 * score) for number, score in search["points"])
        label = {
            "y_label": f"{search['domain']}, score times 100",
            "x_label": "log2 of labelled rows",
            "section": "Labelled rows",
        }
        ends = (points[0][0], points[-1][0])
        target = tuple((x, 100 * search["target"]) for x in ends)
        curves.append(Curve(name=search["setting"], points=tuple(points), **label))
        curves.append(Curve(name=search["match"], points=target, **label))
    return curves


def _search_note(search: Mapping[str, Any]) -> str:
    target = f"{search['match']} ({100 * search['target']:.1f} ± {100 * search['precision']:.1f})"
    head = f"{search['domain']}: {search['setting']}"
    if search["answer"] is None:
        return f"{head} does not match {target} with {search['high']:,} labelled rows."
    how = "matches" if search["is_matched"] else "is above"
    return f"{head} {how} {target} with {search['answer']:,} labelled rows."


def _notes(study: Mapping[str, Any], raw: Mapping[str, Any], num_missing: int) -> Sequence[str]:
    wanted = {cell["key"] for cell in study["cells"]}
    seconds = sum(cell["made"].get("seconds", 0.0) for cell in raw.values())
    notes = [
        f"Size {study['size']}: "
        * bool(study["size"])
        + f"{len(study['settings'])} settings, {len(study['seeds'])} seeds, "
        f"{len(raw)} of {len(wanted)} cells, "
        f"{seconds / 60:.0f} minutes of training."
    ]
    if num_missing:
        notes.append(f"{num_missing} comparisons have no p-value: the rows of their cells are not here.")
    return notes
