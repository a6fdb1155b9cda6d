"""How many labelled rows it takes to match an unsupervised training: bisection, one number after the other.

Owns the arithmetic of the search alone; running a number is the caller's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pipelines.study.study_config import LabelSearch

# Two numbers nearer than this are one.
_CLOSE = 1.1


@dataclass
class Bisection:
    """The search of one supervised setting on one domain.

    target, precision: score to be met, and one standard deviation of it.
    points: (number, mean score) of what has been tried.
    found: the number that matches; None while there is none, or where even `high` falls short.
    """

    search: LabelSearch
    target: float
    precision: float
    points: list[tuple[int, float]] = field(default_factory=list)
    found: int | None = None

    def next_number(self) -> int | None:
        """The number to try now; None when the search is over.

        First the largest, which tells whether there is anything to find; then the geometric middle of what is
        known to be too few and what is known to be enough.
        """
        if not self.points:
            return self.search.high
        if self.found is not None or len(self.points) >= self.search.steps:
            return None
        enough = [number for number, score in self.points if score >= self.target - self.precision]
        if not enough:
            return None
        few = [number for number, score in self.points if score < self.target - self.precision]
        low, high = max(few, default=self.search.low), min(enough)
        if high / low < _CLOSE:
            return None
        middle = round(math.sqrt(low * high))
        return None if middle in {number for number, _ in self.points} else middle

    def tell(self, number: int, score: float) -> None:
        """Takes the mean score of a number; one within the precision ends the search."""
        self.points.append((number, score))
        if abs(score - self.target) <= self.precision:
            self.found = number

    @property
    def answer(self) -> int | None:
        """The number that matches, or the least that is known to be enough; None where none is."""
        enough = [number for number, score in self.points if score >= self.target - self.precision]
        return self.found if self.found is not None else min(enough, default=None)
