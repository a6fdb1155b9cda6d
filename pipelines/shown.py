"""What a report shows of single queries and pairs: texts, the first hits, the place of the right one.

One small Parquet file beside the scores of a system on a task, so that reports are made without encoders,
tasks or collections at hand. Owns the two schemas. Must not know measures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from indexing.evaluation.report_text import shorten_text
from indexing.evaluation.run import Run
from pipelines.prepare import write_parquet
from pipelines.storage import Location

SHOWN_HITS = 3
_TEXT_CHARS = 300
_HIT_TYPE = pa.list_(
    pa.struct(
        [("doc_id", pa.string()), ("text", pa.string()), ("score", pa.float64()), ("relevant", pa.bool_())]
    )
)
_SCHEMA = pa.schema(
    [
        ("group", pa.string()),
        ("query_id", pa.string()),
        ("query", pa.string()),
        ("relevant_text", pa.string()),
        ("best_rank", pa.int32()),
        ("hits", _HIT_TYPE),
    ]
)


@dataclass(frozen=True, kw_only=True)
class ShownQuery:
    """A query as a report shows it.

    Attributes:
        relevant_text: of a relevant document; for a pair the second text.
        best_rank: place of the first relevant document, 0 = not found; for a pair its place by score.
        hits: the first few, each with doc_id, text, score and whether it is relevant.
    """

    group: str
    query_id: str
    query: str
    relevant_text: str
    best_rank: int
    hits: Sequence[dict[str, Any]]


def shown_of_run(
    run: Run,
    queries: Iterable[tuple[str, str, set[str]]],
    text_of: Callable[[str, str], str],
    *,
    group: str = "",
) -> list[ShownQuery]:
    """What is shown of a ranking.

    queries: id, text and relevant document ids of each query.
    text_of: (query id, document id) -> the document's text, "" when it is not there.
    """
    shown = []
    for query_id, query, relevant in queries:
        ranking = run.get(query_id, [])
        places = [place for place, (doc_id, _) in enumerate(ranking, 1) if doc_id in relevant]
        best = ranking[places[0] - 1][0] if places else min(relevant, default="")
        hits = [
            {
                "doc_id": doc_id,
                "text": shorten_text(text_of(query_id, doc_id), limit=_TEXT_CHARS),
                "score": score,
                "relevant": doc_id in relevant,
            }
            for doc_id, score in ranking[:SHOWN_HITS]
        ]
        shown.append(
            ShownQuery(
                group=group,
                query_id=query_id,
                query=shorten_text(query, limit=_TEXT_CHARS),
                relevant_text=shorten_text(text_of(query_id, best), limit=_TEXT_CHARS),
                best_rank=places[0] if places else 0,
                hits=hits,
            )
        )
    return shown


def write_shown(place: Location, rows: Sequence[ShownQuery]) -> None:
    """Writes the rows to one file."""
    write_parquet(place, pa.Table.from_pylist([asdict(row) for row in rows], schema=_SCHEMA))


def read_shown(place: Location) -> list[ShownQuery]:
    """Reads what `write_shown` wrote."""
    with place.filesystem.open_input_file(place.path) as stream:
        return [ShownQuery(**row) for row in pq.read_table(stream).to_pylist()]
