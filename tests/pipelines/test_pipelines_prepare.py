"""Prepare: every row is kept or set aside with a reason, and where it lands depends on its text alone."""

import hashlib
import itertools
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pipeline_builders import quiet_reporter, write_rows

from pipelines import prepare as prepare_module
from pipelines.collection import read_rows, read_shard
from pipelines.collection_config import CollectionConfig
from pipelines.errors import InputError
from pipelines.manifest import MANIFEST_NAME, StageFolder, read_manifest
from pipelines.prepare import ROWS_PER_SHARD_BITS, prepare
from pipelines.storage import Location

pytestmark = pytest.mark.usefixtures("_without_ray")


def run(source, workspace, **settings):
    reporter, written = quiet_reporter()
    config = CollectionConfig(input=str(source), **settings)
    manifest = prepare("corpus", config, Location.parse(workspace), reporter=reporter)
    return manifest, written.getvalue()


def table_of(workspace, manifest):
    folder = Location.parse(workspace) / "corpus"
    columns = ["row_id", "doc_id", "text", "title"]
    return pa.concat_tables(
        [read_shard(folder, shard.name, columns) for shard in manifest.shards]
    ).to_pylist()


def texts_of(workspace, manifest):
    return sorted(row["text"] for row in table_of(workspace, manifest))


def dropped_of(workspace):
    files = sorted((Path(workspace) / "corpus" / "dropped").glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def files_below(folder):
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in Path(folder).rglob("*")
        if path.is_file()
    }


def counts_add_up(workspace, manifest):
    dropped = [row for row in dropped_of(workspace) if row["reason"] != "bad_file"]
    by_reason = {}
    for row in dropped:
        by_reason[f"dropped_{row['reason']}"] = by_reason.get(f"dropped_{row['reason']}", 0) + 1
    counts = dict(manifest.counts)
    assert {key: value for key, value in counts.items() if key.startswith("dropped_")} == by_reason
    assert counts["rows_read"] == counts["rows_kept"] + len(dropped)
    assert counts["rows_kept"] == sum(shard.num_rows for shard in manifest.shards)
    assert counts["rows_kept"] == len(table_of(workspace, manifest))
    return counts


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
    monkeypatch.setattr(prepare_module, "_PIECE_BYTES", piece_bytes)
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


TEXTS = [f"text {i} " + "word " * (i % 7) for i in range(60)]
ROWS = [(f"id-{i}", TEXTS[i % len(TEXTS)]) for i in range(90)]


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
    monkeypatch.setattr(prepare_module, "_PIECE_BYTES", 3_000)
    whole, _ = run(tmp_path / "big.parquet", tmp_path / "b", num_shards=8, id_column="id")
    assert (tiny.digest, tiny.counts["rows_kept"]) == (whole.digest, 2_000)


def test_work_is_cut_at_row_groups_and_tiny_files_are_taken_together(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_module, "_PIECE_BYTES", 10_000)
    texts = [f"{i} " + "abcdefghij" * 20 for i in range(400)]
    pq.write_table(
        pa.table({"text": texts}), tmp_path / "big.parquet", row_group_size=40, use_dictionary=False
    )
    for number in range(30):
        (tmp_path / f"small-{number}.txt").write_text(f"line of file {number}\n")
    files = prepare_module.find_files(str(tmp_path))
    groups = prepare_module._plan_pieces(files, prepare_module.check_files(files, ["text"]))
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


def test_a_second_run_does_nothing_and_says_so(tmp_path):
    write_rows(tmp_path / "a.jsonl", ROWS)
    first, _ = run(tmp_path / "a.jsonl", tmp_path / "w")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "w").rglob("*")}
    second, note = run(tmp_path / "a.jsonl", tmp_path / "w")
    assert second == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "w").rglob("*")} == before
    assert note == "corpus: up to date, 60 rows\n"


