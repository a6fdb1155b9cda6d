"""Reciprocal rank fusion against its formula."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexing.fusion import FusionConfig, fuse, fusion_with, reciprocal_rank_fusion
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


def test_the_k_of_reciprocal_ranks_and_the_weight_are_settings():
    dense, lexical = hits_of([1, 2, 3]), hits_of([3, 4])
    found = fuse(dense, lexical, 4, FusionConfig(rank_offset=1, dense_weight=0.25))
    wanted = {1: 0.25 / 2, 2: 0.25 / 3, 3: 0.25 / 4 + 0.75 / 2, 4: 0.75 / 3}
    assert found.ids[0].tolist() == [3, 4, 1, 2]
    assert found.scores[0].tolist() == pytest.approx([wanted[i] for i in (3, 4, 1, 2)])


def test_one_search_changes_what_it_names_and_keeps_the_rest():
    base = FusionConfig(rank_offset=7, dense_weight=0.9, depth=33)
    assert fusion_with(base) == base
    assert fusion_with() == FusionConfig()
    assert fusion_with(base, rrf_k=5) == FusionConfig(rank_offset=5, dense_weight=0.9, depth=33)
    weighted = fusion_with(base, kind="weighted", dense_weight=0.1)
    assert weighted == FusionConfig(kind="weighted", rank_offset=7, dense_weight=0.1, depth=33)
    with pytest.raises(ValueError, match="goes with the fusion rrf"):
        fusion_with(weighted, rrf_k=5)
    with pytest.raises(ValueError, match=r"rank_offset must be at least 1"):
        fusion_with(rrf_k=0)
    with pytest.raises(ValueError, match=r"dense_weight must be between 0 and 1, got 1\.5"):
        fusion_with(dense_weight=1.5)
