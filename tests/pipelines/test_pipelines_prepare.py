"""Prepare: every row is kept or set aside with a reason, and where it lands depends on its text alone."""

import hashlib
import itertools
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pipeline_builders import write_rows
from prepare_builders import ROWS, counts_add_up, dropped_of, run, table_of, texts_of

from pipelines import inputs
from pipelines import prepare as prepare_module
from pipelines.collection import read_rows, read_shard
from pipelines.prepare import ROWS_PER_SHARD_BITS
from pipelines.storage import Location

pytestmark = pytest.mark.usefixtures("_without_ray")


MIXED = [
    ("1", "A first sentence."),
    ("2", "  A  first\tsentence. "),
    ("3", None),
    ("4", ""),
    ("5", "\x00\x07 "),
    ("6", "ab"),
    ("7", "x" * 60),
    (None, "A row without an id."),
    ("", "A row with an empty id."),
    ("8", "e\u0301cole"),
    ("9", "école"),
    ("10", "Another sentence."),
]


def test_every_row_is_kept_once_or_set_aside_with_file_row_and_reason(tmp_path):
    write_rows(tmp_path / "in/a.jsonl", MIXED)
    manifest, note = run(tmp_path / "in", tmp_path / "w", id_column="id", min_chars=3, max_chars=50)
    counts = counts_add_up(tmp_path / "w", manifest)
    assert counts == {
        "rows_read": 12,
        "rows_kept": 3,
        "skipped_files": 0,
        "dropped_duplicate": 2,
        "dropped_empty": 2,
        "dropped_null": 1,
        "dropped_null_id": 2,
        "dropped_too_long": 1,
        "dropped_too_short": 1,
    }
    reasons = {(row["file"], row["row"]): row["reason"] for row in dropped_of(tmp_path / "w")}
    assert reasons == {
        ("a.jsonl", 1): "duplicate",
        ("a.jsonl", 2): "null",
        ("a.jsonl", 3): "empty",
        ("a.jsonl", 4): "empty",
        ("a.jsonl", 5): "too_short",
        ("a.jsonl", 6): "too_long",
        ("a.jsonl", 7): "null_id",
        ("a.jsonl", 8): "null_id",
        ("a.jsonl", 10): "duplicate",
    }
    assert texts_of(tmp_path / "w", manifest) == ["A first sentence.", "Another sentence.", "école"]
    assert "3 of 12 rows kept" in note
    assert "2 duplicate" in note


@pytest.mark.parametrize("piece_bytes", [10, 1 << 20])
def test_a_row_set_aside_is_named_by_its_place_in_the_whole_file(tmp_path, monkeypatch, piece_bytes):
    monkeypatch.setattr(inputs, "_PIECE_BYTES", piece_bytes)
    texts = [f"text {i}" for i in range(40)]
    texts[9] = texts[23] = None
    texts[38] = texts[1]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=10)
    run(tmp_path / "a.parquet", tmp_path / "w")
    rows = {row["row"]: row["reason"] for row in dropped_of(tmp_path / "w")}
    assert rows == {9: "null", 23: "null", 38: "duplicate"}


def test_rows_set_aside_carry_an_excerpt_of_their_text(tmp_path):
    write_rows(tmp_path / "a.jsonl", [("1", "y" * 9_000), ("2", "fine text")])
    run(tmp_path / "a.jsonl", tmp_path / "w", max_chars=100)
    assert [row["text"] for row in dropped_of(tmp_path / "w")] == ["y" * 200]


