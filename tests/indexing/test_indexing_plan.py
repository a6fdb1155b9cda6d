"""The plan is arithmetic: what it picks, what it refuses, and that FAISS accepts every plan."""

import faiss
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexing.plan import IndexConfig, bytes_per_vector, plan_index


@pytest.mark.parametrize(
    ("num_vectors", "factory"),
    [
        (1, "IDMap,Flat"),
        (20_000, "IDMap,Flat"),
        (20_001, "IDMap,PQ96x4fs,RFlat"),
        (200_000, "IDMap,PQ96x4fs,RFlat"),
        (1_000_000, "IDMap,IVF4096,PQ192x4fs,Refine(SQ8)"),
        (100_000_000, "IDMap,IVF32768_HNSW32,PQ192x4fs,Refine(SQ8)"),
    ],
)
def test_type_by_size_at_384_dimensions(num_vectors, factory):
    assert plan_index(num_vectors, 384, IndexConfig()).factory == factory


@pytest.mark.parametrize(
    ("factory", "size"),
    [
        ("Flat", 1536 + 8),
        ("SQ8", 384 + 8),
        ("PQ96x4fs,RFlat", 48 + 1536 + 8),
        ("IVF4096,PQ192x4fs,Refine(SQ8)", 96 + 384 + 8),
        ("HNSW32,SQ8", 384 + 256 + 8),
        ("IVF100_HNSW32,SQ8", 384 + 8),
        ("PQ48", 48 + 8),
    ],
)
def test_bytes_for_each_vector(factory, size):
    assert bytes_per_vector(factory, 384) == size


@settings(max_examples=60, deadline=None)
@given(num_vectors=st.integers(1, 10**9), dim=st.integers(1, 1100), budget=st.none() | st.integers(1, 5000))
def test_every_plan_is_one_that_faiss_can_make_and_fits_the_budget(num_vectors, dim, budget):
    smallest = min(bytes_per_vector(kind, dim) for kind in ("SQ8", f"PQ{max(dim // 2, 1)}x4fs"))
    if budget is not None and budget < dim + smallest:
        budget = dim + smallest
    plan = plan_index(num_vectors, dim, IndexConfig(max_bytes_per_vector=budget))
    index = faiss.index_factory(dim, plan.factory, faiss.METRIC_INNER_PRODUCT)
    assert index.d == dim
    assert budget is None or plan.bytes_per_vector <= budget
    assert plan.nlist <= max(1, plan.num_train_vectors) <= num_vectors
    assert plan.mergeable
    assert plan.reasons


def test_a_given_factory_is_kept_and_completed_with_an_id_map():
    plans = {
        given: plan_index(50_000, 64, IndexConfig(factory=given)).factory
        for given in ("Flat", "HNSW32,SQ8", "IVF256,SQ8", "IVF256,PQ32x4fs,RFlat", "IDMap2,Flat")
    }
    assert plans == {
        "Flat": "IDMap,Flat",
        "HNSW32,SQ8": "IDMap,HNSW32,SQ8",
        "IVF256,SQ8": "IVF256,SQ8",
        "IVF256,PQ32x4fs,RFlat": "IDMap,IVF256,PQ32x4fs,RFlat",
        "IDMap2,Flat": "IDMap2,Flat",
    }


def test_a_graph_is_not_mergeable_but_a_graph_over_centroids_is():
    assert not plan_index(50_000, 64, IndexConfig(factory="HNSW32,SQ8")).mergeable
    assert plan_index(50_000, 64, IndexConfig(factory="IVF256_HNSW32,SQ8")).mergeable


def test_the_grid_ends_with_every_list_and_the_deepest_refinement():
    plan = plan_index(300_000, 64, IndexConfig())
    assert plan.search_params_grid[-1].num_probes == plan.nlist
    assert plan.search_params_grid[-1].refine_factor == 64
    assert plan.search_params_grid[0].num_probes == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("metric", "l2"),
        ("factory", " "),
        ("target_recall_at_10", 0.0),
        ("target_recall_at_10", 1.1),
        ("max_bytes_per_vector", 0),
        ("num_query_sample", 0),
        ("seed", -1),
    ],
)
def test_values_out_of_range_are_named(field, value):
    with pytest.raises(ValueError, match=field):
        IndexConfig(**{field: value})


def test_a_budget_nothing_fits_is_refused_with_what_each_type_needs():
    with pytest.raises(ValueError, match=r"max_bytes_per_vector=50 .*SQ8 392.*raise the budget"):
        plan_index(1_000_000, 384, IndexConfig(max_bytes_per_vector=50))


def test_a_tight_budget_takes_a_smaller_type():
    plans = [plan_index(100_000, 384, IndexConfig(max_bytes_per_vector=b)) for b in (1600, 500, 395, 110)]
    assert [plan.factory for plan in plans] == [
        "IDMap,PQ96x4fs,RFlat",
        "IDMap,PQ192x4fs,Refine(SQ8)",
        "IDMap,SQ8",
        "IDMap,PQ192x4fs",
    ]


def test_nothing_to_index_is_refused():
    with pytest.raises(ValueError, match="0 vectors"):
        plan_index(0, 8, IndexConfig())
