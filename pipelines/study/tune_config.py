"""The configuration of the small search, on development data, that goes before a study's test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pipelines.collection_config import require


@dataclass(frozen=True, kw_only=True)
class TuneConfig:
    """Values of one setting that every setting of a study which trains is tried with, alike in every domain.

    The best by the mean of the domain's `dev` tasks is taken for all seeds, and only that is tested. Values
    are tried with the first seed. Where the key changes nothing in a setting, there is nothing to search.

    key: dotted key of the recipe; in a recipe of phases, of all phases that do not give it themselves.
    values: tried in this order; the first of equals is taken.
    share: the only setting that is searched with; all others take its value. "" lets each search.
    set: further overrides of the recipe, during the search only.
    """

    values: tuple[Any, ...]
    key: str = "train.optim.lr"
    share: str = ""
    set: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(len(self.values) >= 1, "tune.values must name at least one value")
        require(len({str(value) for value in self.values}) == len(self.values), "tune.values must differ")
