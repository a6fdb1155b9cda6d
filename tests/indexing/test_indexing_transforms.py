"""Transforms in front of an index keep inner products, whatever the mean of the rows; others are refused."""

import faiss
import numpy as np
import pytest

from indexing.build import add_vectors, train_index
from indexing.exact import exact_search
from indexing.faiss_library import read_faiss_file, write_faiss_file
from indexing.hits import recall_at
from indexing.plan import IndexConfig, SearchParams, plan_index
from indexing.search import IndexSearcher

NUM_ROWS, DIM = 800, 24


@pytest.fixture(scope="module")
def rows():
    """Vectors of different lengths, far from the origin: what centring would change most."""
    rng = np.random.default_rng(0)
    spread = np.linspace(2, 0.1, DIM)
    return (3 + rng.standard_normal((NUM_ROWS, DIM)) * spread).astype(np.float32)


def built(rows, factory, *, metric="inner_product"):
    index = train_index(rows, plan_index(NUM_ROWS, DIM, IndexConfig(factory=factory, metric=metric)))
    add_vectors(index, np.arange(NUM_ROWS), rows)
    return index


@pytest.mark.parametrize("transforms", ["PCA24", "PCAR24", "RR24", "OPQ4_24", "RR24,PCA24"])
def test_a_rotation_leaves_every_inner_product_as_it_is(rows, transforms):
    index = built(rows, f"{transforms},Flat")
    found = IndexSearcher(index, metric="inner_product").search(rows[:50], 20, params=SearchParams())
    wanted = exact_search(rows[:50], [(np.arange(NUM_ROWS), rows)], 20)
    np.testing.assert_allclose(found.scores, wanted.scores, rtol=1e-5)


def test_a_smaller_pca_keeps_what_the_largest_axes_have_of_the_inner_products(rows):
    index = built(rows, "PCA8,Flat")
    found = IndexSearcher(index, metric="inner_product").search(rows[:50], 10, params=SearchParams())
    axes = np.linalg.svd(rows.astype(np.float64), full_matrices=False)[2][:8]
    short = rows @ axes.T
    np.testing.assert_allclose(found.scores, -np.sort(-(short[:50] @ short.T))[:, :10], rtol=1e-4)


def test_faiss_would_have_centred(rows):
    """The rule is needed: FAISS's own training of the same type gives other products, and worse ranks."""
    theirs = faiss.index_factory(DIM, "PCA24,Flat", faiss.METRIC_INNER_PRODUCT)
    theirs.train(rows)
    theirs.add(rows)
    scores, ids = theirs.search(rows[:50], 10)
    wanted = exact_search(rows[:50], [(np.arange(NUM_ROWS), rows)], 10)
    assert (np.abs(scores - wanted.scores) > 1).all()
    assert (ids != wanted.ids).any()


def test_a_stored_pca_stays_uncentred_and_lists_behind_it_find_as_much(rows, tmp_path):
    index = built(rows, "PCA20,IVF8,SQfp16")
    write_faiss_file(index, tmp_path / "i.faiss")
    hits = [
        IndexSearcher(one, metric="inner_product").search(rows[:50], 10, params=SearchParams(num_probes=8))
        for one in (index, read_faiss_file(tmp_path / "i.faiss"))
    ]
    assert hits[0].equals(hits[1])
    assert recall_at(hits[0], exact_search(rows[:50], [(np.arange(NUM_ROWS), rows)], 20), 10) > 0.95


@pytest.mark.parametrize("factory", ["PCAW16,Flat", "IDMap,PCAWR16,Flat", "ITQ16,LSH", "PCA16,L2norm,Flat"])
@pytest.mark.parametrize("metric", ["cosine", "inner_product"])
def test_a_transform_that_changes_inner_products_is_refused_with_what_to_take(factory, metric):
    with pytest.raises(ValueError, match=r"index\.factory .* changes inner products.*use OPQ, RR, PCA"):
        plan_index(NUM_ROWS, DIM, IndexConfig(factory=factory, metric=metric))