def test_row_ids_tell_shard_and_place_and_find_their_rows(tmp_path):
    write_rows(tmp_path / "a.jsonl", [(str(i), f"sentence number {i}") for i in range(200)])
    manifest, _ = run(tmp_path / "a.jsonl", tmp_path / "w", num_shards=4, id_column="id")
    assert [shard.name for shard in manifest.shards] == [f"part-0000{i}" for i in range(4)]
    folder = Location.parse(tmp_path / "w") / "corpus"
    everything = []
    for number, shard in enumerate(manifest.shards):
        rows = read_shard(folder, shard.name, ["row_id", "text"]).to_pylist()
        assert [row["row_id"] for row in rows] == [
            (number << ROWS_PER_SHARD_BITS) + place for place in range(shard.num_rows)
        ]
        everything += rows
    picked = everything[::-7]
    found = read_rows(folder, pa.array([row["row_id"] for row in picked]).to_numpy(), ["text"])
    assert [row["text"] for row in found] == [row["text"] for row in picked]
    assert min(shard.num_rows for shard in manifest.shards) > 20


def test_output_columns_have_the_types_of_the_contract(tmp_path):
    write_rows(tmp_path / "a.csv", [("1", "one", "x")], columns=("id", "title", "text"))
    run(tmp_path / "a.csv", tmp_path / "w", num_shards=1, title_column="title")
    schema = pq.read_schema(tmp_path / "w/corpus/part-00000.parquet")
    kinds = {"row_id": pa.int64(), "doc_id": pa.string(), "text": pa.string(), "title": pa.string()}
    assert {field.name: field.type for field in schema} == kinds


def test_one_column_may_serve_as_text_id_and_title(tmp_path):
    for ending in ("jsonl", "csv", "parquet"):
        write_rows(tmp_path / f"a.{ending}", [("1", "same text")])
        manifest, _ = run(tmp_path / f"a.{ending}", tmp_path / ending, id_column="text", title_column="text")
        (row,) = table_of(tmp_path / ending, manifest)
        assert (row["doc_id"], row["title"], row["text"]) == ("same text",) * 3


def split_into_files(folder, rows, cuts, endings, *, seed):
    """The rows in a shuffled order over several files of several formats and names."""
    shuffled = random.Random(seed).sample(rows, len(rows))
    bounds = [0, *sorted(cuts), len(rows)]
    for number, (start, end) in enumerate(itertools.pairwise(bounds)):
        ending = endings[number % len(endings)]
        name = hashlib.sha256(f"{seed} {number}".encode()).hexdigest()[:8]
        write_rows(folder / f"{name}.{ending}", shuffled[start:end])


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(st.integers(1, 89), max_size=5, unique=True),
    endings=st.lists(st.sampled_from(["jsonl", "parquet", "csv", "tsv.gz"]), min_size=1, max_size=3),
    seed=st.integers(0, 1000),
    with_ids=st.booleans(),
)
def test_shards_are_the_same_bytes_however_the_rows_come(tmp_path_factory, cuts, endings, seed, with_ids):
    folder = tmp_path_factory.mktemp("prepare")
    wanted = {"num_shards": 3, "id_column": "id" if with_ids else None}
    write_rows(folder / "one/all.jsonl", ROWS)
    split_into_files(folder / "many", ROWS, cuts, endings, seed=seed)
    one, _ = run(folder / "one", folder / "a", **wanted)
    many, _ = run(folder / "many", folder / "b", **wanted)
    assert (one.digest, one.shards) == (many.digest, many.shards)
    assert one.counts["dropped_duplicate"] == 30


def test_which_of_equal_texts_stays_does_not_depend_on_file_names(tmp_path):
    rows = [("2", "z title", "same"), ("1", "b title", "same"), ("1", "a title", "same")]
    digests = []
    for number, order in enumerate([rows, rows[::-1], rows[1:] + rows[:1]]):
        for place, row in enumerate(order):
            write_rows(tmp_path / f"in{number}/{place}.jsonl", [row], columns=("id", "title", "text"))
        manifest, _ = run(
            tmp_path / f"in{number}", tmp_path / f"w{number}", id_column="id", title_column="title"
        )
        digests.append(manifest.digest)
        (row,) = table_of(tmp_path / f"w{number}", manifest)
        assert (row["doc_id"], row["title"]) == ("1", "a title")
    assert len(set(digests)) == 1


