"""Exact search against a naive oracle, for any split and batch, with ties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexing import exact as exact_module
from indexing.exact import exact_search, normalize_rows
from indexing.hits import NO_HIT, Hits


def naive_search(queries, ids, vectors, k) -> Hits:
    """Full sort of float64 products rounded to float32: the definition, written plainly."""
    all_ids = np.full((len(queries), k), NO_HIT, dtype=np.int64)
    all_scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
    for row, query in enumerate(queries):
        products = np.float32((np.float64(query) * np.float64(vectors)).sum(axis=1))
        order = sorted(range(len(ids)), key=lambda i: (-products[i], ids[i]))[:k]
        all_ids[row, : len(order)] = ids[order]
        all_scores[row, : len(order)] = products[order]
    return Hits(all_ids, all_scores)


def split(ids, vectors, num_blocks):
    return list(zip(np.array_split(ids, num_blocks), np.array_split(vectors, num_blocks), strict=True))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    num_rows=st.integers(1, 80),
    num_queries=st.integers(1, 5),
    dim=st.integers(1, 9),
    k=st.integers(1, 20),
    num_blocks=st.integers(1, 6),
    small_integers=st.booleans(),
)
def test_exact_search_equals_the_oracle_for_any_split(
    seed, num_rows, num_queries, dim, k, num_blocks, small_integers
):
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((num_rows, dim)).astype(np.float32)
    if small_integers:
        vectors = np.round(vectors)
    # Duplicates guarantee ties also among real-valued vectors.
    vectors[num_rows // 2 :] = vectors[: num_rows - num_rows // 2]
    queries = rng.standard_normal((num_queries, dim)).astype(np.float32)
    ids = rng.permutation(num_rows * 2)[:num_rows].astype(np.int64)
    found = exact_search(queries, split(ids, vectors, num_blocks), k)
    assert found.equals(naive_search(queries, ids, vectors, k))


def test_the_result_does_not_depend_on_chunking_or_query_batch(monkeypatch):
    rng = np.random.default_rng(1)
    vectors = np.repeat(normalize_rows(rng.standard_normal((300, 32))), 3, axis=0)
    ids, queries = np.arange(900), normalize_rows(rng.standard_normal((40, 32)))
    whole = exact_search(queries, [(ids, vectors)], 10)
    monkeypatch.setattr(exact_module, "ROW_CHUNK", 37)
    monkeypatch.setattr(exact_module, "QUERY_CHUNK", 7)
    monkeypatch.setattr(exact_module, "PAIR_CHUNK", 11)
    assert exact_search(queries, split(ids, vectors, 4), 10).equals(whole)
    alone = exact_search(queries[3:4], [(ids[::-1], vectors[::-1])], 10)
    assert np.array_equal(alone.ids[0], whole.ids[3])


def test_rising_scores_in_late_blocks_still_win():
    vectors = np.linspace(0, 1, 50, dtype=np.float32).reshape(-1, 1)
    blocks = split(np.arange(50), vectors, 10)
    assert exact_search([[1.0]], blocks, 3).ids.tolist() == [[49, 48, 47]]


def test_a_tie_in_a_later_block_wins_by_its_smaller_id_whatever_the_rounding():
    rng = np.random.default_rng(2)
    vectors, queries = rng.standard_normal((500, 300)), rng.standard_normal((100, 300))
    # 7 copies each, the smallest ids last; odd block lengths run through different matrix kernels.
    blocks = [(np.arange(500) + 1000 * copy, vectors) for copy in reversed(range(7))]
    pieces = [part for ids, rows in blocks for part in ((ids[:13], rows[:13]), (ids[13:], rows[13:]))]
    found = exact_search(queries, pieces, 4)
    assert (found.ids < 4000).all()
    assert (np.diff(found.ids, axis=1) == 1000).all()


def test_no_rows_gives_no_hits():
    found = exact_search(np.ones((2, 3)), [], 4)
    assert (found.ids == NO_HIT).all()
    assert np.isneginf(found.scores).all()


def test_no_queries_gives_an_empty_answer():
    assert exact_search(np.empty((0, 3)), [(np.arange(2), np.ones((2, 3)))], 4).ids.shape == (0, 4)


def test_nan_rows_are_named_by_row_id():
    vectors = np.ones((3, 2), dtype=np.float32)
    vectors[1, 0] = np.nan
    with pytest.raises(ValueError, match="row ids 20"):
        exact_search(np.ones((1, 2)), [(np.array([10, 20, 30]), vectors)], 1)


def test_a_row_given_twice_is_refused():
    block = (np.array([5]), np.ones((1, 2)))
    with pytest.raises(ValueError, match="5 occur twice"):
        exact_search(np.ones((1, 2)), [block, block], 2)


def test_other_dimensions_and_counts_are_refused():
    with pytest.raises(ValueError, match="expected 2 dimensions, got 3"):
        exact_search(np.ones((1, 2)), [(np.arange(1), np.ones((1, 3)))], 1)
    with pytest.raises(ValueError, match="expected 1 ids"):
        exact_search(np.ones((1, 2)), [(np.arange(2), np.ones((1, 2)))], 1)


def test_vectors_that_overflow_single_precision_are_refused():
    with pytest.raises(ValueError, match="normalise"):
        exact_search(np.full((1, 2), 1e30), [(np.arange(1), np.full((1, 2), 1e30))], 1)


@settings(deadline=None)
@given(seed=st.integers(0, 1000), dim=st.integers(1, 800), scale=st.sampled_from([1e-20, 1e-3, 1.0, 1e15]))
def test_normalising_gives_length_one_and_is_idempotent(seed, dim, scale):
    vectors = np.random.default_rng(seed).standard_normal((4, dim)) * scale
    once = normalize_rows(vectors)
    assert np.allclose(np.linalg.norm(once.astype(np.float64), axis=1), 1, atol=1e-5)
    assert np.array_equal(normalize_rows(once), once)


def test_a_zero_row_stays_zero():
    assert normalize_rows([[0.0, 0.0], [3.0, 4.0]]).tolist() == [
        [0.0, 0.0],
        [0.6000000238418579, 0.800000011920929],
    ]


def test_normalising_nan_is_refused():
    with pytest.raises(ValueError, match="row numbers 1"):
        normalize_rows([[1.0], [np.inf]])
