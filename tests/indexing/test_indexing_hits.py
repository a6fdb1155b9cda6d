"""The tie rule, merging and recall against naive versions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexing.hits import NO_HIT, Hits, merge_hits, recall_at, top_k_of

# Few distinct scores, so that ties are everywhere.
SCORES = st.sampled_from([-1.0, -0.0, 0.0, 0.5, 0.5, 1.0])
CORPORA = st.dictionaries(st.integers(0, 60), SCORES, min_size=0, max_size=25)


def naive_top_k(scores: dict[int, float], k: int) -> tuple[list[int], list[float]]:
    ranked = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:k]
    ids = [doc for doc, _ in ranked] + [NO_HIT] * (k - len(ranked))
    return ids, [score for _, score in ranked] + [-np.inf] * (k - len(ranked))


def hits_of(scores: dict[int, float], k: int) -> Hits:
    ids, values = naive_top_k(scores, k)
    return Hits(np.array([ids], dtype=np.int64), np.array([values], dtype=np.float32))


@given(corpus=CORPORA, k=st.integers(1, 30), seed=st.integers(0, 5))
def test_top_k_orders_by_score_then_id_whatever_the_input_order(corpus, k, seed):
    docs = np.random.default_rng(seed).permutation(np.array(list(corpus), dtype=np.int64))
    scores = [corpus[int(doc)] for doc in docs]
    found = top_k_of(docs.reshape(1, -1), np.array(scores, dtype=np.float32).reshape(1, -1), k)
    assert found.equals(hits_of(corpus, k))


@given(corpus=CORPORA, k=st.integers(1, 10), num_shards=st.integers(1, 5))
def test_merged_shards_equal_one_search_over_all(corpus, k, num_shards):
    shards = [{d: s for d, s in corpus.items() if d % num_shards == n} for n in range(num_shards)]
    merged = merge_hits([hits_of(shard, k) for shard in shards], k)
    assert merged.equals(hits_of(corpus, k))


def test_merging_a_shard_twice_is_refused_by_name():
    part = hits_of({7: 1.0, 8: 0.5}, 2)
    with pytest.raises(ValueError, match="7, 8 occur twice"):
        merge_hits([part, part], 2)


def test_merging_different_numbers_of_queries_is_refused():
    two = Hits(np.zeros((2, 1), dtype=np.int64), np.zeros((2, 1), dtype=np.float32))
    with pytest.raises(ValueError, match="different numbers of queries"):
        merge_hits([hits_of({1: 1.0}, 1), two], 1)


def test_nan_scores_are_refused():
    with pytest.raises(ValueError, match="NaN score for row ids 4"):
        top_k_of([[3, 4]], [[0.0, np.nan]], 1)


@pytest.mark.parametrize("k", [0, -1])
def test_k_below_one_is_refused(k):
    with pytest.raises(ValueError, match="at least 1"):
        top_k_of([[3]], [[0.0]], k)


def test_wrong_dtypes_and_shapes_are_refused():
    with pytest.raises(ValueError, match="int64"):
        Hits(np.zeros((1, 1), dtype=np.int32), np.zeros((1, 1), dtype=np.float32))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one shape"):
        Hits(np.zeros((1, 1), dtype=np.int64), np.zeros((1, 2), dtype=np.float32))


def test_recall_counts_a_tie_at_place_k_as_right():
    exact = hits_of({1: 1.0, 2: 0.5, 3: 0.5, 4: 0.1}, 4)
    assert recall_at(hits_of({1: 1.0, 3: 0.5}, 2), exact, 2) == 1.0
    assert recall_at(hits_of({1: 1.0, 4: 0.1}, 2), exact, 2) == 0.5


def test_recall_over_fewer_documents_than_k_is_a_share_of_what_exists():
    exact = hits_of({1: 1.0, 2: 0.5}, 10)
    assert recall_at(exact, exact, 10) == 1.0
    assert recall_at(hits_of({1: 1.0}, 10), exact, 10) == 0.5


@given(corpus=st.dictionaries(st.integers(0, 30), SCORES, min_size=1), k=st.integers(1, 8))
def test_the_exact_answer_has_recall_one(corpus, k):
    exact = hits_of(corpus, 40)
    assert recall_at(exact.first(k), exact, k) == 1.0
