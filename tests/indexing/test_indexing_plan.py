"""The plan is arithmetic: what it picks, what it refuses, and that FAISS accepts every plan."""

import dataclasses
from itertools import pairwise

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexing.build import add_vectors, train_index
from indexing.exact import normalize_rows
from indexing.index_config import parse_bytes
from indexing.plan import (
    IndexConfig,
    bytes_per_vector,
    plan_index,
    resident_bytes_per_vector,
    shared_bytes,
)


@pytest.mark.parametrize(
    ("num_vectors", "factory"),
    [
        (1, "IDMap,Flat"),
        (20_000, "IDMap,Flat"),
        (20_001, "IDMap,PQ96x4fs,RFlat"),
        (200_000, "IDMap,IVF2048,PQ96x4fs,RFlat"),
        (1_000_000, "IDMap,IVF4096,PQ192x4fs,Refine(SQfp16)"),
        (100_000_000, "IDMap,IVF32768_HNSW32,PQ192x4fs,Refine(SQfp16)"),
    ],
)
def test_type_by_size_at_384_dimensions(num_vectors, factory):
    assert plan_index(num_vectors, 384, IndexConfig()).factory == factory


@pytest.mark.parametrize(
    ("num_vectors", "target", "factory"),
    [
        (49_999, 0.95, "IDMap,PQ96x4fs,RFlat"),
        (50_000, 0.95, "IDMap,IVF1024,PQ96x4fs,RFlat"),
        (50_000, 0.97, "IDMap,IVF1024,PQ96x4fs,RFlat"),
        (50_000, 0.98, "IDMap,PQ96x4fs,RFlat"),
        (200_000, 0.99, "IDMap,PQ96x4fs,RFlat"),
        (200_001, 0.99, "IDMap,IVF2048,PQ192x4fs,Refine(SQfp16)"),
    ],
)
def test_lists_are_taken_where_few_of_them_reach_the_target(num_vectors, target, factory):
    assert plan_index(num_vectors, 384, IndexConfig(target_recall_at_10=target)).factory == factory


@pytest.mark.parametrize(
    ("factory", "size"),
    [
        ("Flat", 1536 + 8),
        ("SQ8", 384 + 8),
        ("PQ96x4fs,RFlat", 48 + 1536 + 8),
        ("IVF4096,PQ192x4fs,Refine(SQ8)", 96 + 384 + 8 + 8),
        ("HNSW32,SQ8", 384 + 256 + 16 + 8),
        ("IVF100_HNSW32,SQ8", 384 + 8),
        ("PQ48", 48 + 8),
        ("PCA64,Flat", 256 + 8),
        ("PCA64,SQ8", 64 + 8),
        ("OPQ16_64,IVF4k,PQ16x4fs,RFlat", 8 + 1536 + 8 + 8),
        ("RR,PCAR64,HNSW32,SQ8", 64 + 256 + 16 + 8),
        ("IDMap,PCA64,IVF8,SQ4,Refine(PCA128,SQ8)", 32 + 128 + 8 + 8),
    ],
)
def test_bytes_for_each_vector(factory, size):
    assert bytes_per_vector(factory, 384) == size


@pytest.mark.parametrize(
    "factory",
    [
        "Flat",
        "SQ8",
        "PQ8x4fs,RFlat",
        "PQ4np,RFlat",
        "IVF8,SQfp16",
        "IVF8,PQ16x4fs,Refine(SQfp16)",
        "IVF8,PQ4np,Refine(SQ8)",
        "IVF8,RaBitQ,Refine(SQ8)",
        "HNSW16,SQ8",
        "PCA16,Flat",
        "PCA16,SQ8",
        "PCAR16,HNSW16,SQ8",
        "PCA24,PQ4np,RFlat",
        "RR16,IVF8,SQfp16",
        "OPQ1_16,IVF8,PQ8x4fs,RFlat",
        "RR,IVF8,PQ16x4fs,Refine(SQ8)",
        "PCA16,IVF8_HNSW8,SQ6",
    ],
)
def test_the_bytes_of_a_row_and_of_what_all_share_are_those_of_the_file(factory):
    num_rows, dim = 2000, 32
    rows = normalize_rows(np.random.default_rng(0).standard_normal((num_rows, dim)))
    index = train_index(rows, plan_index(num_rows, dim, IndexConfig(factory=factory)))
    empty = len(faiss.serialize_index(index))
    add_vectors(index, np.arange(num_rows), rows)
    grown = (len(faiss.serialize_index(index)) - empty) / num_rows
    # 4-bit codes come in blocks of 32 rows, so a list may end in places of nobody.
    assert grown == pytest.approx(bytes_per_vector(factory, dim), rel=0.01)
    whole = num_rows * bytes_per_vector(factory, dim) + shared_bytes(factory, dim)
    assert empty == pytest.approx(shared_bytes(factory, dim), abs=1000), "the rest are names and sizes"
    assert empty + num_rows * grown == pytest.approx(whole, rel=0.01, abs=2000)


