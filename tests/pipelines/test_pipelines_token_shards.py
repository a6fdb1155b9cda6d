"""Token shards: what is written is read back, and any rows come in any order."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_builders import make_tokens, random_rows, write_token_shards

from pipelines.manifest import Manifest, ShardRecord
from pipelines.storage import Location
from pipelines.token_shards import TOKENS_FOLDER, TokenRows, read_validation
from pipelines.token_tables import from_table, to_table

SIZES = (50, 1, 20, 37)


def rows_as_lists(tokens):
    bounds = list(zip(tokens.ids.offsets[:-1], tokens.ids.offsets[1:], strict=True))
    return [(tokens.ids.values[a:b].tolist(), tokens.word_starts[a:b].tolist()) for a, b in bounds]


@pytest.fixture(scope="module")
def shards():
    made = []
    for i, size in enumerate(SIZES):
        row_ids = (i << 32) + np.arange(size, dtype=np.int64) * 3
        made.append((row_ids, make_tokens(random_rows(size, seed=i), seed=i)))
    return made


@pytest.fixture(scope="module")
def opened(shards, tmp_path_factory):
    """The same rows in one row group per shard, and in row groups of four rows."""
    folders = [Location.parse(tmp_path_factory.mktemp("tokens")) for _ in range(2)]
    return [
        write_token_shards(folder, shards, row_group_rows=rows)
        for folder, rows in zip(folders, (4_096, 4), strict=True)
    ]


@pytest.fixture(scope="module")
def naive(shards):
    return [
        (int(row_id), row)
        for row_ids, tokens in shards
        for row_id, row in zip(row_ids, rows_as_lists(tokens), strict=True)
    ]


@settings(deadline=None, max_examples=40)
@given(wanted=st.lists(st.integers(0, sum(SIZES) - 1), max_size=40), small_groups=st.booleans())
def test_rows_come_in_the_order_asked_also_twice_and_from_any_shard(opened, naive, wanted, small_groups):
    row_ids, tokens = opened[small_groups].read(np.array(wanted, np.int64))
    assert list(zip(row_ids.tolist(), rows_as_lists(tokens), strict=True)) == [naive[i] for i in wanted]


def test_all_rows_forwards_and_backwards(opened, naive):
    for rows in (np.arange(sum(SIZES)), np.arange(sum(SIZES))[::-1]):
        for reader in opened:
            row_ids, tokens = reader.read(rows)
            assert row_ids.tolist() == [naive[i][0] for i in rows]
            assert rows_as_lists(tokens) == [naive[i][1] for i in rows]


def test_only_the_row_groups_that_hold_the_rows_are_read(opened, monkeypatch):
    import pyarrow.parquet as pq

    asked = []
    whole = pq.ParquetFile.read_row_groups
    monkeypatch.setattr(
        pq.ParquetFile,
        "read_row_groups",
        lambda self, groups, **kwargs: asked.append(list(groups)) or whole(self, groups, **kwargs),
    )
    opened[1].read(np.array([49, 0, 50, 3]))
    assert asked == [[0, 12], [0]]


@given(
    rows=st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=6), max_size=12),
    first_id=st.integers(0, 2**62),
)
def test_a_table_gives_back_the_tokens_it_was_made_of(rows, first_id):
    tokens = make_tokens(rows)
    row_ids = np.arange(first_id, first_id + len(rows), dtype=np.int64)
    table = to_table(row_ids, tokens)
    half = len(rows) // 2
    for whole in (table, pa.concat_tables([table.slice(0, half), table.slice(half)])):
        ids, read = from_table(whole)
        np.testing.assert_array_equal(ids, row_ids)
        assert rows_as_lists(read) == rows_as_lists(tokens)


def test_shards_without_training_rows_are_passed_over(tmp_path, shards):
    write_token_shards(Location.parse(tmp_path) / TOKENS_FOLDER, shards)
    counts = [(50, {"train": 50}), (9, {"train": 0}), (1, {"train": 1})]
    records = [
        ShardRecord(name=f"part-{i:05d}", num_rows=size, digest="", counts=count)
        for i, (size, count) in zip((0, 7, 1), counts, strict=True)
    ]
    manifest = Manifest(stage="tokens", fingerprint="", config={}, inputs={}, counts={}, shards=records)
    rows = TokenRows.open(Location.parse(tmp_path), manifest)
    assert rows.num_rows == 51
    assert rows.read(np.array([50]))[0].tolist() == shards[1][0].tolist()


def test_held_out_rows_are_read_from_the_shards_that_have_some(tmp_path):
    workspace = Location.parse(tmp_path)
    row_ids, tokens = np.array([4, 9]), make_tokens([[7, 8], []])
    write_token_shards(workspace / TOKENS_FOLDER / "validation", [(row_ids, tokens)])
    records = [
        ShardRecord(name=f"part-0000{i}", num_rows=9, digest="", counts={"validation": count})
        for i, count in enumerate((2, 0))
    ]
    manifest = Manifest(stage="tokens", fingerprint="", config={}, inputs={}, counts={}, shards=records)
    ids, read = read_validation(workspace, manifest)
    assert ids.tolist() == [4, 9]
    assert rows_as_lists(read) == rows_as_lists(tokens)
    none = Manifest(stage="tokens", fingerprint="", config={}, inputs={}, counts={}, shards=records[1:])
    assert len(read_validation(workspace, none)[1]) == 0
