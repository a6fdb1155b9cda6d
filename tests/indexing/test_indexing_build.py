"""Build, merge, tune and store on small clustered data, against exact search."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import faiss
import numpy as np
import pytest

from indexing.build import add_vectors, check_unique_ids, merge_indexes, train_index
from indexing.exact import exact_search, normalize_rows
from indexing.faiss_library import (
    create_index,
    read_faiss_file,
    split_id_map,
    write_faiss_file,
)
from indexing.hits import NO_HIT, Hits, recall_at
from indexing.index_metadata import IndexInput
from indexing.plan import IndexConfig, SearchParams, plan_index
from indexing.search import IndexSearcher
from indexing.store import IndexMetadata, open_index, save_index
from indexing.tune import tune_search

NUM_ROWS, DIM = 3000, 32
MERGEABLE = [
    "Flat",
    "SQ8",
    "PQ8x4fs,RFlat",
    "PQ16x4fs,Refine(SQ8)",
    "IVF16,SQ8",
    "IVF16,PQ16x4fs,Refine(SQ8)",
    "IVF16_HNSW32,SQ8",
    "PCA16,IVF16,PQ8x4fs,RFlat",
]


@pytest.fixture(scope="module")
def data():
    """Row ids and normalised vectors in 40 clusters, with duplicate rows."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((40, DIM))
    vectors = centres[rng.integers(0, 40, NUM_ROWS)] + 0.6 * rng.standard_normal((NUM_ROWS, DIM))
    vectors[2500:2600] = vectors[:100]
    return rng.permutation(NUM_ROWS * 3)[:NUM_ROWS].astype(np.int64), normalize_rows(vectors)


@pytest.fixture(scope="module")
def queries(data):
    return data[1][::50].copy()


@pytest.fixture(scope="module")
def exact(data, queries):
    return exact_search(queries, [data], 100)


def plan_for(factory, **config):
    return plan_index(NUM_ROWS, DIM, IndexConfig(factory=factory, **config))


def build(data, factory, *, rows=slice(None), trained=None):
    ids, vectors = data
    index = train_index(vectors, plan_for(factory)) if trained is None else faiss.clone_index(trained)
    add_vectors(index, ids[rows], vectors[rows])
    return index


@pytest.mark.parametrize(
    "factory",
    ["IVF100,SQfp16", "IVF100,PQ16x4fs,RFlat", "IVF100_HNSW8,SQfp16", "PCA16,IVF100,PQ8x4fs,RFlat"],
)
def test_very_many_lists_are_trained_through_a_graph_and_find_as_much(
    data, queries, exact, factory, monkeypatch
):
    def recalls():
        index = build(data, factory)
        found = [
            IndexSearcher(index, metric="cosine").search(
                queries, 10, params=SearchParams(num_probes=probes, refine_factor=refine)
            )
            for probes in (2, 4, 8)
        ]
        return index, np.array([recall_at(hits, exact.first(10), 10) for hits in found])

    refine = 8 if "RFlat" in factory else None
    _, by_comparing = recalls()
    counted = faiss.cvar.hnsw_stats.ndis
    monkeypatch.setattr("indexing.build.MIN_LISTS_TRAINED_BY_GRAPH", 100)
    index, by_graph = recalls()
    assert faiss.cvar.hnsw_stats.ndis > counted + 10 * NUM_ROWS  # a graph was asked for every row, ten times
    lists = faiss.extract_index_ivf(index)
    assert lists.clustering_index is None
    assert lists.nlist == lists.quantizer.ntotal == 100
    assert (by_graph > by_comparing - 0.03).all(), (by_comparing, by_graph)


def metadata_for(index, **changes):
    base = IndexMetadata(
        factory="IDMap,Flat",
        metric="cosine",
        dim=DIM,
        num_vectors=index.ntotal,
        search_params=SearchParams(),
        recall_at_10=1.0,
        target_recall_at_10=0.95,
        encoder_fingerprint="encoder-a",
        documents_digest="documents-a",
    )
    return dataclasses.replace(base, **changes)


