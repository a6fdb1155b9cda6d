"""The configuration of a study: what varies, on which texts, over which seeds, and what is compared."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from indexing.evaluation.readers import TaskKind
from pipelines.collection_config import require
from pipelines.study.claim_config import Claim, LabelSearch
from pipelines.study.tune_config import TuneConfig

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
    published: figures of others by setting, times 100, shown beside ours; published_in: only in this domain.
    """

    folder: str
    kind: TaskKind
    split: str = "test"
    qrels: str | None = None
    top_k: int = 100
    in_mean: bool = True
    published: dict[str, float] = field(default_factory=dict)
    published_in: str = ""


@dataclass(frozen=True, kw_only=True)
class Domain:
    """A domain: the text that encoders are trained on there, and the tasks they are scored on.

    corpus: its input, as `corpus.input` of a run.
    dev: tasks that a `tune` goes by, never reported.
    set: further overrides of the recipe, by dotted key.
    """

    corpus: str
    tasks: tuple[str, ...]
    dev: tuple[str, ...] = ()
    set: dict[str, Any] = field(default_factory=dict)


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
    published_mean: the paper's means over its tasks by setting, times 100, shown beside ours.
    smallest_effect: points of the tables; a claim that something is above needs a difference of as many.
    tune: the search on development data before the test; None takes the recipe as it is.
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
    published_mean: dict[str, float] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    smallest_effect: float = 0.5
    tune: TuneConfig | None = None
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
            self._check_domain(name, domain)
        require(self.smallest_effect >= 0, "smallest_effect must not be negative")
        for claim in self.claims:
            self._check_claim(claim)
        for axis, values in self.axes.items():
            require(bool(values), f"axis '{axis}' has no value")

    def _check_domain(self, name: str, domain: Domain) -> None:
        require(bool(domain.tasks), f"domain {name} names no task")
        for task in (*domain.tasks, *domain.dev):
            require(task in self.tasks, f"domain {name}: no task '{task}'; there is {', '.join(self.tasks)}")
        require(
            self.tune is None or bool(domain.dev),
            f"domain {name} has no dev task to tune on; name one, or set tune to null",
        )

    def _check_claim(self, claim: Claim) -> None:
        searched = self.search is not None and (
            claim.better in self.search.settings and claim.than == self.search.match
        )
        require(
            claim.labels_below == 0 or searched,
            f"claim '{claim.text}': labels_below is about the study's search: better must be one of its "
            "settings, than its match",
        )
        require(
            claim.unpredicted_by in ("", *self.tasks),
            f"claim '{claim.text}': no task '{claim.unpredicted_by}'; there is {', '.join(self.tasks)}",
        )
