"""The cells of a study: every setting (a value of each axis) with every domain and seed.

Owns how axes become configurations. Knows nothing of what cells do or of files.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pipelines.config import RunConfig
from pipelines.config_io import config_of, set_value
from pipelines.errors import InputError, nearest
from pipelines.study.study_config import Axis, Domain, StudyConfig, SystemConfig
from pipelines.study.trees import merged

# Overrides of the recipe by label of a setting and domain.
Chosen: TypeAlias = Mapping[tuple[str, str], Sequence[tuple[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A value of every axis.

    label: names it in tables; values: label of the value by axis; overrides: of the recipe, in order.
    """

    label: str
    values: Mapping[str, str]
    overrides: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One setting on one domain with one seed.

    tasks: names, in the study, of what it is scored on; score_steps: as in the study, for trainings.
    """

    setting: Setting
    domain: str
    seed: int
    config: RunConfig
    system: SystemConfig
    tasks: tuple[str, ...]
    score_steps: tuple[int, ...]

    @property
    def trainings(self) -> list[tuple[str, RunConfig]]:
        """Name and settings of each training, one after the other."""
        phases = enumerate(self.config.phases)
        alone = [(phase.name, self.config.phase_alone(number)) for number, phase in phases]
        return alone or [("train", self.config)]

    @property
    def is_large(self) -> bool:
        """Whether some training wants several workers, and so Ray Train."""
        return self.system.trains and any(part.train.num_workers > 1 for _, part in self.trainings)

    @property
    def title(self) -> str:
        """How a person knows it."""
        return f"{self.setting.label}, {self.domain}, seed {self.seed}"


def settings_of(study: StudyConfig) -> list[Setting]:
    """Every combination of the axes' values, the last axis fastest.

    Raises:
        InputError: two settings of one label.
    """
    axes = [[(axis, *value) for value in _values(axis, values)] for axis, values in study.axes.items()]
    settings = []
    for combination in itertools.product(*axes):
        overrides = tuple(pair for _, _, pairs in combination for pair in pairs)
        values = {axis: label for axis, label, _ in combination}
        label = ", ".join(_shown(axis, label, study) for axis, label, _ in combination)
        settings.append(Setting(label=label or "base", values=values, overrides=overrides))
    labels = [setting.label for setting in settings]
    for label in labels:
        if labels.count(label) > 1:
            raise InputError(f"two settings are called '{label}'; name the values of the axes apart")
    return settings


def cells_of(study: StudyConfig, chosen: Chosen | None = None) -> list[Cell]:
    """All cells, by setting, domain and seed; settings without a random choice have the first seed alone.

    chosen: overrides that come last, by setting and domain.

    Raises:
        InputError: an override that the recipe does not understand, named with its setting.
    """
    settings = settings_of(study)
    _check_names(study, [setting.label for setting in settings])
    return [
        cell
        for setting in settings
        for name in study.domains
        for cell in setting_cells(study, setting, name, more=(chosen or {}).get((setting.label, name), ()))
    ]


def setting_cells(
    study: StudyConfig, setting: Setting, domain: str, *, more: Sequence[tuple[str, Any]] = ()
) -> list[Cell]:
    """The cells of one setting on one domain; `more` overrides come last."""
    cells = []
    for seed in study.seeds:
        try:
            config, system = _recipe(study, setting, study.domains[domain], [*more, ("seed", seed)])
        except InputError as error:
            raise InputError(f"setting '{setting.label}', domain '{domain}': {error}") from error
        cell = Cell(
            setting=setting,
            domain=domain,
            seed=seed,
            config=config,
            system=system,
            tasks=study.domains[domain].tasks,
            score_steps=study.score_steps if system.trains else (),
        )
        cells.append(cell)
        if not is_random(cell):
            break
    return cells


def is_random(cell: Cell) -> bool:
    """Whether another seed can give another result."""
    new_weights = cell.config.model.start == "scratch" and cell.system.kind in ("trained", "start")
    return new_weights or cell.system.kind in ("trained", "sent2vec") or cell.system.transform == "flow"


def _recipe(
    study: StudyConfig, setting: Setting, domain: Domain, last: Sequence[tuple[str, Any]]
) -> tuple[RunConfig, SystemConfig]:
    tree = copy.deepcopy(study.base)
    overrides = [("corpus.input", domain.corpus), *domain.set.items(), *setting.overrides, *last]
    for key, value in overrides:
        set_value(tree, key, copy.deepcopy(value))
    system = config_of(tree.pop("system", {}), SystemConfig)
    if tree.get("phases"):
        _spread(tree)
    return config_of(tree, RunConfig), system


def _spread(tree: dict[str, Any]) -> None:
    """With phases, `train` of the recipe is what each of them begins with."""
    common = tree.pop("train", {})
    tree["phases"] = [{**phase, "train": merged(common, phase.get("train", {}))} for phase in tree["phases"]]


def _values(axis: str, values: Axis) -> list[tuple[str, list[tuple[str, Any]]]]:
    """(label, overrides) of every value of an axis."""
    if isinstance(values, Mapping):
        return [(str(label), list((overrides or {}).items())) for label, overrides in values.items()]
    return [(value_text(value), [(axis, value)]) for value in values]


def value_text(value: Any) -> str:
    """A value as tables show it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)


def _shown(axis: str, label: str, study: StudyConfig) -> str:
    """A value as part of a label; one that is no name needs its axis beside it."""
    return label if isinstance(study.axes[axis], Mapping) else f"{axis.rpartition('.')[2]} {label}"


def _check_names(study: StudyConfig, labels: Sequence[str]) -> None:
    wanted = [name for claim in study.claims for name in claim.settings]
    wanted += [study.baseline] if study.baseline else []
    wanted += [study.tune.share] if study.tune and study.tune.share else []
    wanted += study.published_mean
    wanted += [study.search.match, *study.search.settings] if study.search else []
    wanted += [name for task in study.tasks.values() for name in task.published]
    for name in wanted:
        if name not in labels:
            raise InputError(f"study '{study.name}' has no setting '{name}'.{nearest(name, labels)}")
