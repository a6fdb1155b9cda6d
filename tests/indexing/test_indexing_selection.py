"""Filtered and two-stage search: every index type finds what exact search over the chosen rows finds."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from indexing.bm25 import BM25Searcher
from indexing.build import add_vectors, train_index
from indexing.exact import exact_search, normalize_rows
from indexing.fusion import weighted_score_fusion
from indexing.hits import NO_HIT, Hits, recall_at
from indexing.plan import IndexConfig, SearchParams, plan_index
from indexing.search import IndexSearcher
from indexing.store import IndexMetadata, open_index, save_index
from indexing.vector_files import VectorFiles, write_vector_file

NUM_ROWS, DIM, SHARD_BITS = 2000, 32, 32
FACTORIES = [
    "Flat",
    "SQ8",
    "PQ8x4fs",
    "PQ8x4fs,RFlat",
    "HNSW16,SQ8",
    "IVF16,SQ8",
    "IVF16,PQ16x4fs,Refine(SQ8)",
    "PCA16,IVF16,PQ8x4fs,RFlat",
]
PARAMS = SearchParams(num_probes=16, ef_search=64, refine_factor=4)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Row ids of four shards, normalised vectors with duplicates, and the vector files of the shards."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((40, DIM))
    raw = (centres[rng.integers(0, 40, NUM_ROWS)] + 0.6 * rng.standard_normal((NUM_ROWS, DIM))) * 3
    raw[1500:1550] = raw[:50]
    raw = raw.astype(np.float32)
    per_shard = NUM_ROWS // 4
    ids = np.concatenate([(shard << SHARD_BITS) + np.arange(per_shard) for shard in range(4)])
    folder = tmp_path_factory.mktemp("vectors")
    for shard in range(4):
        write_vector_file(folder / f"part-{shard:05d}.npy", raw[shard * per_shard : (shard + 1) * per_shard])
    return ids, normalize_rows(raw), VectorFiles.open(folder, shard_bits=SHARD_BITS)


@pytest.fixture(scope="module")
def queries(data):
    return data[1][::100] + np.float32(0.05)


@pytest.fixture(scope="module")
def indexes(data):
    ids, vectors, _ = data
    built = {}
    for factory in FACTORIES:
        index = train_index(vectors, plan_index(NUM_ROWS, DIM, IndexConfig(factory=factory)))
        add_vectors(index, ids, vectors)
        built[factory] = index
    return built


def searcher(indexes, data, factory, *, with_files=True):
    rows = (lambda ids: normalize_rows(data[2].rows(ids))) if with_files else None
    return IndexSearcher(indexes[factory], metric="cosine", full_vectors=rows)


@pytest.mark.parametrize("factory", FACTORIES)
def test_few_chosen_rows_are_scored_exactly_whatever_the_type(data, indexes, queries, factory):
    ids, vectors, _ = data
    chosen = np.arange(NUM_ROWS) % 7 == 3
    found = searcher(indexes, data, factory)
    hits = found.search(queries, 10, params=PARAMS, selection=found.select(ids[chosen]))
    assert hits.equals(exact_search(queries, [(ids[chosen], vectors[chosen])], 10))


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_selection_pushed_into_faiss_finds_only_chosen_rows_and_nearly_all_of_the_best(
    data, indexes, queries, factory, monkeypatch
):
    monkeypatch.setattr("indexing.search.MAX_ROWS_SCANNED", 0)
    ids, vectors, _ = data
    chosen = np.arange(NUM_ROWS) % 3 != 0
    for with_files in (True, False):
        found = searcher(indexes, data, factory, with_files=with_files)
        selection = found.select(ids[chosen])
        hits = found.search(queries, 10, params=PARAMS, selection=selection)
        assert np.isin(hits.ids[hits.ids != NO_HIT], ids[chosen]).all()
        exact = exact_search(queries, [(ids[chosen], vectors[chosen])], 100)
        assert recall_at(hits, exact, 10) >= (0.97 if with_files else 0.5)
        assert (selection.selectors is None) == (factory in ("PQ8x4fs", "PQ8x4fs,RFlat"))


@pytest.mark.parametrize("factory", ["SQ8", "PQ8x4fs", "IVF16,SQ8", "HNSW16,SQ8"])
def test_candidates_of_compressed_types_get_the_scores_of_exact_search(data, indexes, queries, factory):
    ids, vectors, _ = data
    exact = exact_search(queries, [(ids, vectors)], 100)
    two_stage = searcher(indexes, data, factory).search(queries, 10, params=PARAMS)
    one_stage = searcher(indexes, data, factory, with_files=False).search(queries, 10, params=PARAMS)
    right = {
        (q, i): s for q in range(len(queries)) for i, s in zip(exact.ids[q], exact.scores[q], strict=True)
    }
    for query, (row, scores) in enumerate(zip(two_stage.ids, two_stage.scores, strict=True)):
        assert all(right.get((query, i), s) == s for i, s in zip(row, scores, strict=True))
    assert recall_at(two_stage, exact, 10) >= recall_at(one_stage, exact, 10)
    assert recall_at(two_stage, exact, 10) > 0.9


def test_unknown_ids_are_left_out_of_a_selection_and_an_empty_one_finds_nothing(data, indexes, queries):
    found = searcher(indexes, data, "Flat")
    selection = found.select(np.array([5, 9 << SHARD_BITS, 3], np.int64))
    assert selection.row_ids.tolist() == [3, 5]
    zero = np.zeros((1, DIM), np.float32)
    assert found.search(zero, 3, params=PARAMS, selection=selection).ids.tolist() == [[3, 5, NO_HIT]]
    empty = found.select(np.array([9 << SHARD_BITS], np.int64))
    assert (found.search(queries, 3, params=PARAMS, selection=empty).ids == NO_HIT).all()


def test_threads_with_different_selections_do_not_disturb_each_other(data, indexes, queries):
    ids, vectors, _ = data
    found = searcher(indexes, data, "IVF16,SQ8")
    parts = [np.arange(NUM_ROWS) % 5 == part for part in range(5)] * 6
    wanted = [exact_search(queries, [(ids[part], vectors[part])], 5) for part in parts[:5]] * 6
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(
            lambda part: found.search(queries, 5, params=PARAMS, selection=found.select(ids[part])), parts
        )
        assert all(answer.equals(right) for answer, right in zip(answers, wanted, strict=True))


def test_an_index_opened_with_vector_files_gives_exact_scores_and_refuses_others(
    data, indexes, queries, tmp_path
):
    ids, vectors, files = data
    metadata = IndexMetadata(
        factory="SQ8",
        metric="cosine",
        dim=DIM,
        num_vectors=NUM_ROWS,
        search_params=SearchParams(),
        recall_at_10=None,
        target_recall_at_10=0.9,
        encoder_fingerprint="e",
        documents_digest="d",
    )
    save_index(tmp_path, indexes["SQ8"], metadata)
    opened = open_index(tmp_path, full_vectors=files)
    assert not opened.keeps_vectors
    exact = exact_search(normalize_rows(queries), [(ids, vectors)], 5)
    found = opened.search(queries, 5)
    assert np.array_equal(found.ids[:, 0], exact.ids[:, 0])
    assert np.array_equal(found.scores[:, 0], exact.scores[:, 0])
    narrow = VectorFiles({0: np.zeros((3, 4), np.float32)}, dim=4, shard_bits=SHARD_BITS)
    with pytest.raises(ValueError, match="4 dimensions, the index 32"):
        open_index(tmp_path, full_vectors=narrow)


def test_vector_files_give_rows_by_id_in_the_asked_order_and_name_missing_ones(data):
    ids, vectors, files = data
    asked = ids[[1999, 3, 700, 3]]
    np.testing.assert_allclose(normalize_rows(files.rows(asked)), vectors[[1999, 3, 700, 3]], rtol=1e-6)
    for missing in (500, 7 << SHARD_BITS):
        with pytest.raises(ValueError, match=f"no rows {missing}"):
            files.rows([missing])


def test_vector_files_of_another_kind_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        VectorFiles.open(tmp_path, shard_bits=32)
    write_vector_file(tmp_path / "part-00000.npy", np.zeros((2, 3), np.float32))
    write_vector_file(tmp_path / "part-00001.npy", np.zeros((2, 4), np.float16))
    with pytest.raises(ValueError, match="different widths"):
        VectorFiles.open(tmp_path, shard_bits=32)
    write_vector_file(tmp_path / "part-00001.npy", np.zeros((2, 3), np.int8))
    with pytest.raises(ValueError, match="int8"):
        VectorFiles.open(tmp_path, shard_bits=32)


def test_bm25_finds_only_chosen_texts_with_unchanged_scores_also_from_a_memory_map(tmp_path):
    built = BM25Searcher.build([1, 2, 3], ["red fox", "red red", "blue"])
    built.save(tmp_path)
    loaded = BM25Searcher.load(tmp_path, mmap=True)
    everything = built.retrieve(["red"], 3)
    for found in (built, loaded):
        hits = found.retrieve(["red"], 3, selection=found.select([1, 3]))
        assert hits.ids.tolist() == [[1, NO_HIT, NO_HIT]]
        assert hits.scores[0, 0] == everything.scores[0, everything.ids[0].tolist().index(1)]


def test_weighted_fusion_adds_scores_stretched_to_the_unit_interval():
    left = Hits(np.array([[1, 2, 3]]), np.array([[9.0, 5.0, 1.0]], np.float32))
    right = Hits(np.array([[3, 4, NO_HIT]]), np.array([[0.5, 0.25, -np.inf]], np.float32))
    fused = weighted_score_fusion([left, right], 5, weights=[3, 1])
    assert fused.ids.tolist() == [[1, 2, 3, 4, NO_HIT]]
    assert fused.scores[0, :4].tolist() == [0.75, 0.375, 0.25, 0.0]
    single = Hits(np.array([[7]]), np.array([[0.1]], np.float32))
    assert weighted_score_fusion([single], 1).scores.tolist() == [[1.0]]
    with pytest.raises(ValueError, match="positive weights"):
        weighted_score_fusion([left, right], 5, weights=[1, -1])
