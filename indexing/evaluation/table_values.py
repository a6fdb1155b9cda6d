"""The numbers of a task's table: cells, comparisons with the baseline, and which are significant or best.

Values only; `summary` and `pair_summary` make them, the report formats show them.
"""

from dataclasses import dataclass

from indexing.evaluation.significance import Interval

SIGNIFICANCE_LEVEL = 0.05
# Groups get columns of their own when they are so few (relations and Twitter sets, not forums).
MAX_SHOWN_GROUPS = 4


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One system against the baseline on one measure, paired by query.

    Attributes:
        difference: mean of system - baseline.
        p_value: two-sided, uncorrected.
        adjusted_p_value: Holm-corrected over the task's comparisons.
        num_wins: queries on which the system is better; `num_ties`, `num_losses` likewise.
    """

    difference: float
    p_value: float
    adjusted_p_value: float
    num_wins: int
    num_ties: int
    num_losses: int

    @property
    def is_significant(self) -> bool:
        """Whether the corrected p-value is below 0.05."""
        return self.adjusted_p_value < SIGNIFICANCE_LEVEL


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One system on one measure of one task; `comparison` is None for the baseline itself."""

    system: str
    measure: str
    interval: Interval
    is_best: bool
    comparison: Comparison | None


@dataclass(frozen=True, kw_only=True)
class TaskSummary:
    """One task's table: cells by (system, measure), in the order the rows came in.

    Attributes:
        num_queries: how many, in all groups together.
        measures: the main one first; those of single groups (`map.cite`) last.
        unit: what is counted, `queries` or `pairs`.
    """

    task: str
    num_queries: int
    systems: tuple[str, ...]
    measures: tuple[str, ...]
    cells: dict[tuple[str, str], Cell]
    unit: str = "queries"

    @property
    def main_measure(self) -> str:
        """The one that stands for the task in means over tasks."""
        return self.measures[0]


def shown_groups(groups: list[str]) -> list[str]:
    """The groups that get columns of their own: all of them when they are few, else none."""
    return groups if 2 <= len(groups) <= MAX_SHOWN_GROUPS else []
