"""The vectors file: what is written comes back, bytes are stable, malformed files are named."""

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from indexing.vectors import iter_vectors, read_vectors, write_vectors

FILESYSTEM = pyarrow.fs.LocalFileSystem()


def sample(num_rows=100, dim=8):
    rng = np.random.default_rng(0)
    return rng.permutation(num_rows * 3)[:num_rows].astype(np.int64), rng.standard_normal((num_rows, dim))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_vectors_come_back_rounded_to_the_stored_type(tmp_path, dtype):
    ids, vectors = sample()
    path = str(tmp_path / "part-0.parquet")
    write_vectors(FILESYSTEM, path, ids, vectors, dtype=dtype)
    read_ids, read = read_vectors(FILESYSTEM, path)
    assert np.array_equal(read_ids, ids)
    assert read.dtype == np.float32
    assert np.array_equal(read, vectors.astype(dtype).astype(np.float32))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_column_is_plain_arrow(tmp_path, dtype):
    path = str(tmp_path / "v.parquet")
    write_vectors(FILESYSTEM, path, *sample(), dtype=dtype)
    kind = pq.read_schema(path).field("vector").type
    assert pa.types.is_fixed_size_list(kind)
    assert kind.list_size == 8
    assert str(kind.value_type) == {"float16": "halffloat", "float32": "float"}[dtype]


def test_equal_input_gives_equal_bytes(tmp_path):
    for name in ("a", "b"):
        write_vectors(FILESYSTEM, str(tmp_path / name), *sample(), dtype="float16")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_many_row_groups_come_back_block_by_block(tmp_path, monkeypatch):
    monkeypatch.setattr("indexing.vectors.ROWS_PER_GROUP", 30)
    ids, vectors = sample()
    path = str(tmp_path / "v.parquet")
    write_vectors(FILESYSTEM, path, ids, vectors, dtype="float32")
    assert [len(block) for block, _ in iter_vectors(FILESYSTEM, path)] == [30, 30, 30, 10]
    assert np.array_equal(read_vectors(FILESYSTEM, path)[0], ids)


def test_an_empty_shard_keeps_its_dimensions(tmp_path):
    path = str(tmp_path / "v.parquet")
    write_vectors(FILESYSTEM, path, np.empty(0, dtype=np.int64), np.empty((0, 5)), dtype="float16")
    ids, vectors = read_vectors(FILESYSTEM, path)
    assert ids.shape == (0,)
    assert vectors.shape == (0, 5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_vectors_are_refused_by_row_id(tmp_path, bad):
    ids, vectors = sample()
    vectors[3, 2] = bad
    with pytest.raises(ValueError, match=f"row ids {ids[3]}"):
        write_vectors(FILESYSTEM, str(tmp_path / "v"), ids, vectors, dtype="float32")
    assert not (tmp_path / "v").exists()


def test_values_too_large_for_half_precision_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"as float16: .*row ids 1"):
        write_vectors(FILESYSTEM, str(tmp_path / "v"), [0, 1], [[1.0], [70_000.0]], dtype="float16")


def test_repeated_and_negative_ids_are_refused(tmp_path):
    with pytest.raises(ValueError, match="row ids 4 occur more than once"):
        write_vectors(FILESYSTEM, str(tmp_path / "v"), [4, 4], [[1.0], [2.0]], dtype="float16")
    with pytest.raises(ValueError, match=">= 0"):
        write_vectors(FILESYSTEM, str(tmp_path / "v"), [-1], [[1.0]], dtype="float16")


def write_table(path, **columns):
    pq.write_table(pa.table(columns), path)


def test_malformed_files_are_named_with_their_column(tmp_path):
    path = str(tmp_path / "v.parquet")
    good = pa.array([[1.0, 2.0]], type=pa.list_(pa.float32(), 2))
    write_table(path, row_id=pa.array([1]))
    with pytest.raises(ValueError, match=r"v\.parquet: column 'vector' is missing"):
        read_vectors(FILESYSTEM, path)
    write_table(path, row_id=pa.array(["a"]), vector=good)
    with pytest.raises(ValueError, match=r"v\.parquet: column 'row_id' must be int64"):
        read_vectors(FILESYSTEM, path)
    write_table(path, row_id=pa.array([1]), vector=pa.array([[1.0, 2.0]]))
    with pytest.raises(ValueError, match=r"v\.parquet: column 'vector' must be a fixed_size_list"):
        read_vectors(FILESYSTEM, path)
    write_table(path, row_id=pa.array([1]), vector=pa.array([None], type=good.type))
    with pytest.raises(ValueError, match=r"v\.parquet: .*column 'vector' has nulls"):
        read_vectors(FILESYSTEM, path)
    write_table(path, row_id=pa.array([1]), vector=pa.array([[1.0, None]], type=good.type))
    with pytest.raises(ValueError, match="null elements"):
        read_vectors(FILESYSTEM, path)
    write_table(path, row_id=pa.array([9]), vector=pa.array([[1.0, np.nan]], type=good.type))
    with pytest.raises(ValueError, match="row ids 9"):
        read_vectors(FILESYSTEM, path)


def test_a_truncated_file_is_named(tmp_path):
    path = tmp_path / "v.parquet"
    write_vectors(FILESYSTEM, str(path), *sample(), dtype="float16")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="not a readable Parquet file"):
        read_vectors(FILESYSTEM, str(path))


def test_a_missing_file_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_vectors(FILESYSTEM, str(tmp_path / "none"))
