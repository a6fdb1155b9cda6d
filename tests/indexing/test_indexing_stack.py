"""Shards searched together, merged, and built in one pass: the same hits; deleted rows; merging on disk."""

import dataclasses

import faiss
import numpy as np
import pytest

from indexing.build import add_vectors, merge_files_on_disk, merge_indexes, train_index
from indexing.exact import exact_search, normalize_rows
from indexing.faiss_library import write_faiss_file
from indexing.index_metadata import IndexInput
from indexing.plan import IndexConfig, SearchParams, plan_index
from indexing.search import IndexSearcher
from indexing.store import CURRENT_FILE, VERSIONS_FOLDER, IndexMetadata, open_index, save_index
from indexing.tune import tune_search

NUM_ROWS, DIM = 3000, 32
FACTORIES = [
    "Flat",
    "SQ8",
    "PQ8x4fs",
    "PQ8x4fs,RFlat",
    "IVF16,SQfp16",
    "IVF16,RaBitQ,Refine(SQfp16)",
    "IVF16,PQ16x4fs,Refine(SQ8)",
    "IVF16_HNSW32,PQ8np,Refine(SQ8)",
]
CUTS = [slice(0, 1000), slice(1000, 1001), slice(1001, 1001), slice(1001, NUM_ROWS)]


@pytest.fixture(scope="module")
def data():
    """Row ids out of order and normalised vectors; each of the first six hundred is there thirty times."""
    rng = np.random.default_rng(0)
    vectors = np.tile(rng.standard_normal((20, DIM)), (150, 1))
    vectors[600:] += 0.5 * rng.standard_normal((NUM_ROWS - 600, DIM))
    return rng.permutation(NUM_ROWS * 3)[:NUM_ROWS].astype(np.int64), normalize_rows(vectors)


@pytest.fixture(scope="module")
def queries(data):
    return np.concatenate([data[1][:40], normalize_rows(data[1][700:740] + np.float32(0.1))])


def plan_for(factory):
    return plan_index(NUM_ROWS, DIM, IndexConfig(factory=factory))


def filled(data, trained, rows=slice(None)):
    index = faiss.clone_index(trained)
    add_vectors(index, data[0][rows], data[1][rows])
    return index


def metadata(num_vectors=NUM_ROWS, **changes):
    base = IndexMetadata(
        factory="any",
        metric="cosine",
        dim=DIM,
        num_vectors=num_vectors,
        search_params=SearchParams(num_probes=4, refine_factor=2),
        recall_at_10=None,
        target_recall_at_10=0.9,
        encoder_fingerprint="a",
        documents_digest="b",
    )
    return dataclasses.replace(base, **changes)


@pytest.mark.parametrize("factory", FACTORIES)
def test_sharded_merged_and_single_pass_give_the_same_hits(data, queries, factory, tmp_path):
    trained = train_index(data[1], plan_for(factory))
    single = filled(data, trained)
    shards = [filled(data, trained, rows) for rows in CUTS]
    save_index(tmp_path, shards, metadata())
    merged = merge_indexes(filled(data, trained, rows) for rows in CUTS)
    for probes, factor, k in ((1, 1, 10), (4, 2, 10), (4, 1, 3), (16, 8, 150)):
        params = SearchParams(num_probes=probes, refine_factor=factor)
        wanted = IndexSearcher(single, metric="cosine").search(queries, k, params=params)
        assert IndexSearcher(merged, metric="cosine").search(queries, k, params=params).equals(wanted)
        assert IndexSearcher(shards, metric="cosine").search(queries, k, params=params).equals(wanted)
        assert open_index(tmp_path).search(queries, k, params=params).equals(wanted)
        for hits in (wanted.ids, wanted.scores):
            assert hits.shape == (80, k)
        order = np.lexsort((wanted.ids, -wanted.scores), axis=-1)
        assert (order == np.arange(k)).all(), "score, then id"


@pytest.mark.parametrize("factory", ["Flat", "PQ8x4fs,RFlat", "IVF16,SQfp16", "IVF16,PQ16x4fs,Refine(SQ8)"])
def test_deleted_rows_are_not_found_and_the_others_as_if_they_had_never_been_there(
    data, queries, factory, tmp_path
):
    trained = train_index(data[1], plan_for(factory))
    gone = np.arange(NUM_ROWS) % 3 == 0
    kept = filled(data, trained, np.flatnonzero(~gone))
    params = SearchParams(num_probes=4, refine_factor=4)
    wanted = IndexSearcher(kept, metric="cosine").search(queries, 10, params=params)
    shards = [filled(data, trained, rows) for rows in CUTS]
    save_index(tmp_path, shards, metadata(int((~gone).sum()), search_params=params), deleted=data[0][gone])
    opened = open_index(tmp_path)
    assert opened.search(queries, 10).equals(wanted)
    assert opened.metadata.num_deleted == gone.sum()
    some = opened.select(data[0][:60])
    assert np.array_equal(some.row_ids, np.sort(data[0][:60][~gone[:60]]))