def test_only_shards_dropped_rows_and_manifest_are_left(tmp_path):
    write_rows(tmp_path / "a.jsonl", ROWS)
    run(tmp_path / "a.jsonl", tmp_path / "w", num_shards=2)
    names = sorted(files_below(tmp_path / "w/corpus"))
    assert names[-3:] == ["manifest.json", "part-00000.parquet", "part-00001.parquet"]
    assert all(name.startswith("dropped/part-0000") for name in names[:-3])
    assert {path.name for path in (tmp_path / "w/corpus").iterdir() if path.is_dir()} == {"dropped"}


def test_changed_input_is_read_anew(tmp_path):
    write_rows(tmp_path / "in/a.jsonl", ROWS[:5])
    first, _ = run(tmp_path / "in", tmp_path / "w")
    write_rows(tmp_path / "in/b.jsonl", ROWS[5:9])
    second, _ = run(tmp_path / "in", tmp_path / "w")
    assert (first.counts["rows_kept"], second.counts["rows_kept"]) == (5, 9)
    (tmp_path / "in/a.jsonl").unlink()
    third, _ = run(tmp_path / "in", tmp_path / "w")
    assert third.counts["rows_kept"] == 4
    assert len({first.fingerprint, second.fingerprint, third.fingerprint}) == 3


def test_a_changed_setting_is_answered_anew_and_leaves_nothing_of_the_old_answer(tmp_path):
    write_rows(tmp_path / "a.jsonl", ROWS)
    run(tmp_path / "a.jsonl", tmp_path / "w", num_shards=4)
    manifest, _ = run(tmp_path / "a.jsonl", tmp_path / "w", num_shards=2, min_chars=10)
    fresh, _ = run(tmp_path / "a.jsonl", tmp_path / "fresh", num_shards=2, min_chars=10)
    assert manifest.digest == fresh.digest
    assert files_below(tmp_path / "w") == files_below(tmp_path / "fresh")


def test_a_moved_input_is_the_same_question(tmp_path):
    write_rows(tmp_path / "here/a.jsonl", ROWS)
    first, _ = run(tmp_path / "here", tmp_path / "w")
    (tmp_path / "here").rename(tmp_path / "there")
    second, note = run(tmp_path / "there", tmp_path / "w")
    assert second == first
    assert "up to date" in note


@pytest.mark.parametrize(
    ("name", "content", "settings", "part"),
    [
        ("a.jsonl", b'{"text": "a"}\nnot json\n', {}, "line 2 is not JSON"),
        ("a.jsonl", b'{"words": "a"}\n', {}, "no column 'text'"),
        ("a.jsonl", b'{"text": "a"}\n', {"id_column": "id"}, "no column 'id'"),
        ("a.jsonl", b"", {}, "holds no rows"),
        ("a.jsonl", b'{"text": null}\n{"text": ""}\n', {}, "none of the 2 rows"),
        ("a.txt", b"caf\xe9\n", {}, "not valid UTF-8"),
        ("a.parquet", b"", {}, "0 bytes"),
        ("a.csv.gz", b"words", {}, "a.csv.gz"),
        ("a.md", b"words", {}, "holds no data files"),
    ],
)
def test_bad_input_is_one_clear_error_and_leaves_no_output(tmp_path, name, content, settings, part):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        run(tmp_path / name, tmp_path / "w", **settings)
    assert part in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)
    assert not (tmp_path / "w/corpus").exists()


