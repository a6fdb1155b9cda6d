"""Input files: what a path, folder, glob or URL finds, and what it says when it finds nothing."""

import pytest

from pipelines.errors import InputError
from pipelines.inputs import _split_glob, find_files


def names(where):
    return [file.relative_name for file in find_files(str(where))]


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


@pytest.fixture
def tree(tmp_path):
    for name in (
        "a.parquet",
        "b.jsonl",
        "c.TXT",
        "notes.md",
        ".hidden.txt",
        "_SUCCESS",
        "_temporary/d.txt",
        "deep/e.csv.gz",
        "deep/er/f.tsv",
        "deep/.git/g.txt",
        "set.parquet/part-0.parquet",
    ):
        put(tmp_path / name, "x")
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (
            "",
            ["a.parquet", "b.jsonl", "c.TXT", "deep/e.csv.gz", "deep/er/f.tsv", "set.parquet/part-0.parquet"],
        ),
        ("a.parquet", ["a.parquet"]),
        ("deep", ["e.csv.gz", "er/f.tsv"]),
        ("deep/", ["e.csv.gz", "er/f.tsv"]),
        ("deep/../deep", ["e.csv.gz", "er/f.tsv"]),
        ("*.jsonl", ["b.jsonl"]),
        ("?.[jp]*", ["a.parquet", "b.jsonl"]),
        ("*.parquet", ["a.parquet", "set.parquet/part-0.parquet"]),
        ("*.tsv", None),
        ("**/*.tsv", ["deep/er/f.tsv"]),
        ("**/*.jsonl", ["b.jsonl"]),
        ("d*", ["deep/e.csv.gz", "deep/er/f.tsv"]),
        ("deep/*/f.tsv", ["er/f.tsv"]),
        (".hidden.txt", [".hidden.txt"]),
        ("_temporary/d.txt", ["d.txt"]),
        ("notes.md", None),
        ("nowhere", None),
        ("nowhere/*.txt", None),
    ],
)
def test_a_file_folder_or_glob_finds_its_data_files_and_no_hidden_ones(tree, pattern, found):
    where = f"{tree}/{pattern}"
    if found is not None:
        assert names(where) == found
        return
    with pytest.raises(InputError) as caught:
        find_files(where)
    assert where in str(caught.value) or str(tree) in str(caught.value)


def test_a_relative_path_and_a_glob_without_folder_start_here(tree, monkeypatch):
    monkeypatch.chdir(tree)
    assert names("deep") == ["e.csv.gz", "er/f.tsv"]
    assert names("*.jsonl") == ["b.jsonl"]


def test_a_file_url_finds_what_its_path_finds(tree):
    assert names(f"file://{tree}/deep") == ["e.csv.gz", "er/f.tsv"]
    assert names(f"file://{tree}/*.jsonl") == ["b.jsonl"]


def test_the_query_of_a_url_stays_with_its_folder():
    assert _split_glob("s3://b/x/*.parquet?region=r&a=*") == ("s3://b/x?region=r&a=*", "*.parquet")
    assert _split_glob("s3://b/x?endpoint_override=h") == ("s3://b/x?endpoint_override=h", None)
    assert _split_glob("/x/part-?.csv") == ("/x", "part-?.csv")


def test_no_input_tells_which_setting_to_make():
    with pytest.raises(InputError, match=r"corpus\.input"):
        find_files("")


def test_a_folder_without_data_tells_which_endings_it_looked_for(tmp_path):
    put(tmp_path / "readme.md", "x")
    with pytest.raises(InputError, match=r"\.jsonl.*\.parquet.*\.gz"):
        find_files(str(tmp_path))


def test_size_and_time_tell_a_changed_file_from_an_unchanged_one(tmp_path):
    path = put(tmp_path / "a.txt", "one")
    before = find_files(str(path))
    assert find_files(str(path)) == before
    put(path, "other")
    assert find_files(str(path))[0].size_bytes == 5
