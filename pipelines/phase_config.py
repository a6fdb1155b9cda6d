"""The configuration of one phase of a recipe."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from pipelines.collection_config import require
from pipelines.train_config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """One training of several.

    name: its folder below `phases/` in the workspace.
    pooling: how its encoder pools; null for that of the phase before, in the first for `model.pooling`.
    """

    name: str
    pooling: Literal["cls", "mean", "max"] | None = None
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        require(
            re.fullmatch(r"[A-Za-z0-9_-]+", self.name) is not None,
            f"phase name '{self.name}' must be of letters, digits, - and _",
        )
