"""The configuration of promotion: when the champion's alias may move to a new version."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.collection_config import require


@dataclass(frozen=True, kw_only=True)
class PromoteConfig:
    """The gate between a registered version and the champion's alias. Values of measures are in [0, 1].

    measure: what must gain, the mean over all tasks that have it.
    min_gain: the least gain over the champion.
    max_p_value: of the paired test on the per-query values of that measure; 1 switches the test off.
    max_loss: how much any measure of any task may lose.
    champion, previous: the aliases of the version in use and of the one before it.
    automatic: whether a run tries to promote what it has registered.
    """

    measure: str = "ndcg_at_10"
    min_gain: float = 0.0
    max_p_value: float = 0.05
    max_loss: float = 0.01
    champion: str = "champion"
    previous: str = "previous"
    automatic: bool = False

    def __post_init__(self) -> None:
        require(-1 <= self.min_gain <= 1, "min_gain must be in [-1, 1], as measures are in [0, 1]")
        require(0 < self.max_p_value <= 1, "max_p_value must be above 0 and at most 1")
        require(0 <= self.max_loss <= 1, "max_loss must be in [0, 1], as measures are in [0, 1]")
        require(bool(self.champion and self.previous), "champion and previous must name aliases")
        require(self.champion != self.previous, "champion and previous must be different aliases")
