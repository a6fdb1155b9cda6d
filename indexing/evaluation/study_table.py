"""The numbers of a study: settings by columns (a task in a domain), means over seeds, comparisons.

Owns aggregation over seeds and columns. Must not know files or how a table looks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from indexing.evaluation.seeds import matched_seeds
from indexing.evaluation.significance import holm_correction

# By setting and column, the main measure by seed.
Values = Mapping[tuple[str, str], Mapping[int, float]]
MEAN = "mean"


@dataclass(frozen=True, kw_only=True)
class StudyColumn:
    """A column: a task in a domain, and its main measure. `in_mean`: it counts for the mean over columns."""

    name: str
    measure: str
    in_mean: bool = True


@dataclass(frozen=True, kw_only=True)
class SeedCell:
    """A setting in a column.

    Attributes:
        mean: over the seeds, in the unit of the measure.
        std: sample standard deviation over them; None for a single one.
        num_seeds: how many there are.
        difference: from the baseline; None for itself or without it.
        num_better: seeds on which it is above the baseline, of `num_paired`.
        p_value: Holm-corrected over the column; None where rows are missing.
        published: somebody else's figure for the same, in the same unit.
    """

    mean: float
    std: float | None
    num_seeds: int
    difference: float | None = None
    num_better: int = 0
    num_paired: int = 0
    p_value: float | None = None
    published: float | None = None


@dataclass(frozen=True, kw_only=True)
class StudyTable:
    """All cells by (setting, column); the column `mean` is over those that count."""

    settings: tuple[str, ...]
    columns: tuple[StudyColumn, ...]
    baseline: str
    cells: Mapping[tuple[str, str], SeedCell]
    values: Values = field(default_factory=dict)

    def best(self, column: str) -> float | None:
        """The highest mean of a column."""
        found = [cell.mean for (_, name), cell in self.cells.items() if name == column]
        return max(found) if found else None


def study_table(
    settings: Sequence[str],
    columns: Sequence[StudyColumn],
    values: Values,
    *,
    baseline: str,
    p_values: Mapping[tuple[str, str], float] | None = None,
    published: Mapping[tuple[str, str], float] | None = None,
) -> StudyTable:
    """The table of what has been measured; cells without a value are left out.

    p_values: uncorrected, of (setting, column or `mean`) against the baseline.
    """
    whole = dict(values) | _means(settings, columns, values)
    corrected = _corrected([*(column.name for column in columns), MEAN], p_values or {})
    cells: dict[tuple[str, str], SeedCell] = {}
    for key, by_seed in whole.items():
        if not by_seed:
            continue
        numbers = list(by_seed.values())
        differences = paired_differences(by_seed, whole.get((baseline, key[1]), {}))
        is_baseline = key[0] == baseline or not differences
        cells[key] = SeedCell(
            mean=float(np.mean(numbers)),
            std=float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None,
            num_seeds=len(numbers),
            difference=None if is_baseline else float(np.mean(differences)),
            num_better=0 if is_baseline else sum(value > 0 for value in differences),
            num_paired=0 if is_baseline else len(differences),
            p_value=corrected.get(key),
            published=(published or {}).get(key),
        )
    return StudyTable(
        settings=tuple(settings), columns=tuple(columns), baseline=baseline, cells=cells, values=whole
    )


def paired_differences(left: Mapping[int, float], right: Mapping[int, float]) -> list[float]:
    """Left - right for each pair of `matched_seeds`."""
    return [left[mine] - right[other] for mine, other in matched_seeds(left, right)]


def _means(
    settings: Sequence[str], columns: Sequence[StudyColumn], values: Values
) -> dict[tuple[str, str], dict[int, float]]:
    """Seed by seed the mean over the columns that count, where a setting has them all."""
    counted = [column.name for column in columns if column.in_mean]
    found: dict[tuple[str, str], dict[int, float]] = {}
    for setting in settings:
        parts = [values.get((setting, name), {}) for name in counted]
        if not parts or not all(parts):
            continue
        seeds = set.intersection(*({*part} for part in parts))
        found[setting, MEAN] = {
            seed: float(np.mean([part[seed] for part in parts])) for seed in sorted(seeds)
        }
    return found


def _corrected(
    columns: Sequence[str], p_values: Mapping[tuple[str, str], float]
) -> dict[tuple[str, str], float]:
    corrected: dict[tuple[str, str], float] = {}
    for column in columns:
        keys = [key for key in p_values if key[1] == column]
        corrected |= zip(keys, holm_correction([p_values[key] for key in keys]), strict=True)
    return corrected