def test_lists_merged_on_disk_search_like_one_index_also_after_a_move(data, queries, tmp_path):
    trained = train_index(data[1], plan_for("IVF16,SQ8"))
    wanted = IndexSearcher(filled(data, trained), metric="cosine").search(
        queries, 10, params=SearchParams(num_probes=4)
    )
    paths = [tmp_path / f"{number}.faiss" for number in range(len(CUTS))]
    for path, rows in zip(paths, CUTS, strict=True):
        write_faiss_file(filled(data, trained, rows), path)
    (tmp_path / "a").mkdir()
    merged = merge_files_on_disk(faiss.clone_index(trained), paths, tmp_path / "a" / "index.ivfdata")
    save_index(tmp_path / "a", merged, metadata())
    del merged
    (tmp_path / "a").rename(tmp_path / "b")
    for mmap in (True, False):
        assert open_index(tmp_path / "b", mmap=mmap).search(queries, 10).equals(wanted)
    with pytest.raises(ValueError, match="occur more than once"):
        merge_files_on_disk(faiss.clone_index(trained), [paths[0]] * 2, tmp_path / "again.ivfdata")
    refined = train_index(data[1], plan_for("PQ8x4fs,RFlat"))
    with pytest.raises(ValueError, match=r"index\.layout=sharded"):
        merge_files_on_disk(refined, [], tmp_path / "never.ivfdata")


def test_the_same_vectors_under_two_names_are_refused(data, tmp_path):
    index = filled(data, train_index(data[1], plan_for("Flat")))
    inputs = (IndexInput(name="a", digest="1", num_rows=5), IndexInput(name="b", digest="1", num_rows=5))
    with pytest.raises(ValueError, match="'b' is 'a' again"):
        save_index(tmp_path, index, metadata(inputs=inputs))


def test_a_reader_sees_the_version_that_the_pointer_names(data, queries, tmp_path):
    trained = train_index(data[1], plan_for("Flat"))
    for name, rows in (("0001", CUTS[0]), ("0002", CUTS[3])):
        index = filled(data, trained, rows)
        save_index(tmp_path / VERSIONS_FOLDER / name, index, metadata(index.ntotal))
    (tmp_path / CURRENT_FILE).write_text("0001\n")
    first = open_index(tmp_path)
    (tmp_path / CURRENT_FILE).write_text("0002\n")
    assert first.search(queries[:1], 1).ids[0, 0] in data[0][CUTS[0]]
    assert open_index(tmp_path).search(queries[:1], 1).ids[0, 0] in data[0][CUTS[3]]


def test_queries_are_cut_and_scaled_as_the_vectors_were(data, tmp_path):
    """The encoder gives 40 numbers; the index holds the first 32, scaled to length 1, by inner product."""
    index = filled(data, train_index(data[1], plan_for("Flat")))
    save_index(tmp_path, index, metadata(metric="inner_product", encoder_dim=40, normalized=True))
    opened = open_index(tmp_path)
    wide = np.concatenate([7 * data[1][:5], np.ones((5, 8), dtype=np.float32)], axis=1)
    found, wanted = opened.search(wide, 3), opened.search(data[1][:5], 3)
    np.testing.assert_array_equal(found.ids, wanted.ids)
    np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-6)
    with pytest.raises(ValueError, match="expected 32 dimensions, got 39"):
        opened.search(wide[:, :39], 3)


def test_the_queries_own_rows_do_not_count_as_found(data):
    """A quarter of the best four are missed by an index that lacks them, whatever it finds of the queries."""
    ids, vectors = data[0], normalize_rows(np.random.default_rng(1).standard_normal((NUM_ROWS, DIM)))
    plan = plan_for("PQ4x4fs")
    index = train_index(vectors, plan)
    add_vectors(index, ids, vectors)
    sample = np.arange(50)
    exact = exact_search(vectors[sample], [(ids, vectors)], 120)
    config = IndexConfig(factory="PQ4x4fs", allow_lower_recall=True)
    with_own = tune_search(index, vectors[sample], exact, plan, config)
    without = tune_search(index, vectors[sample], exact, plan, config, own_ids=ids[sample])
    assert without.recall_at_10.value < with_own.recall_at_10.value
    assert without.recall_at_100 is not None
    assert 0 < without.recall_at_100.value < 1
