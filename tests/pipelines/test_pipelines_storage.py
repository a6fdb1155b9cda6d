"""Places: a name appears whole or not at all, on any file system that pyarrow knows."""

import hashlib
import pickle

import pyarrow.fs as pafs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import InputError
from pipelines.storage import Location, url_below


class CutError(Exception):
    """Stands for whatever ends a write half way."""


def in_memory():
    """A file system without a disk: nothing may assume local paths."""
    return Location(pafs._MockFileSystem(), "bucket/folder")


@pytest.fixture(params=["local", "memory", "subtree"])
def place(request, tmp_path):
    if request.param == "memory":
        return in_memory().make_dir()
    if request.param == "subtree":
        tree = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
        return Location(tree, "bucket/folder").make_dir()
    return Location.parse(tmp_path / "bucket/folder").make_dir()


def write_half(file):
    """Writes and closes half a file, then fails."""
    with file.write_atomically() as target:
        with target.open_output() as stream:
            stream.write(b"half")
        raise CutError


def names_below(place):
    return [info.path[len(place.path) + 1 :] for info in place.files(recursive=True)]


def test_what_is_written_is_read_back_and_hashed(place):
    file = place / "deep" / "er" / "a.bin.gz"
    file.write_bytes(b"one")
    file.write_bytes(b"\x1f\x8b two")
    assert file.read_bytes() == b"\x1f\x8b two"
    assert file.sha256() == hashlib.sha256(b"\x1f\x8b two").hexdigest()
    assert (file.exists(), file.is_dir(), (place / "deep").is_dir()) == (True, False, True)
    assert names_below(place) == ["deep/er/a.bin.gz"]
    assert file.name == "a.bin.gz"


def test_json_is_canonical_so_that_equal_values_are_equal_bytes(place):
    (place / "a.json").write_json({"b": 1, "a": ["é", None]})
    (place / "b.json").write_json({"a": ["é", None], "b": 1})
    assert (place / "a.json").sha256() == (place / "b.json").sha256()
    assert (place / "a.json").read_json() == {"a": ["é", None], "b": 1}


def test_a_write_that_fails_leaves_the_old_file_and_no_temporary_one(place):
    file = place / "a.bin"
    file.write_bytes(b"old")
    with pytest.raises(CutError):
        write_half(file)
    assert file.read_bytes() == b"old"
    assert names_below(place) == ["a.bin"]


def test_a_write_that_fails_before_its_first_byte_leaves_nothing(place):
    with pytest.raises(CutError), (place / "new" / "a.bin").write_atomically():
        raise CutError
    with pytest.raises(TypeError):
        (place / "b.json").write_json({"a": object()})
    assert names_below(place) == []


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(place):
    file = place / "a.bin"
    file.write_bytes(b"old")
    with file.write_atomically() as target, target.open_output() as stream:
        stream.write(b"new")
        stream.flush()
        assert file.read_bytes() == b"old"
    assert file.read_bytes() == b"new"


def test_a_failed_write_to_an_object_store_leaves_no_half_object(monkeypatch):
    """There the target is the final name, and closing the stream finishes whatever was uploaded."""
    monkeypatch.setattr("pipelines.storage._ATOMIC_ON_CLOSE", ("mock",))
    place = in_memory()
    with (place / "b.bin").write_atomically() as target:
        assert target == place / "b.bin"
        assert names_below(place) == []
    with pytest.raises(CutError):
        write_half(place / "a.bin")
    assert names_below(place) == []
    (place / "a.json.gz").write_bytes(b"whole")
    assert (place / "a.json.gz").read_bytes() == b"whole"


def test_delete_removes_files_and_folders_and_minds_neither_twice(place):
    (place / "a" / "b.txt").write_bytes(b"x")
    (place / "a" / "b.txt").delete()
    (place / "a" / "b.txt").delete()
    (place / "a").delete()
    (place / "a").delete()
    assert not (place / "a").exists()


def test_an_absent_folder_has_no_files(place):
    assert (place / "nowhere").files(recursive=True) == []


def test_temporary_files_of_killed_writes_go_and_nothing_else(place):
    for name in ("a.parquet", "a.parquet.tmp-0123456789ab", "deep/b.json.tmp-ab", "tmp-c"):
        (place / name).write_bytes(b"x")
    place.delete_temporary_files()
    assert names_below(place) == ["a.parquet", "tmp-c"]
    (place / "nowhere").delete_temporary_files()


@pytest.fixture
def local_tree(tmp_path):
    folder = tmp_path / "source"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_bytes(b"one")
    (folder / "deep" / "b.txt.gz").write_bytes(b"two")
    (folder / "empty").write_bytes(b"")
    return folder


def test_an_uploaded_folder_has_every_file_under_its_relative_name_with_its_hash(place, local_tree):
    digests = (place / "copy").upload_folder(local_tree)
    assert digests == {
        name: hashlib.sha256(content).hexdigest()
        for name, content in {"a.txt": b"one", "deep/b.txt.gz": b"two", "empty": b""}.items()
    }
    assert names_below(place / "copy") == sorted(digests)
    assert (place / "copy" / "deep" / "b.txt.gz").read_bytes() == b"two"


def test_as_a_local_folder_any_place_shows_its_files_and_leaves_no_copy(place, local_tree):
    (place / "copy").upload_folder(local_tree)
    with (place / "copy").as_local_folder() as folder:
        assert (folder / "deep" / "b.txt.gz").read_bytes() == b"two"
        assert (folder.as_posix() == place.path + "/copy") is place.is_local
    assert folder.exists() is place.is_local


def test_a_local_path_becomes_absolute_and_a_url_loses_its_last_slash(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Location.parse("a/b").path == f"{tmp_path}/a/b"
    assert Location.parse(tmp_path / "a") == Location.parse(f"{tmp_path}/a/")
    assert Location.parse(f"file://{tmp_path}/a/").path == f"{tmp_path}/a"
    assert str(Location.parse("a")) == f"{tmp_path}/a"
    assert str(in_memory()) == "mock://bucket/folder"


@pytest.mark.parametrize(
    ("url", "below"),
    [
        ("s3://bucket/a", "s3://bucket/a/b/c"),
        ("s3://bucket/a/?region=x&scheme=http", "s3://bucket/a/b/c?region=x&scheme=http"),
    ],
)
def test_the_url_of_what_lies_below_keeps_its_options(url, below):
    assert url_below(url, "b/c") == below


def test_the_home_folder_may_be_written_as_a_tilde(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Location.parse("~/work").path == f"{tmp_path}/work"


@pytest.mark.parametrize("url", ["gopher://host/path", "nosuch://x"])
def test_a_url_that_nobody_understands_is_named(url):
    with pytest.raises(InputError, match=url):
        Location.parse(url)


def test_a_place_travels_to_other_processes(tmp_path):
    place = Location.parse(tmp_path) / "a"
    place.write_bytes(b"x")
    assert pickle.loads(pickle.dumps(place)).read_bytes() == b"x"


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_the_last_write_wins(contents):
    file = in_memory() / "a"
    for content in contents:
        file.write_bytes(content)
        assert file.read_bytes() == content