def test_a_null_only_parquet_column_is_refused_with_the_count_of_its_rows(tmp_path):
    pq.write_table(pa.table({"text": pa.nulls(7)}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"none of the 7 rows .* 7 null"):
        run(tmp_path / "a.parquet", tmp_path / "w")


def test_input_that_turned_bad_keeps_the_answer_of_before_until_it_can_be_replaced(tmp_path):
    write_rows(tmp_path / "a.parquet", ROWS)
    run(tmp_path / "a.parquet", tmp_path / "w")
    before = files_below(tmp_path / "w")
    (tmp_path / "a.parquet").write_bytes(b"")
    with pytest.raises(InputError):
        run(tmp_path / "a.parquet", tmp_path / "w")
    assert files_below(tmp_path / "w") == before


def bad_files(folder):
    write_rows(folder / "good.jsonl", ROWS[:6])
    (folder / "late.jsonl").write_text('{"id": "a", "text": "kept by nobody"}\nnot json\n')
    (folder / "empty.parquet").write_bytes(b"")
    (folder / "words.txt.gz").write_bytes(b"words")
    write_rows(folder / "other.parquet", [("1", "x")], columns=("id", "words"))
    pq.write_table(pa.table({"id": ["1"], "text": [5]}), folder / "number.parquet")
    return {"late.jsonl", "empty.parquet", "words.txt.gz", "other.parquet", "number.parquet"}


def test_bad_files_are_set_aside_as_a_whole_counted_and_named(tmp_path):
    bad = bad_files(tmp_path / "in")
    manifest, note = run(tmp_path / "in", tmp_path / "w", id_column="id", on_bad_file="skip")
    counts = counts_add_up(tmp_path / "w", manifest)
    assert counts == {"rows_read": 6, "rows_kept": 6, "skipped_files": 5}
    rows = [row for row in dropped_of(tmp_path / "w") if row["reason"] == "bad_file"]
    assert {row["file"] for row in rows} == bad
    assert len(rows) == 5
    for row in rows:
        assert row["file"] in row["text"]
        assert row["row"] is None
    assert "bad files skipped: 5, the first: empty.parquet" in note
    assert "kept by nobody" not in texts_of(tmp_path / "w", manifest)


def test_bad_files_fail_the_stage_unless_they_are_to_be_skipped(tmp_path):
    bad_files(tmp_path / "in")
    for name in ("empty.parquet", "other.parquet", "number.parquet"):
        with pytest.raises(InputError, match=r"\.parquet"):
            run(tmp_path / "in", tmp_path / "w", id_column="id")
        (tmp_path / "in" / name).unlink()
    with pytest.raises(InputError, match=r"late\.jsonl' line 2"):
        run(tmp_path / "in", tmp_path / "w", id_column="id")
    assert not (tmp_path / "w/corpus").exists()


def test_nothing_but_bad_files_tells_the_reason_of_the_first(tmp_path):
    for name in ("a.parquet", "b.parquet"):
        write_rows(tmp_path / f"in/{name}", [("1", "x")], columns=("id", "texts"))
    with pytest.raises(InputError, match=r"were skipped.*a\.parquet.*Did you mean 'texts'"):
        run(tmp_path / "in", tmp_path / "w", on_bad_file="skip")
    assert not (tmp_path / "w/corpus").exists()


def test_a_bad_file_read_in_several_pieces_counts_once(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_module, "_PIECE_BYTES", 2_000)
    texts = [f"{i} " + "abcdefghij" * 20 for i in range(100)]
    path = tmp_path / "in/a.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"text": texts}), path, row_group_size=20, compression="none")
    metadata = pq.read_metadata(path)
    content = bytearray(path.read_bytes())
    for group in (1, 3):
        start = metadata.row_group(group).column(0).dictionary_page_offset
        content[start : start + 200] = b"\xa5" * 200
    path.write_bytes(content)
    manifest, _ = run(tmp_path / "in", tmp_path / "w", on_bad_file="skip")
    assert counts_add_up(tmp_path / "w", manifest) == {"rows_read": 60, "rows_kept": 60, "skipped_files": 1}
    assert [row["file"] for row in dropped_of(tmp_path / "w")] == ["a.parquet"] * 2


class KilledError(Exception):
    """Stands for the end of the process: no clean-up for user errors runs."""


@pytest.mark.parametrize("stage", ["read", "gather", "finish"])
def test_an_interrupted_run_finishes_with_the_same_digest(tmp_path, monkeypatch, stage):
    for number in range(9):
        write_rows(tmp_path / f"in/{number}.jsonl", ROWS[number * 10 : number * 10 + 10])
    monkeypatch.setattr(prepare_module, "_PIECE_BYTES", 1)
    whole, _ = run(tmp_path / "in", tmp_path / "a", num_shards=5)
    worked = []
    with monkeypatch.context() as patch:
        _kill_in(patch, stage)
        with pytest.raises(KilledError):
            run(tmp_path / "in", tmp_path / "b", num_shards=5)
    folder = tmp_path / "b/corpus"
    _lose_some_work(folder, receipts=stage != "finish")
    original = prepare_module._Reader._read
    monkeypatch.setattr(
        prepare_module._Reader,
        "_read",
        lambda self, item, spec: worked.append(item) or original(self, item, spec),
    )
    again, _ = run(tmp_path / "in", tmp_path / "b", num_shards=5)
    assert (again.digest, again.fingerprint) == (whole.digest, whole.fingerprint)
    assert files_below(tmp_path / "a/corpus") == files_below(folder)
    assert len(worked) < 9


def _kill_in(patch, stage):
    """The third item of the pass, or the end of the stage, raises."""

    def after(count, function):
        calls = []

        def limited(*arguments, **options):
            calls.append(1)
            if len(calls) > count:
                raise KilledError
            return function(*arguments, **options)

        return limited

    if stage == "read":
        patch.setattr(prepare_module._Reader, "_read", after(2, prepare_module._Reader._read))
    elif stage == "gather":
        patch.setattr(prepare_module._Gatherer, "_gather", after(2, prepare_module._Gatherer._gather))
    else:
        patch.setattr(StageFolder, "finish", after(0, StageFolder.finish))


def _lose_some_work(folder, *, receipts):
    """Half-written files of a killed process, and a shard of each pass that is there without its receipt."""
    assert (folder / "_started.json").exists()
    assert not (folder / MANIFEST_NAME).exists()
    (folder / "part-00004.parquet.tmp-0123456789ab").write_bytes(b"half")
    (folder / "dropped").mkdir(exist_ok=True)
    (folder / "dropped/item-000000.parquet.tmp-0123456789ab").write_bytes(b"half")
    if receipts:
        for group in ("read", "gather"):
            for receipt in sorted((folder / "_receipts" / group).glob("*.json"))[:1]:
                receipt.unlink()


def test_without_its_manifest_a_finished_answer_is_not_trusted(tmp_path):
    write_rows(tmp_path / "a.jsonl", ROWS)
    first, _ = run(tmp_path / "a.jsonl", tmp_path / "w", num_shards=2)
    before = files_below(tmp_path / "w")
    (tmp_path / "w/corpus" / MANIFEST_NAME).unlink()
    (tmp_path / "w/corpus/part-00000.parquet").write_bytes(b"half")
    second, note = run(tmp_path / "a.jsonl", tmp_path / "w", num_shards=2)
    assert second == first
    assert "up to date" not in note
    assert files_below(tmp_path / "w") == before


def test_the_manifest_says_what_was_asked_and_what_came_out(tmp_path):
    write_rows(tmp_path / "a.jsonl", ROWS)
    manifest, _ = run(tmp_path / "a.jsonl", tmp_path / "w", num_shards=2)
    assert read_manifest(Location.parse(tmp_path / "w/corpus")) == manifest
    assert "input" not in manifest.config
    assert str(tmp_path) not in (tmp_path / "w/corpus" / MANIFEST_NAME).read_text()
    for shard in manifest.shards:
        content = (tmp_path / f"w/corpus/{shard.name}.parquet").read_bytes()
        assert shard.digest == hashlib.sha256(content).hexdigest()


def test_a_workspace_that_is_no_local_path_gets_the_same_bytes(tmp_path):
    write_rows(tmp_path / "a.jsonl", ROWS)
    local, _ = run(tmp_path / "a.jsonl", tmp_path / "w", num_shards=2)
    (tmp_path / "tree").mkdir()
    tree = pafs.SubTreeFileSystem(str(tmp_path / "tree"), pafs.LocalFileSystem())
    config = CollectionConfig(input=str(tmp_path / "a.jsonl"), num_shards=2)
    reporter, _ = quiet_reporter()
    remote = prepare("corpus", config, Location(tree, "bucket/w"), reporter=reporter)
    assert remote == local
    assert files_below(tmp_path / "tree/bucket/w") == files_below(tmp_path / "w")
