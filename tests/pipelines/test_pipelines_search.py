"""The searcher over a whole workspace: modes, filters, documents, re-ranking, threads, the command line."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from search_builders import make_rows, make_workspace

from indexing.exact import exact_search, normalize_rows
from indexing.fusion import FusionConfig, fuse
from pipelines.cli import main as cli
from pipelines.errors import InputError
from pipelines.ranking_files import Query, write_rankings
from pipelines.rerank import CrossEncoderReranker, EncoderReranker
from pipelines.search import Hit, Searcher

QUERY = "read a line of the file"


@pytest.fixture(scope="module")
def _no_ray(module_monkeypatch):
    from tests.pipelines.shard_builders import run_shards_here

    module_monkeypatch.setattr("pipelines.lookup.run_shards", run_shards_here)


@pytest.fixture(scope="module")
def module_monkeypatch():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, _no_ray):
    folder = tmp_path_factory.mktemp("search")
    make_workspace(folder / "work")
    return folder / "work"


@pytest.fixture(scope="module")
def searcher(workspace):
    return Searcher.open(str(workspace))


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
def test_weights_that_were_replaced_in_place_are_another_encoder(tmp_path):
    from safetensors.numpy import load_file, save_file

    make_workspace(tmp_path / "work")
    place = tmp_path / "work/encoder/model.safetensors"
    weights = load_file(place)
    name = next(name for name in weights if "word_embeddings" in name)
    save_file(weights | {name: weights[name] + np.float32(0.01)}, place, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="built with another encoder"):
        Searcher.open(str(tmp_path / "work"))


@pytest.fixture(scope="module")
def cross_encoder(workspace, tmp_path_factory):
    """A tiny cross-encoder with random weights and the workspace's tokenizer."""
    from sentence_transformers import CrossEncoder
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    folder = tmp_path_factory.mktemp("cross") / "model"
    tokenizer = AutoTokenizer.from_pretrained(str(workspace / "encoder"))
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        num_labels=1,
        initializer_range=0.5,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, CrossEncoder(str(folder), device="cpu")


def test_a_cross_encoder_puts_the_candidates_in_its_own_order(searcher, cross_encoder):
    folder, model = cross_encoder
    reranker = CrossEncoderReranker.load(str(folder))
    candidates = searcher.search([QUERY], 20)[0]
    reranked = searcher.search([QUERY], 5, reranker=reranker, rerank_depth=20)[0]
    scores = model.predict([(QUERY, hit.text) for hit in candidates])
    best = np.argsort(-scores, kind="stable")[:5]
    assert [hit.doc_id for hit in reranked] == [candidates[i].doc_id for i in best]
    np.testing.assert_allclose([hit.score for hit in reranked], scores[best], atol=1e-5)


def test_equal_candidates_keep_their_given_order(workspace):
    reranker = EncoderReranker.load(workspace / "encoder")
    scores = reranker.score("read file", ["blue", "read file", "blue"])
    assert scores[0] == scores[2]
    assert scores[1] == pytest.approx(1.0, abs=1e-6)
    assert len(reranker.score("x", [])) == 0


def test_a_model_that_cannot_be_loaded_is_told_in_one_line(tmp_path):
    for load in (EncoderReranker.load, CrossEncoderReranker.load):
        with pytest.raises(InputError, match="cannot load"):
            load(str(tmp_path / "none"))


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["tsdae", *map(str, arguments)])
    try:
        cli.main()
    except SystemExit as stop:
        return stop.code
    return 0


