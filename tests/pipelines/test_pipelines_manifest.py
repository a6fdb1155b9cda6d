"""Manifests: trusted when there, same for the same answer, gone with the question they answered."""

import dataclasses
import json

import pyarrow.fs as pafs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipelines.errors import InputError
from pipelines.manifest import (
    MANIFEST_NAME,
    Manifest,
    ShardRecord,
    StageFolder,
    package_versions,
    read_manifest,
    stable_hash,
    write_receipt,
)
from pipelines.storage import Location

SHARDS = [
    ShardRecord(name="part-1", num_rows=2, digest="b"),
    ShardRecord(name="part-0", num_rows=1, digest="a"),
]


@pytest.fixture(params=["local", "memory"])
def folder(request, tmp_path):
    if request.param == "memory":
        return Location(pafs._MockFileSystem(), "bucket/stage")
    return Location.parse(tmp_path / "stage")


def stage_in(folder, *, config=None, inputs=None, stage="corpus"):
    return StageFolder(folder, stage=stage, config=config or {"a": 1}, inputs=inputs or {"files": "x"})


def names_below(folder):
    return [info.path[len(folder.path) + 1 :] for info in folder.files(recursive=True)]


def finished(folder, **question):
    stage = stage_in(folder, **question)
    stage.begin()
    (folder / "part-0.parquet").write_bytes(b"rows")
    return stage.finish(counts={"rows": 3}, shards=SHARDS, facts={"when": "today"})


def test_a_finished_stage_is_found_again_with_all_that_it_recorded(folder):
    manifest = finished(folder)
    assert stage_in(folder).finished() == read_manifest(folder) == manifest
    assert [shard.name for shard in manifest.shards] == ["part-0", "part-1"]
    assert (folder / MANIFEST_NAME).read_json()["digest"] == manifest.digest
    assert names_below(folder) == [MANIFEST_NAME, "part-0.parquet"]


def test_an_unfinished_stage_has_no_manifest(folder):
    assert read_manifest(folder) is None
    stage = stage_in(folder)
    stage.begin()
    assert (stage.finished(), read_manifest(folder)) == (None, None)


@pytest.mark.parametrize(
    "question",
    [{"config": {"a": 2}}, {"config": {"a": 1, "b": 0}}, {"inputs": {"files": "y"}}, {"stage": "s"}],
)
def test_another_question_is_not_answered_by_the_old_manifest(folder, question):
    manifest = finished(folder)
    stage = stage_in(folder, **question)
    assert stage.finished() is None
    assert stage.fingerprint != manifest.fingerprint
    assert read_manifest(folder) == manifest  # asking removes nothing


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(left=VALUES, right=VALUES)
def test_hashes_are_equal_exactly_when_the_values_are(left, right):
    same = json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
    assert (stable_hash(left) == stable_hash(right)) is same
    assert stable_hash(json.loads(json.dumps(left))) == stable_hash(left)


@given(config=st.dictionaries(st.text(max_size=3), VALUES, max_size=3), data=st.data())
def test_the_order_of_settings_does_not_change_the_fingerprint(config, data):
    shuffled = dict(data.draw(st.permutations(list(config.items()))))
    place = Location.parse("unused")
    first = StageFolder(place, stage="s", config=config, inputs={})
    assert StageFolder(place, stage="s", config=shuffled, inputs={}).fingerprint == first.fingerprint


MANIFEST = Manifest(
    stage="corpus",
    fingerprint="f",
    config={"a": 1},
    inputs={"x": "y"},
    counts={"rows": 3},
    shards=tuple(SHARDS),
)


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"a": 2}},
        {"fingerprint": "g"},
        {"inputs": {"x": "z"}},
        {"facts": {"score": 0.5}},
        {"versions": {"ray": "0"}},
    ],
)
def test_the_digest_is_blind_to_what_was_asked_and_what_made_it(change):
    assert dataclasses.replace(MANIFEST, **change).digest == MANIFEST.digest


@pytest.mark.parametrize(
    "change",
    [
        {"stage": "documents"},
        {"counts": {"rows": 4}},
        {"shards": SHARDS[:1]},
        {"shards": [SHARDS[0], dataclasses.replace(SHARDS[1], digest="c")]},
        {"shards": [SHARDS[0], dataclasses.replace(SHARDS[1], counts={"dropped": 1})]},
        {"files": {"model": "d"}},
    ],
)
def test_the_digest_tells_every_change_of_what_came_out(change):
    assert dataclasses.replace(MANIFEST, **change).digest != MANIFEST.digest


