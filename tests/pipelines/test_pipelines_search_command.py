"""`tsdae search`: files of queries to rankings in every format, a dialogue, one query; what it refuses."""

import io
import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from search_builders import call

from indexing.fusion import FusionConfig
from pipelines.errors import InputError
from pipelines.ranking_files import Query, read_queries, write_rankings
from pipelines.search import Hit


def test_the_search_command_answers_a_file_of_queries_in_every_format(
    monkeypatch, capfd, search_workspace, searcher, tmp_path
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
        options = ("--mode", "hybrid", "--filter", "size < 90", "-k", "3", "-w", search_workspace)
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


def test_a_trec_run_names_a_document_of_several_rows_once(tmp_path):
    found = [("a", 0.9), ("b", 0.8), ("a", 0.7), ("c", 0.6)]
    hits = [Hit(rank, doc_id, score, None, "x") for rank, (doc_id, score) in enumerate(found, 1)]
    write_rankings(str(tmp_path / "run.trec"), [(Query("q", "text"), hits)])
    lines = (tmp_path / "run.trec").read_text().splitlines()
    assert lines == ["q Q0 a 1 0.9 tsdae", "q Q0 b 2 0.8 tsdae", "q Q0 c 3 0.6 tsdae"]


def test_only_a_line_feed_ends_a_query(tmp_path):
    text = "read\u2028a file\x85now"
    rows = [{"query_id": "a", "query": text}, {"query": "b"}]
    lines = [json.dumps(row, ensure_ascii=False) + "\r\n" for row in rows]
    (tmp_path / "q.jsonl").write_text("".join(lines), encoding="utf-8", newline="")
    assert read_queries(str(tmp_path / "q.jsonl")) == [Query("a", text), Query("2", "b")]
    (tmp_path / "q.txt").write_text(f"{text}\n\nb", encoding="utf-8", newline="")
    assert read_queries(str(tmp_path / "q.txt")) == [Query("1", text), Query("3", "b")]


def test_a_place_that_cannot_be_written_to_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write '.*file/run\.jsonl'"):
        write_rankings(str(tmp_path / "file" / "run.jsonl"), [(Query("q", "a"), [])])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("a query", "--queries", "q.txt", "--output", "o.trec"), "a QUERY or a file of --queries, not both"),
        (("--queries", "q.txt", "--output", "o.jsonl", "--json"), "--json is for the terminal"),
        (("--queries", "q.txt"), "--queries and --output belong together"),
        (("--queries", "q.txt", "--output", "o.csv"), "must end in .jsonl, .parquet, .trec"),
        (("--queries", "q.txt", "--output", "o.trec"), "there is no file 'q.txt'"),
    ],
)
def test_options_that_do_not_go_together_are_told_before_anything_is_opened(
    monkeypatch, capfd, tmp_path, options, message
):
    assert call(monkeypatch, "search", *options, "-w", tmp_path / "nowhere") == 2
    assert message in capfd.readouterr().err


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
def test_the_search_command_fuses_as_it_is_told(
    monkeypatch, capfd, search_workspace, searcher, options, fusion
):
    common = ("-w", search_workspace, "-k", "4", "--json", "--mode", "hybrid")
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
def test_a_fusion_that_makes_no_sense_is_refused_with_code_2(
    monkeypatch, capfd, search_workspace, options, message
):
    assert call(monkeypatch, "search", "read", "-w", search_workspace, *options) == 2
    assert message in capfd.readouterr().err


def test_the_search_command_holds_a_dialogue_and_survives_mistakes(monkeypatch, capfd, search_workspace):
    lines = ["read file", ":mode bm25", ":filter topic = colour", "blue", ":k none", "size", ":quit", "never"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    assert call(monkeypatch, "search", "-w", search_workspace, "-k", "2", "--json") == 0
    written = capfd.readouterr()
    hits = [json.loads(line) for line in written.out.splitlines()]
    assert len(hits) == 4
    assert {hit["columns"]["topic"] for hit in hits[2:]} == {"colour"}
    assert "cannot do ':k none'" in written.err


def test_the_search_command_shows_titles_and_columns_to_people(monkeypatch, capfd, search_workspace):
    assert call(monkeypatch, "search", "read file", "-w", search_workspace, "-k", "1") == 0
    written = capfd.readouterr()
    shown = written.out
    assert "Loading weights" not in written.err, "no bar between a query and its answer"
    assert shown.startswith("1. ")
    assert "topic files" in shown


@pytest.mark.parametrize(
    "row", [r'{"query": "a \ud800"}', r'{"_id": "\ud800", "query": "a"}', r'{"query": "a\udc00"}']
)
def test_a_query_with_half_a_surrogate_pair_is_one_line_and_code_2(
    monkeypatch, capfd, tmp_path, search_workspace, row
):
    (tmp_path / "q.jsonl").write_text('{"query": "fine"}\n' + row)
    output = tmp_path / "out.jsonl"
    options = ("--output", output, "-w", search_workspace)
    assert call(monkeypatch, "search", "--queries", tmp_path / "q.jsonl", *options) == 2
    assert call(monkeypatch, "search", "\udcff", "-w", search_workspace) == 2
    errors = capfd.readouterr().err
    assert errors.count("half of a surrogate pair") == 2
    assert "Traceback" not in errors
    assert not output.exists()