@settings(max_examples=60, deadline=None)
@given(
    num_vectors=st.integers(1, 10**9),
    dim=st.integers(1, 1100),
    row_budget=st.none() | st.integers(1, 5000),
    prefer=st.sampled_from(["throughput", "latency"]),
    target=st.floats(0.5, 1.0),
)
def test_every_plan_is_one_that_faiss_can_make_and_fits_the_budget(
    num_vectors, dim, row_budget, prefer, target
):
    config = IndexConfig(prefer=prefer, target_recall_at_10=target)
    if row_budget is not None:
        tables = 8 * dim + plan_index(num_vectors, dim, IndexConfig(target_recall_at_10=target)).shared_bytes
        enough = num_vectors * max(row_budget, resident_bytes_per_vector("SQ8", dim) + dim) + tables
        config = dataclasses.replace(config, memory_budget=str(enough))
    plan = plan_index(num_vectors, dim, config)
    index = faiss.index_factory(dim, plan.factory, faiss.METRIC_INNER_PRODUCT)
    assert index.d == dim
    held = num_vectors * plan.resident_bytes_per_vector + plan.shared_bytes
    assert row_budget is None or held <= enough
    assert plan.resident_bytes_per_vector <= plan.bytes_per_vector
    assert plan.nlist <= max(1, plan.num_train_vectors) <= num_vectors
    assert plan.mergeable or prefer == "latency"
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
    tight = plan_index(50_000, 64, IndexConfig(factory="IVF256,SQ8", memory_budget="1MB"))
    assert any("needs 3.5 MiB: index.memory_budget binds `auto` alone" in one for one in tight.reasons)


def test_a_graph_is_not_mergeable_but_a_graph_over_centroids_is():
    assert not plan_index(50_000, 64, IndexConfig(factory="HNSW32,SQ8")).mergeable
    assert plan_index(50_000, 64, IndexConfig(factory="IVF256_HNSW32,SQ8")).mergeable


def test_the_grid_ends_with_every_list_and_the_deepest_refinement():
    plan = plan_index(300_000, 64, IndexConfig())
    assert plan.search_params_grid[-1].num_probes == plan.nlist
    assert plan.search_params_grid[-1].refine_factor == 512
    assert plan.search_params_grid[0].num_probes == 1
    probes = sorted({params.num_probes for params in plan.search_params_grid})
    assert probes[:8] == [1, 2, 3, 4, 6, 8, 12, 16]
    assert all(after <= 2 * before for before, after in pairwise(probes))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("metric", "l2"),
        ("factory", " "),
        ("target_recall_at_10", 0.0),
        ("target_recall_at_10", 1.1),
        ("memory_budget", "0"),
        ("memory_budget", "plenty"),
        ("build_memory", "4 GiBs"),
        ("prefer", "speed"),
        ("layout", "split"),
        ("num_query_sample", 0),
        ("train_cpus", 0),
        ("seed", -1),
    ],
)
def test_values_out_of_range_are_named(field, value):
    with pytest.raises(ValueError, match=field):
        IndexConfig(**{field: value})


def test_a_budget_nothing_fits_is_refused_with_what_each_type_needs():
    with pytest.raises(
        ValueError, match=r"memory_budget=20MB .*20\.0 bytes a row.*PQ12np.* 34\.7\).*raise the"
    ):
        plan_index(1_000_000, 384, IndexConfig(memory_budget="20MB"))


def test_a_tight_budget_takes_a_smaller_type_then_leaves_the_re_ranking_on_disk():
    def plan(size, target=0.95):
        return plan_index(1_000_000, 384, IndexConfig(memory_budget=f"{size}MB", target_recall_at_10=target))

    chosen = {
        size: plan(size).factory.removeprefix("IDMap,IVF4096,") for size in (1000, 510, 300, 75, 58, 38)
    }
    assert chosen == {
        1000: "PQ192x4fs,Refine(SQfp16)",
        510: "PQ192x4fs,Refine(SQ8)",
        300: "PQ192x4fs,Refine(SQfp16)",
        75: "PQ96x4fs,Refine(SQfp16)",
        58: "PQ32np,Refine(SQfp16)",
        38: "PQ12np,Refine(SQfp16)",
    }
    assert plan(460, 0.9).factory == "IDMap,IVF4096,PQ96x4fs,Refine(SQ8)"
    assert "on disk" not in " ".join(plan(460, 0.9).reasons)
    assert "768 more for re-ranking on disk" in " ".join(plan(300).reasons)
    assert "8-bit product codes" in " ".join(plan(58).reasons)
    assert "8-bit product codes" not in " ".join(plan(75).reasons)


def test_eight_bit_codes_fill_the_gaps_that_four_bit_ones_leave_and_never_where_these_fit():
    def chosen(num_vectors, dim, row_bytes):
        budget = IndexConfig(memory_budget=str(num_vectors * row_bytes))
        return plan_index(num_vectors, dim, budget).factory.removeprefix("IDMap,")

    assert chosen(30_000, 384, 57) == "PQ96x4fs,RFlat"
    assert chosen(100_000, 384, 81) == "IVF1024,PQ96x4fs,RFlat"
    assert chosen(100_000, 384, 55) == "PQ32np,Refine(SQfp16)"
    assert chosen(1_000_000, 75, 45) == "IVF4096,PQ25np,Refine(SQfp16)"  # 75 has no half
    assert chosen(1_000_000, 390, 90) == "IVF4096,PQ65np,Refine(SQfp16)"  # 390 has no quarter


