"""Input at its extremes: one huge compressed file, thousands of tiny ones. Memory and tasks stay bounded."""

import bz2
import gzip
import tracemalloc
from contextlib import contextmanager

import pyarrow as pa
import pytest
from prepare_builders import counts_add_up, run, texts_of

from pipelines import inputs, lines, part_buffer, rows
from pipelines.collection_config import CollectionConfig
from pipelines.inputs import Piece, check_files, find_files, plan_pieces
from pipelines.prepare_read import Reader
from pipelines.rows import read_piece
from pipelines.storage import Location
from tests.pipelines.shard_builders import run_shards_here

_KIB, _MIB = 1 << 10, 1 << 20
# Buffers may outlive a test, and they need the pool they come from.
_POOLS = []
_ROWS = 2_000
_CUT = 128
_FILLER = "some words again and again " * 155  # 4 KiB, so that a file has few rows and is read soon
_LINES = {
    "txt.gz": lambda text: text,
    "csv.gz": lambda text: f'"{text}",7',
    "jsonl.gz": lambda text: f'{{"text": "{text}", "more": 7}}',
}


def write_compressed(path, count):
    """Rows as lines of a gzipped file; returns the bytes that they are without compression."""
    line = _LINES[path.name.partition(".")[2]]
    size = 0
    with gzip.open(path, "wt", compresslevel=1, encoding="utf-8", newline="\n") as stream:
        if path.name.endswith("csv.gz"):
            stream.write("text,more\n")
        for number in range(count):
            size += stream.write(line(f"{number} {_FILLER}") + "\n")
    return size


@contextmanager
def traced():
    """Yields a list that has, afterwards, the peak bytes of Python's objects and of Arrow's buffers."""
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    _POOLS.append(pool)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    peaks = []
    try:
        yield peaks
        peaks += [tracemalloc.get_traced_memory()[1], pool.max_memory()]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


@pytest.mark.parametrize("ending", _LINES)
def test_a_compressed_file_is_read_in_a_part_of_the_memory_that_its_text_takes(tmp_path, monkeypatch, ending):
    """The reader's own units are cut to a 128th, so that 8 MiB are to them what a GiB is to a run."""
    monkeypatch.setattr(part_buffer, "PART_BYTES", part_buffer.PART_BYTES // _CUT)
    monkeypatch.setattr(rows, "_BATCH_BYTES", rows._BATCH_BYTES // _CUT)
    monkeypatch.setattr(lines, "_READ_BYTES", lines._READ_BYTES // _CUT)
    size = write_compressed(tmp_path / f"a.{ending}", _ROWS)
    (file,) = find_files(str(tmp_path))
    assert size > 7 * _MIB > 20 * file.size_bytes
    config = CollectionConfig(input=str(tmp_path))
    read = Reader(Location.parse(tmp_path / "out"), config, 4)()
    with traced() as peaks:
        record = read("item-000000", {"pieces": (Piece(file),)})
    assert (record.num_rows, record.counts["kept"], record.counts["parts"]) == (_ROWS, _ROWS, 16)
    assert sum(peaks) < size / 2, [peak // _KIB for peak in peaks]


def test_one_compressed_file_is_read_by_one_task_and_is_many_equal_shards_after_that(tmp_path, monkeypatch):
    given = {}

    def counting(stage, group, items, work, **options):
        given[group] = len(items)
        return run_shards_here(stage, group, items, work, **options)

    monkeypatch.setattr("pipelines.prepare.run_shards", counting)
    with gzip.open(tmp_path / "a.csv.gz", "wt", encoding="utf-8") as stream:
        stream.write("text\n" + "".join(f"sentence number {i}\n" for i in range(6_000)))
    manifest, _ = run(tmp_path / "a.csv.gz", tmp_path / "w", num_shards=6)
    assert given == {"read": 1, "gather": 6}
    assert manifest.counts["rows_kept"] == 6_000
    assert all(900 < shard.num_rows < 1_100 for shard in manifest.shards)


@pytest.mark.parametrize(
    ("ending", "compress"),
    [
        ("gz", gzip.compress),
        ("bz2", bz2.compress),
        ("zst", lambda data: pa.compress(data, codec="zstd", asbytes=True)),
    ],
)
def test_compressed_files_that_were_put_one_behind_the_other_are_read_to_the_last(tmp_path, ending, compress):
    """Parallel compressors write so, and a reader that stops at the first end loses the rest silently."""
    parts = [f"text {number}\nmore of {number}\n".encode() for number in range(3)]
    (tmp_path / f"a.txt.{ending}").write_bytes(b"".join(map(compress, parts)))
    (file,) = find_files(str(tmp_path))
    found = [text for batch in read_piece(Piece(file), ["text"]) for text in batch.columns["text"]]
    assert found == b"".join(parts).decode().splitlines()


@pytest.mark.usefixtures("_without_ray")
def test_thousands_of_tiny_files_are_few_tasks_and_every_row_is_kept(tmp_path):
    """Three formats, in folders of 100 files each, so that listing goes through all levels."""
    contents = {"txt": "{}\n", "jsonl": '{{"text": "{}"}}\n', "csv": "text\n{}\n"}
    for number in range(3_000):
        ending = list(contents)[number % 3]
        folder = tmp_path / "in" / f"{number // 100:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:04d}.{ending}").write_text(contents[ending].format(f"the text of {number}"))
    files = find_files(str(tmp_path / "in"))
    assert [file.relative_name for file in files] == sorted(file.relative_name for file in files)
    groups = plan_pieces(files, check_files(files, ["text"]))
    assert [len(group) for group in groups] == [inputs._PIECE_FILES] * 6
    manifest, _ = run(tmp_path / "in", tmp_path / "w", num_shards=4)
    assert counts_add_up(tmp_path / "w", manifest)["rows_kept"] == 3_000
    assert texts_of(tmp_path / "w", manifest) == sorted(f"the text of {number}" for number in range(3_000))
