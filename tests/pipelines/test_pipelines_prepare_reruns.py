"""Prepare again: finished answers stand, bad input leaves nothing, interrupted runs end the same."""

import gzip
import hashlib

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from pipeline_builders import quiet_reporter, write_rows
from prepare_builders import ROWS, counts_add_up, dropped_of, files_below, run, texts_of

from pipelines import inputs
from pipelines.collection_config import CollectionConfig
from pipelines.errors import InputError
from pipelines.manifest import MANIFEST_NAME, StageFolder, read_manifest
from pipelines.prepare import prepare
from pipelines.prepare_gather import Gatherer
from pipelines.prepare_read import Reader
from pipelines.storage import Location

pytestmark = pytest.mark.usefixtures("_without_ray")


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
    assert names[:-3] == ["dropped/item-000000-0-duplicates.parquet"]
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
        ("a.jsonl", b'\n"text"\nnot json\n', {}, "no JSON object; line 2 is not JSON: not an object"),
        ("a.jsonl", b'{"words": "a"}\n', {}, "no column 'text'"),
        ("a.jsonl", b'{"text": "a"}\n', {"id_column": "id"}, "no column 'id'"),
        ("a.jsonl", b"", {}, "holds no rows"),
        ("a.jsonl", b'{"text": null}\n{"text": ""}\n', {}, "none of the 2 rows"),
        ("a.txt", b"caf\xe9\n", {}, "none of the 1 rows"),
        ("a.csv", b"t\xe9xt\na\n", {}, "line 1 is not valid UTF-8"),
        ("a.csv", b'"text\na\n', {}, "line 1 is not a header"),
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
    late = b'{"id": "a", "text": "kept by nobody"}\n{"text": 7}\n' * 9_000
    (folder / "late.jsonl.gz").write_bytes(gzip.compress(late)[:-30])
    (folder / "empty.parquet").write_bytes(b"")
    (folder / "words.txt.gz").write_bytes(b"words")
    write_rows(folder / "other.parquet", [("1", "x")], columns=("id", "words"))
    pq.write_table(pa.table({"id": ["1"], "text": [5]}), folder / "number.parquet")
    return {"late.jsonl.gz", "empty.parquet", "words.txt.gz", "other.parquet", "number.parquet"}


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
    (tmp_path / "in/words.txt.gz").unlink()
    with pytest.raises(InputError, match=r"cannot read '.*late\.jsonl\.gz' \(\d+ bytes\) as jsonl"):
        run(tmp_path / "in", tmp_path / "w", id_column="id")
    assert not (tmp_path / "w/corpus").exists()


def test_nothing_but_bad_files_tells_the_reason_of_the_first(tmp_path):
    for name in ("a.parquet", "b.parquet"):
        write_rows(tmp_path / f"in/{name}", [("1", "x")], columns=("id", "texts"))
    with pytest.raises(InputError, match=r"were skipped.*a\.parquet.*Did you mean 'texts'"):
        run(tmp_path / "in", tmp_path / "w", on_bad_file="skip")
    assert not (tmp_path / "w/corpus").exists()


def test_a_bad_file_read_in_several_pieces_counts_once(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "_PIECE_BYTES", 2_000)
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
    monkeypatch.setattr(inputs, "_PIECE_FILES", 1)
    whole, _ = run(tmp_path / "in", tmp_path / "a", num_shards=5)
    worked = []
    with monkeypatch.context() as patch:
        _kill_in(patch, stage)
        with pytest.raises(KilledError):
            run(tmp_path / "in", tmp_path / "b", num_shards=5)
    folder = tmp_path / "b/corpus"
    _lose_some_work(folder, receipts=stage != "finish")
    original = Reader._read
    monkeypatch.setattr(
        Reader,
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
        patch.setattr(Reader, "_read", after(2, Reader._read))
    elif stage == "gather":
        patch.setattr(Gatherer, "_gather", after(2, Gatherer._gather))
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