def test_without_an_id_column_the_id_is_made_of_the_text_alone(tmp_path):
    write_rows(tmp_path / "in1/a.jsonl", [("1", "Some  text."), ("2", "Other text.")])
    write_rows(tmp_path / "in2/b.csv", [("7", "Some text.")])
    ids = []
    for name in ("in1", "in2"):
        manifest, _ = run(tmp_path / name, tmp_path / f"w-{name}")
        ids.append({row["text"]: row["doc_id"] for row in table_of(tmp_path / f"w-{name}", manifest)})
    assert ids[0]["Some text."] == ids[1]["Some text."]
    assert len({*ids[0].values()}) == 2


def test_one_big_file_of_many_row_groups_equals_two_hundred_tiny_files(tmp_path, monkeypatch):
    rows = [(str(i), f"sentence {i} of many, with some words in it") for i in range(2_000)]
    for number in range(200):
        write_rows(tmp_path / f"tiny/{number}.parquet", rows[number * 10 : number * 10 + 10])
    big = pa.table({"id": [row[0] for row in rows], "text": [row[1] for row in rows]})
    pq.write_table(big, tmp_path / "big.parquet", row_group_size=50)
    tiny, _ = run(tmp_path / "tiny", tmp_path / "a", num_shards=8, id_column="id")
    monkeypatch.setattr(inputs, "_PIECE_BYTES", 3_000)
    whole, _ = run(tmp_path / "big.parquet", tmp_path / "b", num_shards=8, id_column="id")
    assert (tiny.digest, tiny.counts["rows_kept"]) == (whole.digest, 2_000)


def test_work_is_cut_at_row_groups_and_tiny_files_are_taken_together(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "_PIECE_BYTES", 10_000)
    texts = [f"{i} " + "abcdefghij" * 20 for i in range(400)]
    pq.write_table(
        pa.table({"text": texts}), tmp_path / "big.parquet", row_group_size=40, use_dictionary=False
    )
    for number in range(30):
        (tmp_path / f"small-{number}.txt").write_text(f"line of file {number}\n")
    files = inputs.find_files(str(tmp_path))
    groups = inputs.plan_pieces(files, inputs.check_files(files, ["text"]))
    pieces = [piece for group in groups for piece in group]
    assert [piece.row_groups for piece in pieces if piece.file.format == "parquet"] == [
        (i,) for i in range(10)
    ]
    assert len([piece for piece in pieces if piece.file.format == "text"]) == 30
    assert [len(group) for group in groups] == [1] * 9 + [31]  # 8,400 bytes per row group
    manifest, _ = run(tmp_path, tmp_path / "w/space", num_shards=2)
    assert counts_add_up(tmp_path / "w/space", manifest)["rows_kept"] == 430


def test_long_texts_of_many_pieces_give_the_same_bytes_as_those_of_one(tmp_path):
    words = random.Random(0)
    rows = [(str(i), " ".join(words.choices("abcdefgh", k=900))) for i in range(1_500)]
    write_rows(tmp_path / "one/a.parquet", rows)
    for i in range(0, 1_500, 75):
        write_rows(tmp_path / f"many/{i}.parquet", rows[i : i + 75])
    one, _ = run(tmp_path / "one", tmp_path / "a", num_shards=1)
    many, _ = run(tmp_path / "many", tmp_path / "b", num_shards=1)
    assert one.digest == many.digest


def test_fewer_rows_than_shards_give_empty_shards(tmp_path):
    write_rows(tmp_path / "a.jsonl", [("1", "only one")])
    manifest, _ = run(tmp_path / "a.jsonl", tmp_path / "w", num_shards=16)
    assert sorted(shard.num_rows for shard in manifest.shards) == [0] * 15 + [1]
    assert texts_of(tmp_path / "w", manifest) == ["only one"]


def test_the_number_of_shards_follows_the_size_of_the_input():
    gib = 1 << 30
    assert [prepare_module._num_shards(size) for size in (0, 1, gib // 2, gib, gib + 1, 200 * gib)] == [
        *(8, 8, 8, 16, 32),
        4096,
    ]