@pytest.mark.parametrize("metric", ["cosine", "inner_product"])
@pytest.mark.parametrize("k", [1, 7, 100])
def test_flat_equals_exact_search_bit_for_bit(data, queries, metric, k):
    scale = 1.0 if metric == "cosine" else np.linspace(0.1, 9, NUM_ROWS, dtype=np.float32)[:, None]
    ids, vectors = data[0], data[1] * scale
    index = train_index(vectors, plan_for("Flat", metric=metric))
    add_vectors(index, ids, vectors)
    searcher = IndexSearcher(index, metric=metric)
    wanted = exact_search(queries, [(ids, vectors)], k)
    assert searcher.search(queries, k, params=SearchParams()).equals(wanted)
    alone = searcher.search(queries[5:6], k, params=SearchParams())
    assert alone.equals(Hits(wanted.ids[5:6], wanted.scores[5:6]))


def test_ties_at_the_last_place_follow_the_rule_however_many():
    vectors = np.repeat(np.eye(3, dtype=np.float32), 200, axis=0)
    ids = np.random.default_rng(0).permutation(600).astype(np.int64)
    index = train_index(vectors, plan_index(600, 3, IndexConfig()))
    add_vectors(index, ids, vectors)
    found = IndexSearcher(index, metric="cosine").search(vectors[:1], 10, params=SearchParams())
    assert found.ids[0].tolist() == sorted(ids[:200].tolist())[:10]


def test_a_zero_query_gets_the_smallest_ids_as_in_exact_search(data):
    query = np.zeros((1, DIM), dtype=np.float32)
    wanted = exact_search(query, [data], 5)
    for factory in ("Flat", "IVF16,SQ8"):
        searcher = IndexSearcher(build(data, factory), metric="cosine")
        assert searcher.search(query, 5, params=SearchParams(num_probes=1)).equals(wanted)


@pytest.mark.parametrize("factory", MERGEABLE)
def test_merged_shards_search_like_one_index(data, queries, factory):
    trained = train_index(data[1], plan_for(factory))
    whole = build(data, factory, trained=trained)
    cuts = [slice(0, 1000), slice(1000, 1001), slice(1001, 1001), slice(1001, NUM_ROWS)]
    merged = merge_indexes(build(data, factory, trained=trained, rows=rows) for rows in cuts)
    assert merged.ntotal == NUM_ROWS
    params = SearchParams(num_probes=4, refine_factor=4)
    answers = [IndexSearcher(i, metric="cosine").search(queries, 10, params=params) for i in (whole, merged)]
    assert answers[0].equals(answers[1])


@pytest.mark.parametrize("factory", ["Flat", "IVF16,SQ8", "PQ16x4fs,Refine(SQ8)"])
def test_merging_a_shard_twice_is_refused(data, factory):
    trained = train_index(data[1], plan_for(factory))
    parts = [build(data, factory, trained=trained, rows=slice(0, 50)) for _ in range(2)]
    with pytest.raises(ValueError, match="part 1 repeats 50 row ids"):
        merge_indexes(parts)
    again = build(data, factory, trained=trained, rows=slice(0, 50))
    with pytest.raises(ValueError, match="part 1 is part 0 again"):
        merge_indexes([again, again])


@pytest.mark.parametrize("factory", ["IVF16,Flat", "SQ8", "PQ16x4fs", "PCA16,Flat"])
def test_merging_indexes_that_were_trained_apart_is_refused(data, factory):
    ids, vectors = data
    parts = []
    for half in (slice(0, 1500), slice(1500, None)):
        index = train_index(vectors[half], plan_for(factory))
        add_vectors(index, ids[half], vectors[half])
        parts.append(index)
    with pytest.raises(ValueError, match="trained apart"):
        merge_indexes(parts)


def test_merging_nothing_or_graphs_is_refused(data):
    with pytest.raises(ValueError, match="nothing to merge"):
        merge_indexes([])
    trained = train_index(data[1], plan_for("HNSW8,Flat"))
    rows = [slice(0, 50), slice(50, 100)]
    with pytest.raises(ValueError, match=r"HNSW.* cannot be merged"):
        merge_indexes([build(data, "HNSW8,Flat", trained=trained, rows=r) for r in rows])


def test_ids_repeated_over_calls_are_found(data):
    index = build(data, "IVF16,SQ8")
    add_vectors(index, data[0][:2], data[1][:2])
    with pytest.raises(ValueError, match="occur more than once"):
        check_unique_ids(index)


