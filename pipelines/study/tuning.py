"""The small search on development data before a study's test: which cells it runs, and what they choose.

Running cells and their scores are the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipelines.study.grid import Cell, Chosen, Setting, setting_cells, settings_of, value_text
from pipelines.study.study_config import StudyConfig
from pipelines.study.tune_config import TuneConfig


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One value: the cell that is trained with it, and its score on development tasks (None: it failed)."""

    value: Any
    cell: Cell
    key: str = ""
    score: float | None = None


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The search of one setting on one domain, values in the order of the study."""

    setting: str
    domain: str
    trials: tuple[Trial, ...]

    @property
    def chosen(self) -> Any:
        """The value of the best score, the first of equals; None where all of its cells failed."""
        scored = [trial for trial in self.trials if trial.score is not None]
        return max(scored, key=lambda trial: trial.score or 0.0).value if scored else None

    def told(self, found: Sequence[tuple[str, float | None]]) -> Tuning:
        """With the key and the score of each trial's cell."""
        trials = [
            replace(trial, key=key, score=score)
            for trial, (key, score) in zip(self.trials, found, strict=True)
        ]
        return replace(self, trials=tuple(trials))


def tunings_of(study: StudyConfig) -> list[Tuning]:
    """The searches to be made; none without `tune`, or of settings that the value does not change."""
    tune = study.tune
    if tune is None:
        return []
    searching = [setting for setting in settings_of(study) if tune.share in ("", setting.label)]
    found = [
        Tuning(setting=setting.label, domain=domain, trials=_trials(study, tune, setting, domain))
        for setting in searching
        for domain in study.domains
    ]
    return [tuning for tuning in found if _is_search(tuning)]


def _trials(study: StudyConfig, tune: TuneConfig, setting: Setting, domain: str) -> tuple[Trial, ...]:
    """A cell of the first seed for each value, scored on the development tasks alone."""
    alone = replace(study, seeds=study.seeds[:1], score_steps=(), claims=())
    trials = []
    for value in tune.values:
        more = [*tune.set.items(), (tune.key, value)]
        (cell,) = setting_cells(alone, setting, domain, more=more)
        label = f"{setting.label}, {tune.key.rpartition('.')[2]} {value_text(value)}"
        named = replace(cell, setting=replace(setting, label=label), tasks=study.domains[domain].dev)
        trials.append(Trial(value=value, cell=named))
    return tuple(trials)


def _is_search(tuning: Tuning) -> bool:
    first, *others = (trial.cell for trial in tuning.trials)
    return first.system.trains and (not others or any(other.config != first.config for other in others))


def chosen_of(study: StudyConfig, tunings: Sequence[Tuning]) -> Chosen:
    """The values found, as overrides for every setting and domain that they belong to."""
    tune = study.tune
    if tune is None:
        return {}
    labels = [setting.label for setting in settings_of(study)]
    return {
        (label, tuning.domain): [(tune.key, tuning.chosen)]
        for tuning in tunings
        if tuning.chosen is not None
        for label in (labels if tune.share else [tuning.setting])
    }
