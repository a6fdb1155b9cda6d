"""Tasks that carry their own texts: pairs, candidates to re-rank, and queries over their own documents.

Owns the values and what is checked when one is made. Must not know files, encoders or measures. (Queries over
a collection that lies elsewhere are `tasks.RetrievalTask`.) `group` splits a task into parts whose scores are
averaged with equal weight: the forums of CQADupStack, the four relations of SciDocs, the two sets of
TwitterPara; it is "" where there are none.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from indexing.arrays import shorten


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two texts and what people said of them.

    Attributes:
        label: a similarity, on the data's own scale.
        is_positive: for average precision: True, False, or None = left out of it.
    """

    pair_id: str
    left: str
    right: str
    label: float
    is_positive: bool | None = None
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class PairTask:
    """Pairs to be scored. `counts`: what the reader left out, by reason.

    Raises:
        ValueError: no pairs, a repeated pair id, or a group whose average precision is undefined.
    """

    name: str
    protocol: str
    pairs: tuple[Pair, ...]
    counts: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.pairs:
            raise ValueError(f"task {self.name}: no pairs")
        _refuse_repeated(self.name, "pair ids", ((pair.group, pair.pair_id) for pair in self.pairs))
        for group in {pair.group for pair in self.pairs}:
            kinds = {pair.is_positive for pair in self.pairs if pair.group == group}
            if kinds != {None} and True not in kinds:
                raise ValueError(f"task {self.name}: no positive pair{f' in {group}' if group else ''}")


@dataclass(frozen=True, kw_only=True)
class RerankQuery:
    """A query and its candidates, in the order that breaks ties.

    Attributes:
        doc_ids, texts: of the candidates, one for one.
        judged: document id -> grade; it may name documents that are no candidates, which then count as not
            found.
    """

    query_id: str
    query: str
    doc_ids: tuple[str, ...]
    texts: tuple[str, ...]
    judged: Mapping[str, int]
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class RerankTask:
    """Queries with candidates. `measures`: names as in `measures.Measure`, the main one first.

    Raises:
        ValueError: no queries, a repeated query id or candidate, counts that differ.
    """

    name: str
    protocol: str
    queries: tuple[RerankQuery, ...]
    measures: tuple[str, ...]
    counts: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.queries:
            raise ValueError(f"task {self.name}: no query with a relevant candidate")
        _refuse_repeated(self.name, "query ids", ((query.group, query.query_id) for query in self.queries))
        for query in self.queries:
            if len(query.doc_ids) != len(query.texts):
                raise ValueError(
                    f"task {self.name}: query {query.query_id!r} has {len(query.doc_ids)} candidate ids and "
                    f"{len(query.texts)} texts"
                )
            _refuse_repeated(self.name, f"candidates of query {query.query_id!r}", query.doc_ids)


@dataclass(frozen=True, kw_only=True)
class CorpusPart:
    """Queries over documents of their own.

    Attributes:
        doc_ids, documents: one for one; an id may repeat (passages of one document).
        qrels: query id -> document id -> grade.
    """

    query_ids: tuple[str, ...]
    queries: tuple[str, ...]
    doc_ids: tuple[str, ...]
    documents: tuple[str, ...]
    qrels: Mapping[str, Mapping[str, int]]
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class CorpusTask:
    """Retrieval over the task's own documents, the best `top_k` for each query.

    Raises:
        ValueError: no queries or documents in a part, or repeated query ids.
    """

    name: str
    protocol: str
    parts: tuple[CorpusPart, ...]
    measures: tuple[str, ...]
    top_k: int = 100
    counts: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for part in self.parts:
            if not part.query_ids or not part.documents:
                where = f" {part.group}" if part.group else ""
                raise ValueError(f"task {self.name}{where}: expected at least one query and one document")
            _refuse_repeated(self.name, "query ids", part.query_ids)


TextTask: TypeAlias = PairTask | RerankTask | CorpusTask


def _refuse_repeated(name: str, what: str, ids: Iterable[object]) -> None:
    repeated = [item for item, count in Counter(ids).items() if count > 1]
    if repeated:
        raise ValueError(f"task {name}: repeated {what}: {shorten(repeated)}")