def test_ids_repeated_over_shards_are_found_whatever_is_held_at_a_time(data, monkeypatch):
    trained = train_index(data[1], plan_for("IVF16,SQ8"))
    shards = [build(data, "IVF16,SQ8", trained=trained, rows=rows) for rows in (slice(0, 60), slice(60, 99))]
    check_unique_ids(*shards)
    flat = [build(data, "Flat", rows=rows) for rows in (slice(0, 60), slice(59, 99))]
    for at_a_time in (7, 1000):
        monkeypatch.setattr("indexing.build.IDS_AT_A_TIME", at_a_time)
        with pytest.raises(ValueError, match=rf"row ids {data[0][59]} occur more than once"):
            check_unique_ids(*flat)


def test_an_index_of_the_same_file_of_vectors_twice_is_not_saved(data, tmp_path):
    index = build(data, "Flat")
    twice = tuple(IndexInput(name=name, digest="a" * 64, num_rows=5) for name in ("part-0", "part-1"))
    with pytest.raises(ValueError, match=r"'part-1' is 'part-0' again .* must not be merged twice"):
        save_index(tmp_path, index, metadata_for(index, inputs=twice))
    assert list(tmp_path.iterdir()) == []


def test_adding_bad_rows_is_refused(data):
    index = build(data, "Flat")
    with pytest.raises(ValueError, match="row ids 5 occur more than once"):
        add_vectors(index, [5, 5], data[1][:2])
    with pytest.raises(ValueError, match="row ids 90001"):
        add_vectors(index, [90001], np.full((1, DIM), np.nan))
    with pytest.raises(ValueError, match="expected 32 dimensions"):
        add_vectors(index, [90002], np.ones((1, 8)))


@pytest.mark.parametrize(
    "factory",
    [
        "IVF16,SQ8",
        "IVF16,PQ16x4fs,Refine(SQ8)",
        "PQ8x4fs,RFlat",
        "HNSW8,SQ8",
        "IVF16,PQ8np,Refine(SQfp16)",
        "IVF16,RaBitQ,Refine(SQfp16)",
        "PCA16,IVF16,SQ8,RFlat",
    ],
)
def test_tuning_takes_the_cheapest_setting_that_meets_the_target(data, queries, exact, factory):
    config = IndexConfig(factory=factory, target_recall_at_10=0.9)
    plan = plan_index(NUM_ROWS, DIM, config)
    tuned = tune_search(build(data, factory), queries, exact, plan, config)
    assert tuned.recall_at_10.value >= 0.9
    strict = dataclasses.replace(config, target_recall_at_10=0.99, allow_lower_recall=True)
    harder = tune_search(build(data, factory), queries, exact, plan, strict)
    grid = plan.search_params_grid
    assert harder.recall_at_10.value >= tuned.recall_at_10.value
    assert grid.index(harder.params) >= grid.index(tuned.params)


def test_missing_the_target_fails_with_the_measured_value_unless_allowed(data, queries, exact):
    config = IndexConfig(factory="PQ4x4fs", target_recall_at_10=0.99)
    plan, index = plan_index(NUM_ROWS, DIM, config), build(data, "PQ4x4fs")
    with pytest.raises(
        ValueError, match=r"reaches only 0\.\d+ \(95 % .* 30 held-out rows\), the target is 0\.99"
    ):
        tune_search(index, queries, exact, plan, config)
    allowed = dataclasses.replace(config, allow_lower_recall=True)
    assert 0 < tune_search(index, queries, exact, plan, allowed).recall_at_10.value < 0.99


def test_training_refuses_what_would_fail_later(data):
    with pytest.raises(ValueError, match="apply normalize_rows first"):
        train_index(3 * data[1], plan_for("IVF16,SQ8"))
    with pytest.raises(ValueError, match="at least 16 vectors, got 7"):
        train_index(data[1][:7], plan_for("IVF16,SQ8"))
    with pytest.raises(ValueError, match=r"cannot build index\.factory .*Nonsense"):
        train_index(data[1], plan_for("Nonsense"))


