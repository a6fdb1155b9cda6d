"""The small files of a study from which its tables are made: what was asked, and what each cell gave.

`study.json` has settings, columns, cells and claims; `raw/KEY.json` the values of a cell;
`raw_rows` its rows. They need neither the data nor the cells' folders. Must not know tables or
statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pipelines.code_version import code_version
from pipelines.config_values import config_to_dict
from pipelines.errors import InputError
from pipelines.manifest import package_versions
from pipelines.storage import Location
from pipelines.study.grid import Cell, settings_of, value_text
from pipelines.study.label_efficiency import Search
from pipelines.study.raw_rows import write_raw_rows
from pipelines.study.run_cell import MADE_NAME, CellJob
from pipelines.study.study_config import StudyConfig
from pipelines.study.task_scores import read_any_rows, rows_place, scores_place
from pipelines.study.tuning import Tuning

STUDY_FILE = "study.json"
RAW_FOLDER = "raw"
# Sections of a recipe that say where it runs.
_PLACES = ("cluster", "tracking")


def write_study_file(
    folder: Location,
    study: StudyConfig,
    cells: Sequence[tuple[Cell, str]],
    *,
    size: str,
    searches: Sequence[Search] = (),
    tunings: Sequence[Tuning] = (),
) -> None:
    """Writes what the study asks, before its cells are run, and again when a search has found what it has."""
    plain = config_to_dict(study)
    settings = settings_of(study)
    (folder / STUDY_FILE).write_json(
        {
            "name": study.name,
            "title": study.title or study.name,
            "about": study.about,
            "size": size,
            "seeds": list(study.seeds),
            "baseline": study.baseline or settings[0].label,
            "settings": [{"label": s.label, "values": dict(s.values)} for s in settings],
            "axes": {
                axis: values if isinstance(values, list) else list(values)
                for axis, values in plain["axes"].items()
            },
            "columns": study_columns(study),
            "published_mean": study.published_mean,
            "max_tokens": sorted(
                {c.config.model.max_tokens for c, _ in cells if c.system.kind in ("trained", "start")}
            ),
            "cells": [
                {"setting": cell.setting.label, "domain": cell.domain, "seed": cell.seed, "key": key}
                for cell, key in cells
            ],
            "claims": plain["claims"],
            "smallest_effect": study.smallest_effect,
            "score_steps": plain["score_steps"],
            "searches": [_search(study, search) for search in searches],
            "tunings": [_tuning(study, tuning) for tuning in tunings],
            "recipe": _shown({key: value for key, value in plain["base"].items() if key not in _PLACES}),
            "overrides": {s.label: _shown(dict(s.overrides)) for s in settings},
            "versions": package_versions(),
        }
    )


def read_study_file(folder: Location) -> dict[str, Any]:
    """What `write_study_file` wrote.

    Raises:
        InputError: there is none, or an old one.
    """
    if not (folder / STUDY_FILE).exists():
        raise InputError(f"'{folder}' has no {STUDY_FILE}; run the study first, without --report-only")
    content: dict[str, Any] = (folder / STUDY_FILE).read_json()
    if "tunings" not in content or any("not_below" not in claim for claim in content["claims"]):
        raise InputError(
            f"'{folder / STUDY_FILE}' is of an earlier version; run the study again: its cells are kept"
        )
    return content


def trained_keys(study: Mapping[str, Any]) -> list[str]:
    """The keys of all cells of a study, those that were only tried on development data too, each once."""
    tried = [trial["key"] for tuning in study["tunings"] for trial in tuning["trials"]]
    return list(dict.fromkeys([*(cell["key"] for cell in study["cells"]), *tried]))


def write_raw(folder: Location, job: CellJob) -> dict[str, Any]:
    """Copies a finished cell's values and rows; returns what is written: tasks, steps, made.

    What is there of other tasks stays: a cell that was tried on development data is tested later.
    """
    made = job.place / MADE_NAME
    tasks: dict[str, Any] = {}
    steps: dict[str, dict[str, Any]] = {}
    for task in job.tasks:
        scores = scores_place(job.place, task).read_json()
        tasks[task.name] = scores | {"fingerprint": task.key}
        rows = read_any_rows(rows_place(job.place, task), is_pairs=scores["is_pairs"])
        write_raw_rows(folder / RAW_FOLDER, job.key, task.key, *rows)
        found = {step: scores_place(job.place, task, step) for step in job.cell.score_steps}
        steps[task.name] = {
            str(s): place.read_json()["values"] for s, place in found.items() if place.exists()
        }
    raw_place = folder / RAW_FOLDER / f"{job.key}.json"
    before = raw_place.read_json() if raw_place.exists() else {"tasks": {}, "steps": {}, "made": {}}
    facts = made.read_json() if made.exists() else {}
    if not facts:  # the encoder is gone, or was never made; what is known of it is here
        facts = before["made"]
    facts.setdefault("version", code_version())
    merged = {"tasks": before["tasks"] | tasks, "steps": before["steps"] | steps}
    raw = {"key": job.key, **merged, "made": facts}
    raw_place.write_json(raw)
    return raw


def read_raw(folder: Location, keys: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """The values of those cells that are there, by key."""
    places = {key: folder / RAW_FOLDER / f"{key}.json" for key in dict.fromkeys(keys)}
    return {key: place.read_json() for key, place in places.items() if place.exists()}


def is_taken(folder: Location, job: CellJob) -> bool:
    """Whether `write_raw` has copied all tasks of a cell, as their contents are now."""
    place = folder / RAW_FOLDER / f"{job.key}.json"
    kept = place.read_json()["tasks"] if place.exists() else {}
    return all(kept.get(task.name, {}).get("fingerprint") == task.key for task in job.tasks)


def _shown(value: Any) -> Any:
    """Settings as a report shows them: of an absolute path the end, which says what it is and not where."""
    if isinstance(value, Mapping):
        return {key: _shown(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_shown(child) for child in value]
    if isinstance(value, str) and value.startswith("/"):
        return "/".join(value.rstrip("/").split("/")[-2:])
    return value


def _search(study: StudyConfig, search: Search) -> dict[str, Any]:
    assert study.search is not None
    found = search.bisection
    return {
        "setting": search.setting,
        "domain": search.domain,
        "match": study.search.match,
        "target": found.target,
        "precision": found.precision,
        "num_seeds": search.num_seeds,
        "trials": [asdict(trial) for trial in found.trials],
        "answer": found.answer,
        "too_few": found.too_few,
        "high": study.search.high,
    }


def _tuning(study: StudyConfig, tuning: Tuning) -> dict[str, Any]:
    assert study.tune is not None
    return {
        "setting": tuning.setting,
        "domain": tuning.domain,
        "dev": list(study.domains[tuning.domain].dev),
        "name": study.tune.key.rpartition(".")[2],
        "shared": bool(study.tune.share),
        "trials": [
            {"value": value_text(trial.value), "score": trial.score, "key": trial.key}
            for trial in tuning.trials
        ],
        "chosen": None if tuning.chosen is None else value_text(tuning.chosen),
    }


def study_columns(study: StudyConfig) -> list[dict[str, Any]]:
    """A column for every task of every domain; a task of several domains names them."""
    pairs = [(domain, task) for domain, found in study.domains.items() for task in found.tasks]
    tasks = [task for _, task in pairs]
    return [
        {
            "name": task if tasks.count(task) == 1 else f"{task} ({domain})",
            "domain": domain,
            "task": task,
            "in_mean": study.tasks[task].in_mean,
            "published": study.tasks[task].published
            if study.tasks[task].published_in in ("", domain)
            else {},
        }
        for domain, task in pairs
    ]
