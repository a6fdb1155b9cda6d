"""From a labelled row as it was read to its cleaned texts and number, or the reason why it is set aside.

Knows nothing of files, shards or other rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.cleaning import clean, drop_reason
from pipelines.labels_config import NLI_NAMES

if TYPE_CHECKING:  # tasks that read rows need no torch
    from pipelines.train_config import TrainConfig

NO_LABEL, UNKNOWN_LABEL, OUT_OF_RANGE = "no_label", "unknown_label", "label_out_of_range"
LABEL_REASONS = (NO_LABEL, UNKNOWN_LABEL, OUT_OF_RANGE)
# A cross-encoder's values are of the order of 10; beyond this a margin is a mistake.
_LARGEST_MARGIN = 1e6
_TRUTH = {"true": 1.0, "false": 0.0}


@dataclass(frozen=True, kw_only=True)
class LabelRule:
    """What the rows of an objective must be.

    Attributes:
        objective: a supervised one.
        num_labels: classes of nli.
        names: of its first classes, in lower case.
        low, high: bounds of a score.
        max_chars: of a text.
    """

    objective: str
    num_labels: int
    names: tuple[str, ...]
    low: float
    high: float
    max_chars: int

    @staticmethod
    def of(config: TrainConfig) -> LabelRule:
        """The rule of a training with labels."""
        assert config.labels is not None
        bounds = {"sts": config.sts.max_score, "margin_mse": _LARGEST_MARGIN}
        high = bounds.get(config.objective, 1.0)
        return LabelRule(
            objective=config.objective,
            num_labels=config.nli.num_labels,
            names=tuple(name.lower() for name in config.labels.label_names or NLI_NAMES),
            low=-high if config.objective in bounds else 0.0,
            high=high,
            max_chars=config.labels.max_chars,
        )

    def texts(self, raw: Sequence[str | None]) -> tuple[list[str], int, str]:
        """The cleaned texts; or the place of the first that cannot be used, and why."""
        cleaned = []
        for place, text in enumerate(raw):
            found = None if text is None else clean(text)
            reason = drop_reason(found, min_chars=1, max_chars=self.max_chars)
            if reason is not None:
                return [], place, reason
            assert found is not None
            cleaned.append(found)
        return cleaned, -1, ""

    def label(self, raw: str | None) -> tuple[float, str]:
        """The label's number, or why there is none."""
        if raw is None or not raw.strip():
            return math.nan, NO_LABEL
        text = raw.strip().lower()
        value = _number(text)
        if self.objective == "nli":
            if text in self.names:
                value = float(self.names.index(text))
            whole = value == value // 1 and 0 <= value < self.num_labels
            return (value, "") if whole else (math.nan, UNKNOWN_LABEL)
        if math.isnan(value):
            return math.nan, UNKNOWN_LABEL
        return (value, "") if self.low <= value <= self.high else (math.nan, OUT_OF_RANGE)

    def advice(self) -> str:
        """What a label must be and which setting says otherwise, for an error message."""
        if self.objective == "nli":
            return (
                f"labels must be numbers from 0 to {self.num_labels - 1} or one of {', '.join(self.names)}; "
                "name the classes in train.labels.label_names and their number in train.nli.num_labels"
            )
        if self.objective == "sts":
            return f"scores must lie in [{self.low:g}, {self.high:g}]; set train.sts.max_score"
        if self.objective == "margin_mse":
            return f"margins must be numbers in [{self.low:g}, {self.high:g}]"
        return "labels must lie in [0, 1]: 1 for a pair of equal meaning, 0 for one of different meaning"


def _number(text: str) -> float:
    try:
        value = _TRUTH.get(text)
        return float(text) if value is None else value
    except ValueError:
        return math.nan
