"""What a report is made of: plain values, given by whoever ran the evaluation.

Owns the input types of `report.py`. Must not know formats or statistics.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from indexing.evaluation.pair_rows import PairRow
from indexing.evaluation.rows import PerQueryRow


@dataclass(frozen=True, kw_only=True)
class ExampleHit:
    """A document that a system ranked for an example query; `text` may be cut by the caller."""

    doc_id: str
    text: str
    score: float
    is_relevant: bool


@dataclass(frozen=True, kw_only=True)
class SystemRanking:
    """One system's answer to an example query.

    Attributes:
        system: as in the rows.
        best_relevant_rank: place of the first relevant document, from 1; None = not found.
        hits: the first few documents, best first.
    """

    system: str
    best_relevant_rank: int | None
    hits: tuple[ExampleHit, ...]


@dataclass(frozen=True, kw_only=True)
class QueryExample:
    """An example query with the answers of several systems.

    Attributes:
        label: why it is shown, for instance "biggest gain"; may be empty.
        relevant_texts: texts of relevant documents, so that a reader can judge the hits.
    """

    task: str
    query_id: str
    query: str
    label: str = ""
    relevant_texts: tuple[str, ...] = ()
    rankings: tuple[SystemRanking, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line in a plot: `points` are (x, y), finite; curves of equal labels and section share a plot.

    spreads: the half width of a band around each point; empty for none. band: what it is, in words.
    """

    name: str
    y_label: str
    points: tuple[tuple[float, float], ...]
    x_label: str = "step"
    section: str = "Training"
    spreads: tuple[float, ...] = ()
    band: str = ""


@dataclass(frozen=True, kw_only=True)
class Mover:
    """A query, or a pair, that gained or lost much from the baseline to another system.

    Attributes:
        text: the query, or the pair's first text.
        target: a relevant document, or the pair's second text.
        before, after: where it stood, in words ("place 7", "not found").
        change: in the task's main measure, or in the share of pairs that it moved nearer to its label.
    """

    task: str
    text: str
    target: str
    before: str
    after: str
    change: float


@dataclass(frozen=True, kw_only=True)
class FactBlock:
    """A titled list of facts: configuration, versions, corpus and drop counts; may be nested."""

    title: str
    facts: Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class ReportInput:
    """Everything in one report.

    Attributes:
        title: headline.
        rows: per-query rows of all systems and tasks.
        baseline: name of the system that the others are compared with.
        summary: one or two sentences under the headline; may be empty.
        pair_rows: likewise, of tasks of pairs.
        notes: remarks such as skipped queries.
        examples, curves, facts: optional sections.
        movers: winners and losers between the two systems that `moved` names, in the order shown.
        map_svg: a picture of the corpus, an `<svg>` element that is put into the page as it is; may be empty.
        seed: of bootstrap and randomisation.
    """

    title: str
    rows: tuple[PerQueryRow, ...]
    baseline: str
    summary: str = ""
    notes: tuple[str, ...] = ()
    examples: tuple[QueryExample, ...] = ()
    curves: tuple[Curve, ...] = ()
    facts: tuple[FactBlock, ...] = field(default=())
    pair_rows: tuple[PairRow, ...] = ()
    movers: tuple[Mover, ...] = ()
    moved: tuple[str, str] = ("", "")
    map_svg: str = ""
    seed: int = 0
