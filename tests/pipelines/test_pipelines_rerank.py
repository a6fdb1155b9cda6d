"""Re-ranking: cosines or a cross-encoder put given candidates in order, in searches and by `tsdae rerank`."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from search_builders import call

from indexing.exact import normalize_rows
from pipelines.errors import InputError
from pipelines.rerank import CrossEncoderReranker, EncoderReranker

QUERY = "read a line of the file"


@pytest.fixture(scope="module")
def cross_encoder(search_workspace, tmp_path_factory):
    """A tiny cross-encoder with random weights and the workspace's tokenizer."""
    from sentence_transformers import CrossEncoder
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    folder = tmp_path_factory.mktemp("cross") / "model"
    tokenizer = AutoTokenizer.from_pretrained(str(search_workspace / "encoder"))
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


def test_equal_candidates_keep_their_given_order(search_workspace):
    reranker = EncoderReranker.load(search_workspace / "encoder")
    scores = reranker.score("read file", ["blue", "read file", "blue"])
    assert scores[0] == scores[2]
    assert scores[1] == pytest.approx(1.0, abs=1e-6)
    assert len(reranker.score("x", [])) == 0


def test_a_model_that_cannot_be_loaded_is_told_in_one_line(tmp_path):
    for load in (EncoderReranker.load, CrossEncoderReranker.load):
        with pytest.raises(InputError, match="cannot load"):
            load(str(tmp_path / "none"))


def test_the_rerank_command_orders_candidates_as_the_encoder_or_a_cross_encoder_says(
    monkeypatch, capfd, search_workspace, searcher, cross_encoder, tmp_path
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
    for name, options in (("encoder", ("-w", search_workspace)), ("cross", ("--cross-encoder", folder))):
        output = tmp_path / f"{name}.jsonl"
        assert call(monkeypatch, "rerank", given, "--output", output, *options) == 0
        answers = [json.loads(line) for line in output.read_text().splitlines()]
        assert [answer["query_id"] for answer in answers] == ["a", "2", "none"]
        wanted = [f"c{i}" for i in np.argsort(-np.round(right[name], 5), kind="stable")]
        assert [hit["doc_id"] for hit in answers[0]["hits"]] == wanted
        assert answers[2]["hits"] == []


def test_candidates_may_be_parquet_rankings_too_and_the_workspace_a_url(
    monkeypatch, search_workspace, tmp_path
):
    texts = ["blue paint", "read file", "server port"]
    candidates = [{"id": f"c{i}", "text": text} for i, text in enumerate(texts)]
    rows = [{"query_id": name, "query": "file path", "candidates": candidates} for name in ("a", "b")]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "given.parquet")
    output, options = tmp_path / "ranked.parquet", ("-w", f"file://{search_workspace}")
    assert call(monkeypatch, "rerank", tmp_path / "given.parquet", "--output", output, *options) == 0
    ranked = pq.read_table(output).to_pylist()
    reranker = EncoderReranker.load(search_workspace / "encoder")
    best = np.argsort(-reranker.score("file path", texts), kind="stable")
    wanted = [(name, rank, f"c{place}") for name in ("a", "b") for rank, place in enumerate(best, 1)]
    assert [(row["query_id"], row["rank"], row["doc_id"]) for row in ranked] == wanted


def test_a_workspace_without_an_encoder_is_told_in_one_line(monkeypatch, capfd, tmp_path):
    (tmp_path / "given.jsonl").write_text('{"query": "x", "candidates": ["a"]}')
    given, output = tmp_path / "given.jsonl", tmp_path / "out.trec"
    assert call(monkeypatch, "rerank", given, "--output", output, "-w", tmp_path) == 2
    error = capfd.readouterr().err
    assert "there is no encoder at" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("a.jsonl", "{", "line 1 is not JSON"),
        ("a.jsonl", r'{"query": "\ud800", "candidates": ["x"]}', "the query holds half"),
        ("a.jsonl", r'{"query": "x", "candidates": ["\ud800"]}', "a candidate holds half"),
        ("a.jsonl", '{"query": "x"}', "row 1: expected a query and a list"),
        ("a.jsonl", '{"query": "x", "candidates": [{"id": 1}]}', "candidate 0 has no text"),
        ("a.jsonl", "[]", "line 1: expected an object"),
        (
            "a.jsonl",
            '{"query_id": 1, "query": "x", "candidates": ["a"]}\n' * 2,
            "row 2: query id 1 occurs twice",
        ),
        (
            "a.jsonl",
            '{"query": "x", "candidates": [{"id": "a", "text": "x"}, {"id": "a", "text": "y"}]}',
            "row 1: candidate id 'a' occurs twice",
        ),
        ("a.jsonl", "", "holds no queries"),
        ("a.xml", "", "must end in"),
    ],
)
def test_a_bad_candidate_file_is_one_line_and_code_2(
    monkeypatch, capfd, tmp_path, search_workspace, name, text, part
):
    (tmp_path / name).write_text(text)
    output = tmp_path / "out.jsonl"
    assert call(monkeypatch, "rerank", tmp_path / name, "--output", output, "-w", search_workspace) == 2
    error = capfd.readouterr().err.splitlines()
    assert part in error[-1]
    assert [line for line in error if line.startswith("error: ")] == error[-1:]
    assert not output.exists()
