"""Whether one score puts systems in the order of another: Spearman's correlation over systems, and verdicts.

Must not know files, studies or seeds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import scipy.stats

from indexing.evaluation.study_claims import JudgedClaim, Verdict

# With fewer systems an interval says nothing.
MIN_SYSTEMS = 5
_CONFIDENCE = 0.95
_ALMOST_ONE = 1 - 1e-9


@dataclass(frozen=True, kw_only=True)
class RankAgreement:
    """Spearman's correlation of two scores over the systems of a domain, with its 95 % interval."""

    domain: str
    rho: float
    low: float
    high: float
    num_systems: int

    @property
    def told(self) -> str:
        """In words."""
        interval = f"[{self.low:+.2f}, {self.high:+.2f}]"
        return f"{self.domain}: {self.rho:+.2f} {interval} over {self.num_systems} settings"


def rank_agreement(domain: str, first: Sequence[float], second: Sequence[float]) -> RankAgreement | None:
    """The agreement of two scores of the same systems; None for fewer than five, or scores all alike.

    The interval is of Fisher's z with the variance of Bonett and Wright (2000), (1 + rho^2 / 2) / (n - 3). It
    takes the systems for independent, which settings of one method are not, so it is rather too narrow.
    """
    num = len(first)
    if num < MIN_SYSTEMS or len({*first}) == 1 or len({*second}) == 1:
        return None
    rho = float(scipy.stats.spearmanr(first, second).statistic)
    z = math.atanh(max(-_ALMOST_ONE, min(_ALMOST_ONE, rho)))
    reach = float(scipy.stats.norm.ppf((1 + _CONFIDENCE) / 2)) * math.sqrt((1 + rho**2 / 2) / (num - 3))
    return RankAgreement(
        domain=domain, rho=rho, low=math.tanh(z - reach), high=math.tanh(z + reach), num_systems=num
    )


def judge_ranks(text: str, found: Sequence[RankAgreement], *, below: float) -> JudgedClaim:
    """Whether a score does not predict another: seen if the interval is below the bound in every domain.

    Not seen if it reaches to the bound or above with its lower end in every domain; else it cannot be told.
    """
    verdict: Verdict = "cannot be told"
    if found and all(one.high < below for one in found):
        verdict = "seen"
    elif found and all(one.low >= below for one in found):
        verdict = "not seen"
    return JudgedClaim(text=text, verdict=verdict, basis="; ".join(one.told for one in found))
