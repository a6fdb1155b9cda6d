"""Whether a study's figures bear a claim out: verdicts on differences and on numbers of labelled rows.

Owns the rules. Must not know files, or how a report looks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.stats

from indexing.evaluation.seeds import Comparison
from indexing.evaluation.significance import holm_correction
from indexing.evaluation.study_table import MEAN, StudyTable, paired_differences
from indexing.evaluation.table_values import SIGNIFICANCE_LEVEL

Verdict = Literal["seen", "not seen", "cannot be told"]
# Better, than and column of a claim.
Compared = tuple[str, str, str]
_CONFIDENCE = 0.95
# A share of the seeds in the variance smaller than one part in this leaves a normal interval.
_MANY = 1e6


@dataclass(frozen=True, kw_only=True)
class Question:
    """A claim about two settings in a column.

    within: 0 asks whether `better` is above `than`; more, whether the two are so near, in the unit of the
    measure. ahead: with `within`, `better` must also be above. not_below: more than 0 asks whether `better`
    is above, equal, or below by no more than this (non-inferiority).
    """

    text: str
    better: str
    than: str
    within: float = 0.0
    ahead: bool = False
    not_below: float = 0.0
    column: str = MEAN

    @property
    def compared(self) -> Compared:
        """What its test is about; claims with the same one share it."""
        return self.better, self.than, self.column


@dataclass(frozen=True, kw_only=True)
class LabelsFound:
    """What a search for labelled rows has found in a domain.

    answer: the least number that is enough, None where `high` is not. too_few: the largest below it that is
    not. is_judged: whether the score to be met has a spread over seeds.
    """

    domain: str
    answer: int | None
    too_few: int | None
    high: int
    is_judged: bool


@dataclass(frozen=True, kw_only=True)
class JudgedClaim:
    """A claim with what it rests on, and what follows.

    Attributes:
        difference, low, high: mean over the paired seeds, and its interval over seeds and queries.
        p_value: of the test over queries, Holm-corrected over the study's claims; None without rows.
        num_seeds: pairs of seeds.
        basis: what a claim about labelled rows rests on, in words.
    """

    text: str
    verdict: Verdict
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    num_seeds: int = 0
    basis: str = ""


def judge_all(
    table: StudyTable,
    questions: Sequence[Question],
    comparisons: Mapping[Compared, Comparison],
    *,
    smallest: float,
) -> list[JudgedClaim]:
    """The verdict on each claim.

    comparisons: over the queries; what is missing cannot be told.
    smallest: the smallest difference that counts, in the unit of the measure.
    """
    asked = [key for key in dict.fromkeys(one.compared for one in questions) if key in comparisons]
    corrected = dict(zip(asked, holm_correction([comparisons[key].p_value for key in asked]), strict=True))
    return [
        _judge(table, one, comparisons.get(one.compared), corrected.get(one.compared), smallest)
        for one in questions
    ]


def judge_together(text: str, others: Sequence[str], judged: Sequence[JudgedClaim]) -> JudgedClaim:
    """One claim against many: seen if it is against each of them, not seen if it is not against one.

    others: what `judged` is against, in the same order.
    """
    by_verdict: dict[Verdict, list[str]] = {}
    for other, one in zip(others, judged, strict=True):
        by_verdict.setdefault(one.verdict, []).append(other)
    verdict: Verdict = "cannot be told"
    if "not seen" in by_verdict:
        verdict = "not seen"
    elif judged and len(by_verdict.get("seen", ())) == len(judged):
        verdict = "seen"
    told = [f"{name} against {', '.join(found)}" for name, found in by_verdict.items()]
    return JudgedClaim(text=text, verdict=verdict, basis="; ".join(told))


def joint_interval(differences: Sequence[float], error: float) -> tuple[float, float]:
    """95 % interval of the mean of at least two differences, one for each seed, over seeds and queries.

    The variance of the mean over seeds and that over queries (`error` squared) are added; Student's t has
    Welch and Satterthwaite's degrees of freedom. It is never narrower than the interval over seeds alone.
    """
    num, mean = len(differences), float(np.mean(differences))
    of_seeds = float(np.var(differences, ddof=1)) / num
    total = of_seeds + error**2
    share = min(total / of_seeds, _MANY) if of_seeds > 0 else _MANY
    upper = (1 + _CONFIDENCE) / 2
    reach = max(
        math.sqrt(total) * float(scipy.stats.t.ppf(upper, (num - 1) * share**2)),
        math.sqrt(of_seeds) * float(scipy.stats.t.ppf(upper, num - 1)),
    )
    return mean - reach, mean + reach


def judge_labels(text: str, found: Sequence[LabelsFound], *, below: int) -> JudgedClaim:
    """Whether fewer than `below` labelled rows are enough: seen if in every domain, not seen if in none.

    Where the encoder before training is enough, the score to be met is too low to say anything of labels.
    """
    told = [
        f"{one.domain}: {f'more than {one.high:,}' if one.answer is None else f'{one.answer:,}'} rows"
        for one in found
    ]
    few = [one.is_judged and one.answer is not None and 0 < one.answer < below for one in found]
    many = [one.is_judged and _is_many(one, below) for one in found]
    verdict: Verdict = "cannot be told"
    if found and (all(few) or all(many)):
        verdict = "seen" if all(few) else "not seen"
    return JudgedClaim(text=text, verdict=verdict, basis="; ".join(told))


def _is_many(found: LabelsFound, below: int) -> bool:
    """Whether so many rows are known to be too few."""
    return (found.high if found.answer is None else found.too_few or 0) >= below


def _judge(
    table: StudyTable, asked: Question, comparison: Comparison | None, p_value: float | None, smallest: float
) -> JudgedClaim:
    sides = [table.values.get((side, asked.column), {}) for side in (asked.better, asked.than)]
    differences = paired_differences(*sides)
    if not differences:
        return JudgedClaim(text=asked.text, verdict="cannot be told")
    mean = float(np.mean(differences))
    low = high = None
    verdict: Verdict = "cannot be told"
    if len(differences) > 1 and comparison is not None and p_value is not None:
        low, high = joint_interval(differences, comparison.error)
        is_sure = p_value < SIGNIFICANCE_LEVEL
        if asked.within:
            verdict = _nearness(asked, low, high, is_sure)
        elif asked.not_below:
            verdict = _not_below(asked.not_below, low, high)
        elif low > 0 and is_sure and mean >= smallest:
            verdict = "seen"
        elif high < max(smallest, 0.0):
            verdict = "not seen"
    return JudgedClaim(
        text=asked.text,
        verdict=verdict,
        difference=mean,
        low=low,
        high=high,
        p_value=p_value,
        num_seeds=len(differences),
    )


def _not_below(margin: float, low: float, high: float) -> Verdict:
    if low >= -margin:
        return "seen"
    return "not seen" if high < -margin else "cannot be told"


def _nearness(asked: Question, low: float, high: float, is_sure: bool) -> Verdict:
    if low > asked.within or high < (0.0 if asked.ahead else -asked.within):
        return "not seen"
    is_near = -asked.within <= low and high <= asked.within
    return "seen" if is_near and (not asked.ahead or (low > 0 and is_sure)) else "cannot be told"
