"""A run: what one system ranked for every query, with document ids instead of row ids.

Owns the step from hits to a run. Must not know measures or searchers.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from indexing.hits import NO_HIT, Hits

# Query id -> (document id, score), best first.
Run: TypeAlias = dict[str, list[tuple[str, float]]]


def run_of_hits(hits: Hits, query_ids: Sequence[str], doc_ids: Mapping[int, str] | Sequence[str]) -> Run:
    """Name the documents of hits, keeping their order.

    Several rows may belong to one document (a document cut into passages): it keeps its best place.

    Args:
        hits: one row for each query.
        query_ids: their ids, in the same order.
        doc_ids: row id -> document id, as a mapping or, for ids 0 .. n - 1, a sequence.

    Raises:
        ValueError: other numbers of queries, or a row id without a document.
    """
    if hits.num_queries != len(query_ids):
        raise ValueError(f"run_of_hits: hits for {hits.num_queries} queries, {len(query_ids)} query ids")
    run: Run = {}
    for query_id, row_ids, scores in zip(query_ids, hits.ids.tolist(), hits.scores.tolist(), strict=True):
        best: dict[str, float] = {}
        for row_id, score in zip(row_ids, scores, strict=True):
            if row_id == NO_HIT:
                break
            try:
                doc_id = doc_ids[row_id]
            except (KeyError, IndexError) as error:
                raise ValueError(f"run_of_hits: row id {row_id} has no document id") from error
            best.setdefault(doc_id, score)
        run[query_id] = list(best.items())
    return run