@pytest.mark.parametrize(
    ("dim", "scanned", "listed"),
    [
        (32, "PQ32x4fs", "PQ32x4fs"),
        (64, "PQ64x4fs", "PQ64x4fs"),
        (96, "PQ96x4fs", "PQ96x4fs"),
        (128, "PQ64x4fs", "PQ64x4fs"),
        (256, "PQ64x4fs", "PQ128x4fs"),
        (384, "PQ96x4fs", "PQ192x4fs"),
        (768, "PQ192x4fs", "PQ384x4fs"),
    ],
)
def test_codes_of_few_dimensions_keep_64_parts_or_all_there_are(dim, scanned, listed):
    assert plan_index(30_000, dim, IndexConfig()).factory == f"IDMap,{scanned},RFlat"
    assert plan_index(1_000_000, dim, IndexConfig()).factory == f"IDMap,IVF4096,{listed},Refine(SQfp16)"


@pytest.mark.parametrize(
    ("num_vectors", "dim", "row_bytes", "codes"),
    [
        (1_000_000, 390, 82, "IVF4096,RaBitQ,Refine(SQfp16)"),  # 79 bytes; 4-bit codes take 120, 8-bit 88
        (1_000_000, 383, 82, "IVF4096,RaBitQ,Refine(SQfp16)"),  # a prime: no product codes at all
        (100_000, 383, 90, "IVF1024,RaBitQ,Refine(SQfp16)"),
    ],
)
def test_one_bit_codes_are_taken_where_they_fit_and_no_product_code_of_their_size_does(
    num_vectors, dim, row_bytes, codes
):
    plan = plan_index(num_vectors, dim, IndexConfig(memory_budget=str(num_vectors * row_bytes)))
    assert plan.factory == f"IDMap,{codes}"
    assert f"no 4-bit product code of {dim} dimensions is as small" in " ".join(plan.reasons)
    assert plan.resident_bytes_per_vector <= row_bytes


def test_one_bit_codes_are_never_taken_beside_smaller_4_bit_ones_and_tight_plans_say_why():
    for row_bytes in range(36, 1200, 4):
        plan = plan_index(1_000_000, 384, IndexConfig(memory_budget=str(1_000_000 * row_bytes)))
        assert "RaBitQ" not in plan.factory
        is_tight = "PQ96x4fs" in plan.factory or "np" in plan.factory
        assert ("no 1-bit codes (RaBitQ)" in " ".join(plan.reasons)) == is_tight


def test_8_bit_codes_are_taken_for_the_targets_that_they_were_measured_to_reach():
    def plan(target, row_bytes):
        budget = None if row_bytes is None else str(1_000_000 * row_bytes)
        return plan_index(1_000_000, 384, IndexConfig(memory_budget=budget, target_recall_at_10=target))

    assert plan(0.99, 510).factory.endswith("PQ192x4fs,Refine(SQ8)")
    assert "8-bit codes found 0.992 of the exact ten" in " ".join(plan(0.99, 510).reasons)
    assert plan(0.995, 510).factory.endswith("PQ192x4fs,Refine(SQfp16)")  # on disk, as 8 bits do not do
    assert plan(0.99, None).factory.endswith("Refine(SQfp16)")
    assert plan(0.9, None).factory.endswith("Refine(SQ8)")
    assert "find hardly more" in " ".join(plan(0.9, None).reasons)
    for target in (0.8, 0.95, 0.99, 1.0):
        reasons = plan_index(100_000, 384, IndexConfig(target_recall_at_10=target)).reasons
        assert not any("8-bit" in reason for reason in reasons), "RFlat ranks with the vectors themselves"


def test_latency_takes_a_graph_where_its_memory_fits_and_it_can_be_grown_in_one_task():
    def chosen(num_vectors, budget):
        return plan_index(num_vectors, 384, IndexConfig(prefer="latency", memory_budget=budget)).factory

    assert chosen(20_000, None) == "IDMap,Flat"
    assert chosen(100_000, None) == "IDMap,HNSW32,SQfp16"
    assert chosen(100_000, "70MB") == "IDMap,HNSW32,SQ8"
    assert chosen(100_000, "60MB") == "IDMap,PQ192x4fs,Refine(SQ8)"
    assert chosen(5_000_000, None).startswith("IDMap,IVF")


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("4GiB", 2**32), ("1.5 kb", 1500), ("2TB", 2 * 10**12), (" 7 MiB ", 7 * 2**20)],
)
def test_sizes_are_read_with_decimal_and_binary_units(text, size):
    assert parse_bytes(text, setting="s") == size


def test_nothing_to_index_is_refused():
    with pytest.raises(ValueError, match="0 vectors"):
        plan_index(0, 8, IndexConfig())