def test_the_search_command_answers_a_file_of_queries_in_every_format(
    monkeypatch, capfd, workspace, searcher, tmp_path
):
    queries = tmp_path / "queries.jsonl"
    asked = {"q1": "read file", "q2": "blue paint"}
    queries.write_text("".join(json.dumps({"_id": i, "text": t}) + "\n" for i, t in asked.items()))
    wanted = {
        query: [hit.doc_id for hit in searcher.search([text], 3, mode="hybrid", filter="size < 90")[0]]
        for query, text in asked.items()
    }
    kept: dict[str, list[dict[str, object]]] = {}
    for ending in ("jsonl", "parquet", "trec"):
        output = tmp_path / f"run.{ending}"
        options = ("--mode", "hybrid", "--filter", "size < 90", "-k", "3", "-w", workspace)
        assert call(monkeypatch, "search", "--queries", queries, "--output", output, *options) == 0
        found: dict[str, list[str]] = {}
        if ending == "jsonl":
            lines = [json.loads(line) for line in output.read_text().splitlines()]
            found = {line["query_id"]: [hit["doc_id"] for hit in line["hits"]] for line in lines}
            kept["jsonl"] = [hit["columns"] for line in lines for hit in line["hits"]]
        elif ending == "parquet":
            for row in pq.read_table(output).to_pylist():
                found.setdefault(row["query_id"], []).append(row["doc_id"])
                kept.setdefault("parquet", []).append(row["columns"])
        else:
            for line in output.read_text().splitlines():
                query, _, doc_id, rank, _, _ = line.split()
                found.setdefault(query, []).append(doc_id)
                assert len(found[query]) == int(rank)
        assert found == wanted
    assert "2 queries" in capfd.readouterr().err
    assert kept["parquet"] == kept["jsonl"]
    assert set(kept["jsonl"][0]) == {"topic", "year", "size"}
    types = pq.read_schema(tmp_path / "run.parquet").field("columns").type
    assert {field.name: str(field.type) for field in types} == {
        "topic": "string",
        "year": "string",
        "size": "int64",
    }


def test_a_parquet_run_without_other_columns_has_no_such_column(tmp_path):
    hits = [(Query("q", "a"), [Hit(1, "d", 0.5, None, "text")])]
    for name, columns in (("a", None), ("b", pa.schema([]))):
        assert write_rankings(str(tmp_path / f"{name}.parquet"), hits, columns=columns) == 1
        assert "columns" not in pq.read_schema(tmp_path / f"{name}.parquet").names


@pytest.mark.parametrize(
    ("options", "fusion"),
    [
        ((), FusionConfig()),
        (("--fusion", "rrf", "--rrf-k", "1"), FusionConfig(rank_offset=1)),
        (
            ("--fusion", "weighted", "--dense-weight", "0.9"),
            FusionConfig(kind="weighted", dense_weight=0.9),
        ),
        (("--dense-weight", "0.1"), FusionConfig(dense_weight=0.1)),
    ],
)
def test_the_search_command_fuses_as_it_is_told(monkeypatch, capfd, workspace, searcher, options, fusion):
    common = ("-w", workspace, "-k", "4", "--json", "--mode", "hybrid")
    assert call(monkeypatch, "search", "read blue file", *common, *options) == 0
    shown = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    wanted = searcher.search(["read blue file"], 4, mode="hybrid", fusion=fusion)[0]
    assert [(hit["doc_id"], hit["score"]) for hit in shown] == [(hit.doc_id, hit.score) for hit in wanted]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--fusion", "weighted"), "go with --mode hybrid"),
        (("--mode", "bm25", "--rrf-k", "3"), "go with --mode hybrid"),
        (("--mode", "hybrid", "--fusion", "weighted", "--rrf-k", "3"), "goes with the fusion rrf"),
        (("--mode", "hybrid", "--dense-weight", "1.5"), "must be between 0 and 1, got 1.5"),
        (("--mode", "hybrid", "--rrf-k", "0"), "rrf-k"),
        (("--mode", "hybrid", "--fusion", "sum"), "fusion"),
    ],
)
def test_a_fusion_that_makes_no_sense_is_refused_with_code_2(monkeypatch, capfd, workspace, options, message):
    assert call(monkeypatch, "search", "read", "-w", workspace, *options) == 2
    assert message in capfd.readouterr().err


