"""From hits to a run of documents."""

import numpy as np
import pytest

from indexing.evaluation.run import run_of_hits
from indexing.hits import NO_HIT, Hits


def test_a_document_keeps_the_place_of_its_best_passage():
    hits = Hits(
        np.array([[3, 1, 2, NO_HIT]], dtype=np.int64),
        np.array([[0.9, 0.8, 0.7, -np.inf]], dtype=np.float32),
    )
    run = run_of_hits(hits, ["q"], {1: "b", 2: "a", 3: "a"})
    assert [(doc, round(score, 3)) for doc, score in run["q"]] == [("a", 0.9), ("b", 0.8)]


def test_a_query_without_hits_has_an_empty_ranking():
    hits = Hits(np.array([[NO_HIT]], dtype=np.int64), np.array([[-np.inf]], dtype=np.float32))
    assert run_of_hits(hits, ["q"], []) == {"q": []}


def test_unknown_rows_and_other_counts_are_refused():
    hits = Hits(np.array([[5]], dtype=np.int64), np.array([[1.0]], dtype=np.float32))
    with pytest.raises(ValueError, match="row id 5 has no document"):
        run_of_hits(hits, ["q"], ["a"])
    with pytest.raises(ValueError, match="1 queries, 2 query ids"):
        run_of_hits(hits, ["q", "r"], {5: "a"})
