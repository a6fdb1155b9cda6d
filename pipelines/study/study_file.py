"""From YAML to a checked study: the file it extends, its size, overrides, variables, and its cells.

Owns how study files are put together. Later wins: the extended file, the study, the chosen size (of both, in
that order), `KEY=VALUE` of the command line; then `${name}` in any text becomes the variable of that name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.config_io import config_of, read_override, read_tree, set_value
from pipelines.errors import InputError, nearest
from pipelines.study.grid import Cell, cells_of
from pipelines.study.study_config import StudyConfig
from pipelines.study.trees import merged
from pipelines.study.tuning import tunings_of

_VARIABLE = re.compile(r"\$\{([^}]*)\}")

# What a study, a size or an override sets to null in one of these, or a named value of an axis, is left out.
_REMOVABLE = ("tasks", "domains", "axes")


def load_study(path: Path, overrides: Sequence[str] = (), *, size: str = "") -> StudyConfig:
    """Reads and checks a study.

    size: one of its `sizes`; "" takes the only one, or none where there is none.

    Raises:
        InputError: a file is absent or not YAML, a key, size or variable is unknown, a value is wrong.
    """
    size = chosen_size(path, size)
    tree = _extended(path)
    sizes = tree.pop("sizes", {})
    if size:
        tree = merged(tree, sizes[size])
    for override in overrides:
        set_value(tree, *read_override(override))
    for section in _REMOVABLE:
        tree[section] = _without_nulls(tree.get(section, {}))
    _forget_published(tree)
    tree["axes"] = {
        axis: _without_nulls(values) if isinstance(values, Mapping) else values
        for axis, values in tree["axes"].items()
    }
    given = tree.pop("variables", {})
    variables = {name: _filled(value, given, path) for name, value in given.items()}
    return config_of(_filled(tree, variables, path), StudyConfig)


def chosen_size(path: Path, size: str) -> str:
    """The size that is meant; "" where a study has none.

    Raises:
        InputError: there is no such size, or several and none is named.
    """
    sizes = study_sizes(path)
    if not size and len(sizes) == 1:
        return sizes[0]
    if sizes and not size:
        raise InputError(f"'{path}' has several sizes: choose one with --size: {', '.join(sizes)}")
    if size and size not in sizes:
        there = f"{', '.join(sizes)}.{nearest(size, sizes)}" if sizes else "none"
        raise InputError(f"'{path}' has no size '{size}'; there is {there}")
    return size


def study_sizes(path: Path) -> list[str]:
    """The names of a study's sizes."""
    return list(_extended(path).get("sizes", {}))


def is_study(path: Path) -> bool:
    """Whether a YAML file is a study (or a part of one) and not the configuration of a run."""
    return bool({"base", "axes", "extends"} & read_tree(path).keys())


def check_study(path: Path) -> list[Cell]:
    """The cells of all sizes of a study and of its searches, each checked as a run's configuration is.

    Raises:
        InputError: the first thing that is wrong.
    """
    cells: list[Cell] = []
    for size in study_sizes(path) or [""]:
        study = load_study(path, size=size)
        cells += cells_of(study)
        cells += [trial.cell for tuning in tunings_of(study) for trial in tuning.trials]
    return cells


def _without_nulls(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if value is not None}


def _forget_published(tree: dict[str, Any]) -> None:
    """Takes the published figures of axis values that are left out with them, or all that are set to null."""
    axes = [values for values in tree["axes"].values() if isinstance(values, Mapping)]
    gone = {label for values in axes for label, overrides in values.items() if overrides is None}
    tasks = [task for task in tree["tasks"].values() if isinstance(task, dict)]
    for task in tasks:
        task["published"] = task.get("published") or {}
    tree["published_mean"] = tree.get("published_mean") or {}
    for published in (*(task["published"] for task in tasks), tree["published_mean"]):
        if isinstance(published, dict):
            for label in gone & published.keys():
                del published[label]


def _extended(path: Path) -> dict[str, Any]:
    tree = read_tree(path)
    base = tree.pop("extends", None)
    return tree if base is None else merged(_extended(path.parent / base), tree)


def _filled(value: Any, variables: Mapping[str, Any], path: Path) -> Any:
    if isinstance(value, Mapping):
        return {key: _filled(child, variables, path) for key, child in value.items()}
    if isinstance(value, list):
        return [_filled(child, variables, path) for child in value]
    if not isinstance(value, str):
        return value

    def value_of(name: str) -> Any:
        if name not in variables:
            raise InputError(
                f"'{path}': unknown variable '{name}' in '{value}'; there is "
                f"{', '.join(variables) or 'none'}.{nearest(name, variables)}"
            )
        return variables[name]

    if whole := _VARIABLE.fullmatch(value):
        return value_of(whole[1])
    return _VARIABLE.sub(lambda match: str(value_of(match[1])), value)