def test_begin_keeps_the_shards_and_receipts_of_the_same_interrupted_question(folder):
    stage = stage_in(folder)
    stage.begin()
    (folder / "part-0.parquet").write_bytes(b"rows")
    (folder / "part-1.parquet.tmp-0123456789ab").write_bytes(b"half")
    write_receipt(stage.receipt_place("map", "part-0"), SHARDS[1])
    again = stage_in(folder)
    again.begin()
    assert again.receipts("map") == {"part-0": SHARDS[1]}
    assert again.receipts("reduce") == {}
    assert "part-0.parquet" in names_below(folder)
    assert "part-1.parquet.tmp-0123456789ab" not in names_below(folder)


def test_begin_removes_what_another_interrupted_question_left(folder):
    other = stage_in(folder, config={"a": 2})
    other.begin()
    (folder / "part-9.parquet").write_bytes(b"rows")
    write_receipt(other.receipt_place("map", "part-9"), SHARDS[0])
    stage = stage_in(folder)
    stage.begin()
    assert stage.receipts("map") == {}
    assert names_below(folder) == ["_started.json"]


def test_begin_removes_what_another_finished_question_left(folder):
    finished(folder, config={"a": 2})
    stage_in(folder).begin()
    assert names_below(folder) == ["_started.json"]


def test_begin_of_a_finished_question_that_is_asked_anew_starts_from_nothing(folder):
    finished(folder)
    stage_in(folder).begin()
    assert names_below(folder) == ["_started.json"]


def test_finish_writes_the_manifest_before_it_tidies(folder, monkeypatch):
    """A kill after the manifest leaves working files, never a folder that has lost both."""
    stage = stage_in(folder)
    stage.begin()
    write_receipt(stage.receipt_place("map", "a"), SHARDS[0])
    seen = []
    delete = Location.delete
    monkeypatch.setattr(
        Location, "delete", lambda self: seen.append((folder / MANIFEST_NAME).exists()) or delete(self)
    )
    stage.finish(counts={})
    assert seen
    assert all(seen)


def test_working_files_left_by_a_kill_after_the_manifest_go_when_the_stage_is_asked_again(
    folder, monkeypatch
):
    stage = stage_in(folder)
    stage.begin()
    write_receipt(stage.receipt_place("map", "a"), SHARDS[0])
    with monkeypatch.context() as killed:
        killed.setattr(Location, "delete", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            stage.finish(counts={})
    assert "_started.json" in names_below(folder)
    assert stage_in(folder, config={"a": 2}).finished() is None
    assert "_started.json" in names_below(folder)  # another question tidies nothing
    assert stage_in(folder).finished() is not None
    assert names_below(folder) == [MANIFEST_NAME]


def test_a_user_error_leaves_no_folder_and_another_error_leaves_the_finished_shards(folder):
    stage = stage_in(folder)
    stage.begin()
    with pytest.raises(RuntimeError), stage.removed_on_user_error():
        raise RuntimeError
    assert names_below(folder) == ["_started.json"]
    with pytest.raises(InputError), stage.removed_on_user_error():
        raise InputError("bad row")
    assert not folder.exists()


def test_a_manifest_holds_no_path_and_no_time(folder):
    first = finished(folder)
    text = (folder / MANIFEST_NAME).read_bytes().decode()
    folder.delete()
    assert finished(folder) == first
    assert (folder / MANIFEST_NAME).read_bytes().decode() == text
    assert folder.path not in text


def test_versions_name_the_packages_that_shape_the_output_and_leave_out_absent_ones():
    versions = package_versions()
    assert {"ray", "torch", "pyarrow", "numpy"} <= set(versions)
    assert all(versions.values())


@given(rows=st.integers(0, 2**40), counts=st.dictionaries(st.text(max_size=3), st.integers(), max_size=3))
def test_receipts_are_read_back_as_they_were_written(rows, counts):
    stage = stage_in(Location(pafs._MockFileSystem(), "b/stage"))
    record = ShardRecord(name="x", num_rows=rows, digest="d", counts=counts)
    assume(stage.receipts("g") == {})
    write_receipt(stage.receipt_place("g", "x"), record)
    assert stage.receipts("g") == {"x": record}