def test_the_search_command_holds_a_dialogue_and_survives_mistakes(monkeypatch, capfd, workspace):
    import io

    lines = ["read file", ":mode bm25", ":filter topic = colour", "blue", ":k none", "size", ":quit", "never"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    assert call(monkeypatch, "search", "-w", workspace, "-k", "2", "--json") == 0
    written = capfd.readouterr()
    hits = [json.loads(line) for line in written.out.splitlines()]
    assert len(hits) == 4
    assert {hit["columns"]["topic"] for hit in hits[2:]} == {"colour"}
    assert "cannot do ':k none'" in written.err


def test_the_search_command_shows_titles_and_columns_to_people(monkeypatch, capfd, workspace):
    assert call(monkeypatch, "search", "read file", "-w", workspace, "-k", "1") == 0
    shown = capfd.readouterr().out
    assert shown.startswith("1. ")
    assert "topic files" in shown


def test_the_rerank_command_orders_candidates_as_the_encoder_or_a_cross_encoder_says(
    monkeypatch, capfd, workspace, searcher, cross_encoder, tmp_path
):
    folder, model = cross_encoder
    texts = ["blue paint", "read file", "server port", "blue paint"]
    given = tmp_path / "candidates.jsonl"
    lines = [
        {
            "query_id": "a",
            "query": "file path",
            "candidates": [{"id": f"c{i}", "text": t} for i, t in enumerate(texts)],
        },
        {"query": "red", "candidates": texts[:2]},
        {"query_id": "none", "query": "red", "candidates": []},
    ]
    given.write_text("\n".join(json.dumps(line) for line in lines))
    vectors = normalize_rows(searcher.encode(["file path", *texts]))
    right = {"encoder": vectors[1:] @ vectors[0], "cross": model.predict([("file path", t) for t in texts])}
    for name, options in (("encoder", ("-w", workspace)), ("cross", ("--cross-encoder", folder))):
        output = tmp_path / f"{name}.jsonl"
        assert call(monkeypatch, "rerank", given, "--output", output, *options) == 0
        answers = [json.loads(line) for line in output.read_text().splitlines()]
        assert [answer["query_id"] for answer in answers] == ["a", "2", "none"]
        wanted = [f"c{i}" for i in np.argsort(-np.round(right[name], 5), kind="stable")]
        assert [hit["doc_id"] for hit in answers[0]["hits"]] == wanted
        assert answers[2]["hits"] == []


@pytest.mark.parametrize(
    "row", [r'{"query": "a \ud800"}', r'{"_id": "\ud800", "query": "a"}', r'{"query": "a\udc00"}']
)
def test_a_query_with_half_a_surrogate_pair_is_one_line_and_code_2(
    monkeypatch, capfd, tmp_path, workspace, row
):
    (tmp_path / "q.jsonl").write_text('{"query": "fine"}\n' + row)
    output = tmp_path / "out.jsonl"
    options = ("--output", output, "-w", workspace)
    assert call(monkeypatch, "search", "--queries", tmp_path / "q.jsonl", *options) == 2
    assert call(monkeypatch, "search", "\udcff", "-w", workspace) == 2
    errors = capfd.readouterr().err
    assert errors.count("half of a surrogate pair") == 2
    assert "Traceback" not in errors
    assert not output.exists()


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("a.jsonl", "{", "line 1 is not JSON"),
        ("a.jsonl", r'{"query": "\ud800", "candidates": ["x"]}', "the query holds half"),
        ("a.jsonl", r'{"query": "x", "candidates": ["\ud800"]}', "a candidate holds half"),
        ("a.jsonl", '{"query": "x"}', "row 1: expected a query and a list"),
        ("a.jsonl", '{"query": "x", "candidates": [{"id": 1}]}', "candidate 0 has no text"),
        ("a.jsonl", "[]", "line 1: expected an object"),
        ("a.jsonl", "", "holds no queries"),
        ("a.xml", "", "must end in"),
    ],
)
def test_a_bad_candidate_file_is_one_line_and_code_2(
    monkeypatch, capfd, tmp_path, workspace, name, text, part
):
    (tmp_path / name).write_text(text)
    output = tmp_path / "out.jsonl"
    assert call(monkeypatch, "rerank", tmp_path / name, "--output", output, "-w", workspace) == 2
    error = capfd.readouterr().err
    assert part in error
    assert error.count("\n") == 1
    assert not output.exists()


def test_the_map_of_a_workspace_shows_titles_and_colours_by_a_column(workspace):
    from pipelines.corpus_map import workspace_map_svg
    from pipelines.storage import Location

    place = Location.parse(workspace)
    by_column = workspace_map_svg(place, place / "corpus", column="topic")
    assert all(f">{topic} (30)<" in by_column for topic in ("files", "network", "colour", "numbers"))
    assert by_column.count("<title>") == 120
    assert "<title>files 0</title>" in by_column
    sampled = workspace_map_svg(place, place / "corpus", num_points=40)
    assert sampled.count("<title>") == 40
    with pytest.raises(InputError, match="no column 'mood'"):
        workspace_map_svg(place, place / "corpus", column="mood")


def test_searching_loads_neither_ray_nor_mlflow():
    code = "import sys, pipelines.search; print({'ray', 'mlflow', 'fastapi'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "set()\n", done.stderr
