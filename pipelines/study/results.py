"""From the small files of a study to its table, claims, curves and notes. No Ray, no torch, no data.

Owns how they are put together.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from indexing.evaluation.report_input import FactBlock
from indexing.evaluation.study_choices import Choice
from indexing.evaluation.study_report import StudyReport
from indexing.evaluation.study_table import MEAN, StudyColumn, StudyTable, study_table
from pipelines.storage import Location
from pipelines.study.comparisons import CellKeys, Comparisons
from pipelines.study.raw import read_raw, read_study_file, trained_keys
from pipelines.study.result_claims import Groups, judged_claims
from pipelines.study.result_curves import axis_curves, search_curves, step_curves


def build_report(folder: Location) -> StudyReport:
    """Everything that a study's report shows.

    Raises:
        InputError: the folder has no study.
    """
    study = read_study_file(folder)
    raw = read_raw(folder, trained_keys(study))
    keys: dict[tuple[str, str], dict[int, str]] = {}
    tasks = {domain: _tasks(study, domain) for domain in {cell["domain"] for cell in study["cells"]}}
    for cell in study["cells"]:
        if cell["key"] in raw and tasks[cell["domain"]] <= raw[cell["key"]]["tasks"].keys():
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
    published |= {(setting, MEAN): value / 100 for setting, value in study["published_mean"].items()}
    comparisons = Comparisons(folder, keys, raw)
    groups = {column["name"]: [column] for column in study["columns"]}
    groups[MEAN] = [column for column in study["columns"] if column["in_mean"]]
    p_values = _p_values(study, comparisons, groups)
    table = study_table(
        settings, columns, values, baseline=study["baseline"], p_values=p_values, published=published
    )
    claims = judged_claims(study, table, comparisons, groups)
    comparisons.keep()
    return StudyReport(
        title=study["title"],
        about=study["about"],
        table=table,
        claims=claims,
        choices=tuple(map(_choice, study["tunings"])),
        smallest_effect=study["smallest_effect"] / 100,
        curves=(
            *axis_curves(study, table),
            *step_curves(study, keys, raw),
            *search_curves(study["searches"]),
        ),
        notes=(*_notes(study, raw, table, comparisons.num_missing), *map(_search_note, study["searches"])),
        facts=(
            FactBlock(title="Recipe", facts=study["recipe"]),
            FactBlock(title="Settings", facts=study["overrides"]),
            FactBlock(title="Versions", facts=study["versions"]),
        ),
    )


def _tasks(study: Mapping[str, Any], domain: str) -> set[str]:
    """What cells of a domain are scored on; one that has only been tried on development data is not."""
    return {column["task"] for column in study["columns"] if column["domain"] == domain}


def _column(column: Mapping[str, Any], keys: CellKeys, raw: Mapping[str, Any]) -> StudyColumn:
    found = (
        raw[key]["tasks"][column["task"]]["main_measure"]
        for (_, domain), by_seed in keys.items()
        if domain == column["domain"]
        for key in by_seed.values()
    )
    return StudyColumn(name=column["name"], measure=next(found, ""), in_mean=column["in_mean"])


def _main(scores: Mapping[str, Any]) -> float:
    return float(scores["values"][scores["main_measure"]])


def _choice(tuning: Mapping[str, Any]) -> Choice:
    return Choice(
        setting=tuning["setting"],
        domain=tuning["domain"],
        dev=tuple(tuning["dev"]),
        name=tuning["name"],
        tried=tuple((trial["value"], trial["score"]) for trial in tuning["trials"]),
        chosen=tuning["chosen"],
        is_shared=tuning["shared"],
    )


def _p_values(
    study: Mapping[str, Any], comparisons: Comparisons, groups: Groups
) -> dict[tuple[str, str], float]:
    """Of (setting, column or mean) against the baseline."""
    others = [s["label"] for s in study["settings"] if s["label"] != study["baseline"]]
    return {
        (label, name): found.p_value
        for (name, columns), label in itertools.product(groups.items(), others)
        if (found := comparisons.of(label, study["baseline"], columns))
    }


def _search_note(search: Mapping[str, Any]) -> str:
    target = f"{search['match']} ({100 * search['target']:.1f} ± {100 * search['precision']:.1f})"
    head = f"{search['domain']}: {search['setting']}"
    if search["answer"] is None:
        return f"{head} does not match {target} with {search['high']:,} labelled rows."
    if search["answer"] == 0:
        return f"{head} matches {target} with 0 labelled rows: the encoder before training is enough."
    few = f"{search['too_few']:,}" if search["too_few"] else "none at all"
    return f"{head} matches {target} with {search['answer']:,} labelled rows; {few} are too few."


def _notes(
    study: Mapping[str, Any], raw: Mapping[str, Any], table: StudyTable, num_missing: int
) -> Sequence[str]:
    wanted = set(trained_keys(study))
    seconds = sum(cell["made"].get("seconds", 0.0) for cell in raw.values())
    notes = [
        f"Size {study['size']}: "
        * bool(study["size"])
        + f"{len(study['settings'])} settings, {len(study['seeds'])} seeds, "
        f"{len(raw)} of {len(wanted)} cells, "
        f"{seconds / 60:.0f} minutes of training."
    ]
    if study["max_tokens"]:
        cut = " or ".join(map(str, study["max_tokens"]))
        notes.append(
            f"Encoders read the first {cut} tokens of a text, in training and in tasks; BM25 and word vectors"
            " read all of it."
        )
    if num_missing:
        notes.append(
            f"{num_missing} comparisons have no p-value: the rows of their cells are not here, or are of "
            "other contents of the task."
        )
    for (setting, column), cell in table.cells.items():
        other = table.cells.get((table.baseline, column))
        if setting == table.baseline or other is None:
            continue
        if cell.num_paired < max(cell.num_seeds, other.num_seeds):
            notes.append(
                f"{setting}, {column}: {cell.num_paired} seeds stand against the baseline's; those that one "
                "side lacks are left out."
            )
    return notes
