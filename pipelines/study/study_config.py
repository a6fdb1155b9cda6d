"""The configuration of a study: what varies, on which texts, over which seeds, and what is claimed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from indexing.evaluation.readers import TaskKind
from pipelines.collection_config import require

_NAME = re.compile(r"[A-Za-z0-9._-]+")
# A list of values of the dotted key that the axis is named after, or overrides by label.
Axis: TypeAlias = list[Any] | dict[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class SystemConfig:
    """What a cell puts to the test (`system` in a recipe).

    kind: `trained` trains by the recipe; `start` is its encoder before training; `sent2vec` is trained on the
    corpus; `bm25`, `words` and `words_idf` (averaged word vectors) need no training; `encoder` is any other.
    source: file of word vectors, or folder or hub name of an encoder.
    transform: fitted on the corpus behind a Transformer.
    max_texts: of the corpus, for transforms and sent2vec.
    sent2vec_dim, sent2vec_epochs, sent2vec_min_count: as in `tsdae fit sent2vec`.
    flow_lr, flow_epochs: of BERT-flow; the paper's rate is the default.
    """

    kind: Literal["trained", "start", "sent2vec", "bm25", "words", "words_idf", "encoder"] = "trained"
    source: str = ""
    transform: Literal["none", "whitening", "flow"] = "none"
    max_texts: int = 100_000
    sent2vec_dim: int = 300
    sent2vec_epochs: int = 9
    sent2vec_min_count: int = 2
    flow_lr: float = 1e-6
    flow_epochs: int = 1

    def __post_init__(self) -> None:
        needs_source = self.kind in ("words", "words_idf", "encoder")
        require(needs_source == bool(self.source), f"system.kind {self.kind} and system.source do not fit")
        require(
            self.transform == "none" or self.kind in ("trained", "start"),
            f"system.transform goes with a Transformer, not with kind {self.kind}",
        )

    @property
    def trains(self) -> bool:
        """Whether the training loop runs."""
        return self.kind == "trained"

    @property
    def reads_corpus(self) -> bool:
        """Whether the cell needs the domain's texts."""
        return self.kind in ("trained", "sent2vec") or self.transform != "none"


@dataclass(frozen=True, kw_only=True)
class StudyTask:
    """What encoders are scored on; a task that carries its own texts.

    in_mean: whether it counts for the mean over tasks.
    published: the paper's figures by setting, times 100, shown beside ours.
    """

    folder: str
    kind: TaskKind
    split: str = "test"
    qrels: str | None = None
    top_k: int = 100
    in_mean: bool = True
    published: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Domain:
    """A domain: the text that encoders are trained on there, and the tasks they are scored on.

    corpus: its input, as `corpus.input` of a run.
    set: further overrides of the recipe, by dotted key.
    """

    corpus: str
    tasks: tuple[str, ...]
    set: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence that the figures may bear out, judged by the difference `better` - `than`.

    within: points of the tables (times 100); 0 asks whether `better` is above, more whether the two are so
    near. ahead: with `within`, `better` must be above too. task: a column instead of the mean over the tasks.
    labels_below: judges the study's search instead: whether fewer labelled rows than this let `better`, one
    of its settings, match `than`.
    """

    text: str
    better: str
    than: str
    within: float = 0.0
    ahead: bool = False
    task: str = ""
    labels_below: int = 0

    def __post_init__(self) -> None:
        require(self.within >= 0, "claims: within must not be negative")
        require(self.within > 0 or not self.ahead, f"claim '{self.text}': ahead goes with within")
        require(
            self.labels_below == 0 or not (self.within or self.task),
            f"claim '{self.text}': labels_below goes without within and task",
        )


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


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """A study.

    title, about: head of the report.
    workspace: `cells/` and `material/` in it are shared by all its studies; reports lie in `NAME/SIZE/`.
    base: the recipe, with the keys of a run's configuration, and `system`.
    axes: by name; every combination of their values is a setting. An axis is a list of values of the dotted
    key that it is named after, or overrides (dotted keys) by label.
    seeds: every setting with a random choice is run with each.
    score_steps: also score the encoder after so many steps of its training.
    baseline: the setting that others are compared with; "" takes the first.
    smallest_effect: points of the tables; a claim that something is above needs a difference of as many.
    keep_encoders: off removes a cell's encoder once it is scored; another task then trains it anew.
    """

    name: str
    title: str = ""
    about: str = ""
    workspace: str = "work/studies"
    base: dict[str, Any] = field(default_factory=dict)
    tasks: dict[str, StudyTask] = field(default_factory=dict)
    domains: dict[str, Domain] = field(default_factory=dict)
    axes: dict[str, Axis] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2)
    score_steps: tuple[int, ...] = ()
    baseline: str = ""
    claims: tuple[Claim, ...] = ()
    smallest_effect: float = 0.5
    search: LabelSearch | None = None
    keep_encoders: bool = True

    def __post_init__(self) -> None:
        require(
            _NAME.fullmatch(self.name) is not None, f"study name '{self.name}': letters, digits, ._- only"
        )
        require(bool(self.seeds), "seeds must name at least one")
        require(len(set(self.seeds)) == len(self.seeds), "seeds must differ")
        require(bool(self.domains), "a study needs at least one domain")
        for name, domain in self.domains.items():
            require(bool(domain.tasks), f"domain {name} names no task")
            for task in domain.tasks:
                require(
                    task in self.tasks, f"domain {name}: no task '{task}'; there is {', '.join(self.tasks)}"
                )
        require(self.smallest_effect >= 0, "smallest_effect must not be negative")
        for claim in self.claims:
            searched = self.search is not None and (
                claim.better in self.search.settings and claim.than == self.search.match
            )
            require(
                claim.labels_below == 0 or searched,
                f"claim '{claim.text}': labels_below is about the study's search: better must be one of its "
                "settings, than its match",
            )
        for axis, values in self.axes.items():
            require(bool(values), f"axis '{axis}' has no value")
