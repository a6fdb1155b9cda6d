"""Recall that is reported: on queries that chose nothing, with an interval that covers the truth."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from indexing.build import add_vectors, train_index
from indexing.exact import exact_search, normalize_rows
from indexing.hits import Hits, recall_at
from indexing.plan import IndexConfig, plan_index
from indexing.recall import estimate_from_counts, estimate_recall
from indexing.search import IndexSearcher
from indexing.tune import tune_search

NUM_ROWS, DIM, NUM_LISTS = 1200, 16, 16


def test_queries_that_all_agree_count_once_each_as_in_wilsons_interval():
    for num_right in (0, 10):
        found = estimate_from_counts(np.full(37, num_right), np.full(37, 10))
        wanted = binomtest(37 * num_right // 10, 37).proportion_ci(0.95, "wilson")
        assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=1e-6)
        assert (found.value, found.num_queries) == (num_right / 10, 37)


def test_one_wanted_hit_for_each_query_is_wilsons_interval():
    right = (np.arange(200) % 8 != 0).astype(np.int64)
    found = estimate_from_counts(right, np.ones(200, np.int64))
    wanted = binomtest(int(right.sum()), 200).proportion_ci(0.95, "wilson")
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=1e-3)


def test_an_interval_around_all_or_nothing_ends_there_exactly():
    for num_queries in range(1, 1000):
        wanted = np.full(num_queries, 10)
        assert estimate_from_counts(wanted, wanted).high == 1.0
        assert estimate_from_counts(np.zeros_like(wanted), wanted).low == 0.0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), max_size=30))
def test_the_value_lies_in_its_interval_and_queries_without_neighbours_do_not_count(pairs):
    wanted = np.array([max(pair) for pair in pairs], np.int64)
    right = np.array([min(pair) for pair in pairs], np.int64)
    found = estimate_from_counts(right, wanted)
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.num_queries == (wanted > 0).sum()
    assert found.value == (right.sum() / wanted.sum() if wanted.sum() else 1.0)


def test_the_interval_covers_the_truth_where_one_trial_for_each_hit_would_not():
    rng = np.random.default_rng(0)
    truth, covered, naive = 0.9, 0, 0
    for _ in range(400):  # hits of a query stand and fall together: its own recall is drawn first
        right = rng.binomial(10, rng.beta(1.8, 0.2, size=200))
        found = estimate_from_counts(right, np.full(200, 10))
        covered += found.low <= truth <= found.high
        one_by_one = binomtest(int(right.sum()), 2000).proportion_ci(0.95, "wilson")
        naive += one_by_one.low <= truth <= one_by_one.high
    assert covered >= 0.92 * 400
    assert naive < 0.8 * 400


@pytest.fixture(scope="module")
def rows():
    """Unit vectors: 600 in tight clusters, whose neighbours lie in one list, and 600 all over."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((NUM_LISTS, DIM))
    tight = centres[np.arange(600) % NUM_LISTS] + 0.01 * rng.standard_normal((600, DIM))
    return normalize_rows(np.concatenate([tight, rng.standard_normal((600, DIM))]))


@pytest.fixture(scope="module")
def built(rows):
    """An index over the rows, 60 tight and 60 scattered ones as queries, and their exact neighbours."""
    plan = plan_index(NUM_ROWS, DIM, IndexConfig(factory=f"IVF{NUM_LISTS},Flat"))
    index = train_index(rows, plan)
    add_vectors(index, np.arange(NUM_ROWS), rows)
    own = np.concatenate([np.arange(60), np.arange(600, 660)])
    return index, plan, own, exact_search(rows[own], [(np.arange(NUM_ROWS), rows)], 130)


def tuned(built, rows, held_out, **settings):
    index, plan, own, exact = built
    config = IndexConfig(factory=plan.factory, **settings)
    return tune_search(index, rows[own], exact, plan, config, held_out=held_out, own_ids=own)


def test_settings_are_tuned_on_some_queries_and_recall_is_that_of_the_others(rows, built):
    index, _, own, exact = built
    scattered = np.arange(120) >= 60
    easy = tuned(built, rows, scattered, allow_lower_recall=True)
    hard = tuned(built, rows, ~scattered)
    assert easy.params.num_probes < hard.params.num_probes
    found = IndexSearcher(index, metric="cosine").search(rows[own[60:]], 11, params=easy.params)
    others = [[i for i in ids if i != mine][:10] for ids, mine in zip(found.ids, own[60:], strict=True)]
    wanted = [[i for i in ids if i != mine] for ids, mine in zip(exact.ids[60:], own[60:], strict=True)]
    scores = np.linspace(1, 0, 130, dtype=np.float32)
    hits = [Hits(np.array(one), np.tile(scores[: len(one[0])], (60, 1))) for one in (others, wanted)]
    assert easy.recall_at_10.value == pytest.approx(recall_at(*hits, 10))
    assert easy.recall_at_10 == estimate_recall(*hits, 10)
    assert easy.recall_at_10.num_queries == 60
    assert easy.recall_at_100.low <= easy.recall_at_100.value <= easy.recall_at_100.high


def test_a_target_met_by_the_tuning_queries_alone_is_missed(rows, built):
    with pytest.raises(
        ValueError, match=r"reaches only 0\.\d+ \(95 % interval 0\.\d+ to 0\.\d+, 60 held-out"
    ):
        tuned(built, rows, np.arange(120) >= 60)


def test_the_chosen_settings_lie_above_the_target_beyond_doubt(rows, built):
    index, plan, own, exact = built
    held_out = np.arange(120) % 2 == 0
    for target in (0.6, 0.8, 0.9):
        chosen = tuned(built, rows, held_out, target_recall_at_10=target)
        fixed = dataclasses.replace(plan, search_params_grid=(chosen.params,))
        config = IndexConfig(allow_lower_recall=True, target_recall_at_10=target)
        on_tuning = tune_search(index, rows[own], exact, fixed, config, held_out=~held_out, own_ids=own)
        assert on_tuning.recall_at_10.low >= target
        assert chosen.recall_at_10.value >= target


def test_queries_must_be_split_and_a_single_one_does_for_both(rows, built):
    index, plan, own, exact = built
    for held_out in (np.zeros(120, bool), np.ones(120, bool), np.ones(3, bool)):
        with pytest.raises(ValueError, match="some of the queries must be held out"):
            tuned(built, rows, held_out)
    one = Hits(exact.ids[:1], exact.scores[:1])
    found = tune_search(index, rows[own[:1]], one, plan, IndexConfig(), own_ids=own[:1])
    assert found.recall_at_10.num_queries == 1