@pytest.mark.parametrize("factory", ["Flat", "PQ16x4fs,Refine(SQ8)", "IVF16,SQ8"])
def test_the_same_build_gives_the_same_bytes(data, tmp_path, factory):
    for name in ("a", "b"):
        index = build(data, factory)
        save_index(tmp_path / name, index, metadata_for(index))
    for file in ("index.faiss", "metadata.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("factory", [*MERGEABLE, "HNSW8,SQ8"])
def test_a_stored_index_searches_the_same(data, queries, tmp_path, factory, mmap):
    index, params = build(data, factory), SearchParams(num_probes=4, refine_factor=4, ef_search=64)
    save_index(tmp_path, index, metadata_for(index, search_params=params))
    opened = open_index(tmp_path, mmap=mmap)
    assert opened.metadata.search_params == params
    wanted = IndexSearcher(index, metric="cosine").search(queries, 10, params=params)
    assert opened.search(queries * 3, 10).equals(opened.search(queries * 3, 10))
    assert opened.search(queries, 10).equals(wanted)


def test_threads_with_different_settings_do_not_disturb_each_other(data, queries, tmp_path):
    index = build(data, "IVF16,PQ16x4fs,Refine(SQ8)")
    save_index(tmp_path, index, metadata_for(index))
    opened = open_index(tmp_path)
    settings = [SearchParams(num_probes=1 + n % 8, refine_factor=1 + n % 3) for n in range(24)]
    alone = [opened.search(queries, 10, params=params) for params in settings]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda params: opened.search(queries, 10, params=params), settings))
    assert all(one.equals(other) for one, other in zip(alone, together, strict=True))


def test_asking_for_more_than_there_is_pads(data, tmp_path):
    index = build(data, "Flat", rows=slice(0, 3))
    save_index(tmp_path, index, metadata_for(index))
    found = open_index(tmp_path).search(data[1][:2], 5)
    assert (found.ids[:, 3:] == NO_HIT).all()
    assert (found.ids[:, :3] != NO_HIT).all()


def test_another_encoder_is_refused_with_both_fingerprints(data, tmp_path):
    index = build(data, "Flat")
    save_index(tmp_path, index, metadata_for(index))
    opened = open_index(tmp_path)
    opened.check_encoder("encoder-a")
    with pytest.raises(ValueError, match=r"built with another encoder.*encoder-a.*encoder-b"):
        opened.check_encoder("encoder-b")


def test_bad_queries_are_refused(data, tmp_path):
    index = build(data, "Flat")
    save_index(tmp_path, index, metadata_for(index))
    opened = open_index(tmp_path)
    with pytest.raises(ValueError, match="expected 32 dimensions, got 3"):
        opened.search(np.ones((1, 3)), 5)
    with pytest.raises(ValueError, match="NaN"):
        opened.search(np.full((1, DIM), np.nan), 5)
    with pytest.raises(ValueError, match="at least 1"):
        opened.search(np.ones((1, DIM)), 0)


def test_incomplete_and_damaged_folders_are_refused(data, tmp_path):
    with pytest.raises(FileNotFoundError, match="no complete index"):
        open_index(tmp_path)
    index = build(data, "Flat")
    with pytest.raises(ValueError, match="metadata says 1 vectors"):
        save_index(tmp_path, index, metadata_for(index, num_vectors=1))
    save_index(tmp_path, index, metadata_for(index))
    file = tmp_path / "index.faiss"
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    with pytest.raises(ValueError, match="truncated"):
        open_index(tmp_path)
    file.write_bytes(b"x" * len(whole))
    with pytest.raises(ValueError, match="not a readable FAISS index"):
        open_index(tmp_path)
    (tmp_path / "metadata.json").write_text("{}")
    with pytest.raises(ValueError, match="not the metadata of an index"):
        open_index(tmp_path)


def test_eight_bit_codes_are_of_the_vectors_themselves_also_after_a_file(tmp_path):
    index = create_index(32, "IDMap,IVF2,PQ8np,Refine(SQ8)")
    write_faiss_file(index, tmp_path / "x")
    for one in (index, read_faiss_file(tmp_path / "x")):
        assert not faiss.extract_index_ivf(split_id_map(one)[1].base_index).by_residual
