"""The searcher over a whole workspace: modes, filters, documents, threads, and what it refuses."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from search_builders import make_rows, make_workspace

from indexing.exact import exact_search, normalize_rows
from indexing.fusion import FusionConfig, fuse
from pipelines.errors import InputError
from pipelines.readable import find_readable
from pipelines.search import Searcher
from pipelines.storage import Location
from tests.pipelines.shard_builders import run_shards_here

QUERY = "read a line of the file"


@pytest.fixture
def _no_ray(monkeypatch):
    monkeypatch.setattr("pipelines.lookup.run_shards", run_shards_here)


@pytest.fixture(scope="module")
def rows():
    return {row["doc_id"]: row for row in make_rows()}


def test_text_and_its_vector_find_the_same_documents_with_all_their_columns(searcher, rows):
    by_text = searcher.search([QUERY], 5)
    assert by_text == searcher.search(searcher.encode([QUERY]), 5)
    assert [hit.rank for hit in by_text[0]] == [1, 2, 3, 4, 5]
    for hit in by_text[0]:
        row = rows[hit.doc_id]
        assert (hit.title, hit.text) == (row["title"], row["text"])
        assert hit.columns == {key: row[key] for key in ("topic", "year", "size")}


def test_a_document_is_found_first_by_its_own_text_in_every_mode(searcher, rows):
    for mode in ("dense", "bm25", "hybrid"):
        for row in list(rows.values())[::17]:
            assert searcher.search([row["text"]], 1, mode=mode)[0][0].doc_id == row["doc_id"]


def test_hybrid_is_the_fusion_of_both_rankings(searcher):
    dense, lexical = (searcher.search_hits([QUERY], 100, mode=mode) for mode in ("dense", "bm25"))
    for fusion in (FusionConfig(), FusionConfig(kind="weighted", dense_weight=0.8)):
        found = searcher.search_hits([QUERY], 10, mode="hybrid", fusion=fusion)
        assert found.equals(fuse(dense, lexical, 10, fusion))


@pytest.mark.parametrize("mode", ["dense", "bm25", "hybrid"])
def test_a_filter_lets_through_what_fits_and_loses_nothing(searcher, rows, mode):
    condition = 'topic in files, colour and year >= 2010 and size < 100 and title contains "S"'
    hits = searcher.search(["read file"], 120, mode=mode, filter=condition)[0]
    allowed = {
        name
        for name, row in rows.items()
        if row["topic"] in ("files", "colour")
        and row["year"]
        and int(row["year"]) >= 2010
        and row["size"] < 100
        and "s" in row["title"].lower()
    }
    found = {hit.doc_id for hit in hits}
    assert found <= allowed
    assert found
    if mode != "bm25":
        assert found == allowed


def test_documents_by_id_and_more_like_one_without_itself(searcher, rows):
    assert searcher.document("doc/7").text == rows["doc/7"]["text"]
    like = searcher.like("doc/7", 5)
    assert [hit.rank for hit in like] == [1, 2, 3, 4, 5]
    assert "doc/7" not in {hit.doc_id for hit in like}
    with pytest.raises(InputError, match="no document 'doc/x'"):
        searcher.like("doc/x", 3)


def test_a_batch_answers_every_query_in_order_whatever_the_block_size(searcher, rows):
    texts = [row["text"] for row in rows.values()][:23]
    wanted = [hits[0].doc_id for hits in searcher.search(texts, 1)]
    assert [hits[0].doc_id for hits in searcher.search_batch(iter(texts), 1, batch_size=5)] == wanted
    with pytest.raises(InputError, match="got one text"):
        next(searcher.search_batch("read file", 1))


def test_threads_get_the_answers_of_a_single_one(searcher, rows):
    asked = [
        ([row["text"]], mode, condition)
        for row in list(rows.values())[:12]
        for mode in ("dense", "bm25", "hybrid")
        for condition in (None, "topic = files", "size > 50")
    ]

    def ask(question):
        texts, mode, condition = question
        return searcher.search(texts, 5, mode=mode, filter=condition)

    wanted = [ask(question) for question in asked]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, asked)) == wanted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"queries": [" "]}, "query is empty"),
        ({"queries": ["x"], "mode": "magic"}, "unknown mode 'magic'"),
        ({"queries": ["x"], "filter": "colour = red"}, "no column 'colour'"),
        ({"queries": ["x"], "filter": "size = big"}, "holds int64, not 'big'"),
        ({"queries": ["x"], "filter": "size > 3 or size < 2"}, "expected `and`"),
        ({"queries": ["x"], "filter": "size"}, "nothing follows"),
        ({"queries": ["x"], "filter": "size ~ 3"}, "unknown operator"),
        ({"queries": ["x"], "filter": " "}, "filter is empty"),
        ({"queries": "read file"}, r"expected a list of queries, got one text; give \['read file'\]"),
        ({"queries": [[0.1, 0.2]]}, r"vectors as a numpy array float\[n, d\], got a list of list"),
        ({"queries": np.ones((1, 3), np.float32)}, "expected 32 dimensions"),
        ({"queries": np.ones((1, 32), np.float32), "mode": "bm25"}, "needs the query's text"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_with_its_reason(searcher, arguments, message):
    with pytest.raises(ValueError, match=message):
        searcher.search(arguments.pop("queries"), 3, **arguments)


@pytest.mark.usefixtures("_no_ray")
def test_a_compressed_index_scores_its_candidates_with_the_full_vectors(tmp_path):
    make_workspace(tmp_path / "work", factory="SQ4")
    searcher = Searcher.open(str(tmp_path / "work"))
    assert list((tmp_path / "work" / "lookup").glob("versions/*/vectors/part-00000.npy"))
    texts = [row["text"] for row in make_rows()]
    rows = [row for shard in range(2) for row in make_rows()[shard::2]]
    ids = np.array([(i // 60 << 32) + i % 60 for i in range(120)])
    vectors = normalize_rows(searcher.encode([row["text"] for row in rows]))
    exact = exact_search(normalize_rows(searcher.encode(texts[:8])), [(ids, vectors)], 3)
    found = searcher.search_hits(texts[:8], 3)
    np.testing.assert_allclose(found.scores, exact.scores, atol=1e-6)


@pytest.mark.usefixtures("_no_ray")
def test_an_unfinished_workspace_names_the_command_that_is_missing(tmp_path):
    with pytest.raises(InputError, match="no workspace"):
        Searcher.open(str(tmp_path / "nowhere"))
    make_workspace(tmp_path / "work")
    (tmp_path / "work" / "lookup" / "manifest.json").unlink()
    with pytest.raises(InputError, match="tsdae lookup"):
        Searcher.open(str(tmp_path / "work"))


@pytest.mark.usefixtures("_no_ray")
def test_a_version_that_is_removed_while_it_is_opened_gives_way_to_a_newer_one(tmp_path, monkeypatch):
    make_workspace(tmp_path)
    there = find_readable(Location.parse(tmp_path))
    removed = replace(there, index=there.index / "removed since it was found")
    found = iter([removed, there])
    monkeypatch.setattr("pipelines.search.find_readable", lambda _: next(found))
    assert Searcher.open(str(tmp_path)).search([QUERY], 3)[0]
    monkeypatch.setattr("pipelines.search.find_readable", lambda _: removed)
    with pytest.raises((OSError, ValueError), match="removed since"):
        Searcher.open(str(tmp_path))


@pytest.mark.usefixtures("_no_ray")
def test_weights_that_were_replaced_in_place_are_another_encoder(tmp_path):
    from safetensors.numpy import load_file, save_file

    make_workspace(tmp_path / "work")
    place = tmp_path / "work/encoder/model.safetensors"
    weights = load_file(place)
    name = next(name for name in weights if "word_embeddings" in name)
    save_file(weights | {name: weights[name] + np.float32(0.01)}, place, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="built with another encoder"):
        Searcher.open(str(tmp_path / "work"))


def test_searching_loads_neither_ray_nor_mlflow():
    code = "import sys, pipelines.search; print({'ray', 'mlflow', 'fastapi'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "set()\n", done.stderr
