"""Reciprocal rank fusion against its formula."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexing.fusion import reciprocal_rank_fusion
from indexing.hits import NO_HIT, Hits

RANKING = st.lists(st.integers(0, 12), unique=True, max_size=6)


def hits_of(ranking, width=6):
    ids = ranking + [NO_HIT] * (width - len(ranking))
    scores = [float(-place) for place in range(len(ranking))] + [-np.inf] * (width - len(ranking))
    return Hits(np.array([ids], dtype=np.int64), np.array([scores], dtype=np.float32))


@given(rankings=st.lists(RANKING, min_size=1, max_size=4), k=st.integers(1, 15))
def test_fusion_follows_the_formula(rankings, k):
    weights = [1.0 + n for n in range(len(rankings))]
    totals: dict[int, float] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        for rank, doc in enumerate(ranking, start=1):
            totals[doc] = totals.get(doc, 0.0) + weight / (60 + rank)
    wanted = sorted(totals, key=lambda doc: (-np.float32(totals[doc]), doc))[:k]
    found = reciprocal_rank_fusion([hits_of(r) for r in rankings], k, weights=weights)
    assert found.ids[0].tolist() == wanted + [NO_HIT] * (k - len(wanted))
    scores = found.scores[0, : len(wanted)].tolist()
    assert scores == pytest.approx([totals[doc] for doc in wanted], rel=1e-6)


def test_one_ranking_keeps_its_order():
    assert reciprocal_rank_fusion([hits_of([5, 1, 3])], 3).ids.tolist() == [[5, 1, 3]]


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="same queries"):
        reciprocal_rank_fusion([], 3)
    with pytest.raises(ValueError, match="1 positive weights"):
        reciprocal_rank_fusion([hits_of([1])], 3, weights=[1.0, 2.0])
    with pytest.raises(ValueError, match="positive weights"):
        reciprocal_rank_fusion([hits_of([1])], 3, weights=[0.0])
