"""Rows that must not be found, filtered out or deleted, also where they are all that is near the query."""

import faiss
import numpy as np
import pytest

from indexing.build import add_vectors, train_index
from indexing.exact import exact_search, normalize_rows
from indexing.hits import NO_HIT, recall_at
from indexing.plan import IndexConfig, SearchParams, plan_index
from indexing.search import IndexSearcher

NUM_ROWS, DIM, NUM_TOPICS, K = 6000, 16, 8, 10
FACTORIES = [
    "SQ8",
    "PQ16x4fs,RFlat",
    "IVF64,SQ8",
    "IVF64,PQ16x4fs,RFlat",
    "HNSW16,SQ8",
    "HNSW16,Flat",
    "RR16,HNSW16,SQ8",
]
# Enough for the topic around a query, far from enough for another.
PARAMS = SearchParams(num_probes=6, ef_search=32, refine_factor=16)


@pytest.fixture(scope="module")
def data():
    """Row ids, normalised vectors around eight centres, and the topic of each row."""
    rng = np.random.default_rng(0)
    topics = rng.integers(0, NUM_TOPICS, NUM_ROWS)
    vectors = rng.standard_normal((NUM_TOPICS, DIM))[topics] + 0.4 * rng.standard_normal((NUM_ROWS, DIM))
    return np.arange(NUM_ROWS, dtype=np.int64) * 3, normalize_rows(vectors), topics


@pytest.fixture(scope="module")
def indexes(data):
    built = {}
    for factory in FACTORIES:
        index = train_index(data[1], plan_index(NUM_ROWS, DIM, IndexConfig(factory=factory)))
        add_vectors(index, data[0], data[1])
        built[factory] = index
    return built


@pytest.fixture(autouse=True)
def _push_filters_down(monkeypatch):
    monkeypatch.setattr("indexing.search.MAX_ROWS_SCANNED", 0)


def opened(data, index, *, deleted=None):
    ids, vectors, _ = data
    rows = lambda asked: vectors[np.searchsorted(ids, asked)]  # noqa: E731
    return IndexSearcher(index, metric="cosine", full_vectors=rows, deleted=deleted)


def exact_among(data, chosen, queries):
    return exact_search(queries, [(data[0][chosen], data[1][chosen])], 3 * K)


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("passing", [(1, 2), (1, 2, 3, 4, 5, 6, 7)])
def test_a_filter_on_other_topics_than_the_query_s_keeps_the_recall_of_a_search_without_one(
    data, indexes, factory, passing
):
    """With the settings tuned for all rows alone, lists and graphs gave next to nothing."""
    ids, vectors, topics = data
    searcher, queries = opened(data, indexes[factory]), vectors[topics == 0][:20]
    unfiltered = searcher.search(queries, K, params=PARAMS)
    chosen = np.isin(topics, passing)
    hits = searcher.search(queries, K, params=PARAMS, selection=searcher.select(ids[chosen]))
    assert (hits.ids != NO_HIT).all()
    assert np.isin(hits.ids, ids[chosen]).all()
    reached = recall_at(unfiltered, exact_among(data, slice(None), queries), K)
    assert recall_at(hits, exact_among(data, chosen, queries), K) >= reached - 0.02
    assert reached > 0.9


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_query_whose_whole_topic_was_deleted_finds_the_nearest_of_the_rest(data, indexes, factory):
    ids, vectors, topics = data
    searcher = opened(data, indexes[factory], deleted=ids[topics == 0])
    queries = np.concatenate([vectors[topics == 0][:20], vectors[topics == 1][:20]])
    hits = searcher.search(queries, K, params=PARAMS)
    assert not np.isin(hits.ids, ids[topics == 0]).any()
    assert recall_at(hits, exact_among(data, topics != 0, queries), K) > 0.95


@pytest.mark.parametrize("factory", ["IVF64,SQ8", "HNSW16,SQ8"])
def test_fewer_rows_than_wanted_are_all_found_however_far_they_lie(data, indexes, factory):
    ids, vectors, topics = data
    few = np.flatnonzero(topics == 3)[:7]
    searcher = opened(data, indexes[factory])
    hits = searcher.search(vectors[:5], K, params=PARAMS, selection=searcher.select(ids[few]))
    assert all(set(row[row != NO_HIT]) == set(ids[few]) for row in hits.ids)


@pytest.mark.parametrize("factory", ["IVF64,SQ8", "IVF64,PQ16x4fs,RFlat"])
def test_hidden_rows_are_hidden_alike_in_one_index_and_in_shards(data, factory):
    ids, vectors, topics = data
    first = train_index(vectors, plan_index(NUM_ROWS, DIM, IndexConfig(factory=factory)))
    trained = [faiss.clone_index(first) for _ in range(4)]
    for part, index in enumerate(trained[1:]):
        add_vectors(index, ids[part::3], vectors[part::3])
    add_vectors(trained[0], ids, vectors)
    deleted = ids[(topics == 0) & (ids % 2 == 0)]
    single, sharded = (
        IndexSearcher(index, metric="cosine", deleted=deleted) for index in (trained[0], trained[1:])
    )
    for chosen in (None, np.isin(topics, [1, 2]), topics > 0):
        hits = [
            one.search(
                vectors[::20],
                K,
                params=PARAMS,
                selection=None if chosen is None else one.select(ids[chosen]),
            )
            for one in (single, sharded)
        ]
        assert hits[0].equals(hits[1])


def test_few_deleted_rows_cost_no_second_search(data, indexes, monkeypatch):
    ids, vectors, _ = data
    searcher = opened(data, indexes["IVF64,SQ8"], deleted=ids[::50])
    monkeypatch.setattr(
        "indexing.stack.IndexStack._wider", lambda *_: pytest.fail("widened for a few deleted rows")
    )
    assert (searcher.search(vectors[:20], K, params=PARAMS).ids != NO_HIT).all()


@pytest.mark.parametrize("factory", ["Flat", "SQ8", "PQ8x4fs,RFlat", "IVF16,SQ8"])
def test_more_equal_rows_than_any_batch_follows_are_ordered_by_id_in_one_index_and_in_shards(
    factory, monkeypatch
):
    monkeypatch.setattr("indexing.stack.MAX_TIE_DEPTH", 64)
    rng = np.random.default_rng(0)
    same = normalize_rows(rng.standard_normal((1, DIM)))
    vectors = np.concatenate([np.repeat(same, 1000, axis=0), normalize_rows(rng.standard_normal((500, DIM)))])
    ids = rng.permutation(1500).astype(np.int64)
    first = train_index(vectors, plan_index(1500, DIM, IndexConfig(factory=factory)))
    trained = [faiss.clone_index(first) for _ in range(4)]
    add_vectors(trained[0], ids, vectors)
    for part, index in enumerate(trained[1:]):
        add_vectors(index, ids[part::3], vectors[part::3])
    queries = np.concatenate([same, vectors[-3:]])
    params = SearchParams(num_probes=16, refine_factor=2)
    single = IndexSearcher(trained[0], metric="cosine").search(queries, K, params=params)
    sharded = IndexSearcher(trained[1:], metric="cosine").search(queries, K, params=params)
    assert single.equals(sharded)
    assert single.ids[0].tolist() == np.sort(ids[:1000])[:K].tolist()
