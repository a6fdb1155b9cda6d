"""The configuration of a study's claims, and of its search for labelled rows."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.collection_config import require

# As `than` of a claim: every other setting.
ALL_OTHERS = "*"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence that the figures may bear out, by default judged by the difference `better` - `than`.

    better, than: settings; `than: "*"` is every other one, and the claim is seen if it is against each.
    within: points of the tables (times 100); 0 asks whether `better` is above, more whether the two are so
    near. ahead: with `within`, `better` must be above too. not_below: points that `better` may at most be
    below by; above is as well. task: a column instead of the mean over the tasks.
    labels_below: judges the study's search instead: whether fewer labelled rows than this let `better`, one
    of its settings, match `than`.
    unpredicted_by: a task instead of settings: whether in every domain the order of the settings on it has a
    rank correlation below `rank_below` with their order on the domain's tasks that count for the mean.
    """

    text: str
    better: str = ""
    than: str = ""
    within: float = 0.0
    ahead: bool = False
    not_below: float = 0.0
    task: str = ""
    labels_below: int = 0
    unpredicted_by: str = ""
    rank_below: float = 0.7

    def __post_init__(self) -> None:
        where = f"claim '{self.text}': "
        named = bool(self.better) and bool(self.than)
        bounded = self.within or self.not_below
        plain = not (self.better or self.than or bounded or self.task or self.labels_below)
        require(
            plain if self.unpredicted_by else named,
            where + "give better and than, or unpredicted_by and none of the others",
        )
        require(0 < self.rank_below <= 1, where + "rank_below must be above 0 and at most 1")
        require(self.within >= 0, where + "within must not be negative")
        require(self.not_below >= 0, where + "not_below must not be negative")
        require(not (self.within and self.not_below), where + "give within or not_below")
        require(self.within > 0 or not self.ahead, where + "ahead goes with within")
        require(
            self.labels_below == 0 or not (bounded or self.task),
            where + "labels_below goes without within, not_below and task",
        )

    @property
    def settings(self) -> list[str]:
        """The settings that it names."""
        return [name for name in (self.better, self.than) if name not in ("", ALL_OTHERS)]


@dataclass(frozen=True, kw_only=True)
class LabelSearch:
    """The least number of labelled rows with which a supervised training matches an unsupervised one.

    match: setting whose mean over the seeds is to be met; the precision is one standard deviation of it.
    settings: the supervised ones, each searched by itself.
    key: where the number goes; low, high: where it is looked for; steps: at most so many numbers are tried,
    beside 0, the encoder before training.
    """

    match: str
    settings: tuple[str, ...]
    key: str = "train.max_rows"
    low: int = 64
    high: int = 65_536
    steps: int = 8

    def __post_init__(self) -> None:
        require(1 <= self.low < self.high, "search: low must be at least 1 and less than high")
        require(self.steps >= 2, "search: steps must be at least 2, the largest number and the smallest")
