"""How many labelled rows it takes to match an unsupervised training: bisection, one number after the other.

Owns the arithmetic of the search alone; running a number is the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pipelines.study.claim_config import LabelSearch

# Two numbers nearer than this are one.
_CLOSE = 1.1


@dataclass(frozen=True)
class Trial:
    """A number of rows that has been tried: mean and standard deviation of its scores over the seeds."""

    number: int
    score: float
    std: float


@dataclass
class Bisection:
    """The search of one supervised setting on one domain, for the least number whose mean score is enough.

    target, precision: score to be met, and one standard deviation of it: enough is what is not lower by more.
    trials: what has been tried; the number 0 is the encoder before any training.
    """

    search: LabelSearch
    target: float
    precision: float
    trials: list[Trial] = field(default_factory=list)

    def next_number(self) -> int | None:
        """The number to try now; None when the search is over.

        First none at all, then the largest, which tells whether there is anything to find, then the smallest,
        then the geometric middle of the least that is enough and the largest below it that is too few, until
        the two are near. A score that falls again with more rows is noise and does not widen the search.
        """
        search, enough = self.search, self.answer
        tried = {trial.number for trial in self.trials}
        for number in (0, search.high, search.low):
            if number not in tried:
                return number
            if (number == 0 and enough == 0) or (number > 0 and enough is None):
                return None
        few = self.too_few
        if enough is None or not few or len(tried) > search.steps or enough / few < _CLOSE:
            return None
        middle = round(math.sqrt(few * enough))
        return None if middle in tried else middle

    def tell(self, number: int, scores: Sequence[float]) -> None:
        """Takes the scores of a number, one for each seed."""
        std = float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0
        self.trials.append(Trial(number, float(np.mean(scores)), std))

    @property
    def answer(self) -> int | None:
        """The least number that is known to be enough; None where there is none."""
        return min((trial.number for trial in self.trials if self._is_enough(trial)), default=None)

    @property
    def too_few(self) -> int | None:
        """The largest number below the answer that is known not to be enough; None where there is none."""
        answer = self.answer
        few = [trial.number for trial in self.trials if not self._is_enough(trial)]
        return max((number for number in few if answer is None or number < answer), default=None)

    def _is_enough(self, trial: Trial) -> bool:
        return trial.score >= self.target - self.precision
