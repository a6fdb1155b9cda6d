"""Merging on disk stays within a bound that the index does not fit into; the operating system enforces it."""

import subprocess
import sys

import numpy as np
import pytest

import indexing.build
from indexing.build import add_vectors, check_unique_ids, train_index
from indexing.faiss_library import write_faiss_file
from indexing.plan import IndexConfig, plan_index

NUM_PARTS, ROWS_PER_PART, DIM = 4, 40_000, 128
# 160,000 rows of 136 bytes are 21 MiB; the merge may take 4 MiB of memory of its own.
ROOM = 4 << 20

_MERGE = """
import resource, sys
from pathlib import Path
from indexing.build import merge_files_on_disk, merge_indexes
from indexing.faiss_library import read_faiss_file
import indexing.build

folder, how, room = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
parts = sorted(folder.glob("part-*.faiss"))
indexing.build.IDS_AT_A_TIME = 20_000
trained = read_faiss_file(folder / "trained.faiss")
merge_files_on_disk(read_faiss_file(folder / "trained.faiss"), parts[:1], folder / "warm.ivfdata")
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used * 1024 + room,) * 2)
if how == "disk":
    merged = merge_files_on_disk(trained, parts, folder / "index.ivfdata")
else:
    merged = merge_indexes(read_faiss_file(part) for part in parts)
print(merged.ntotal)
"""


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("merge")
    rng = np.random.default_rng(0)
    plan = plan_index(
        NUM_PARTS * ROWS_PER_PART, DIM, IndexConfig(factory="IVF64,SQ8", metric="inner_product")
    )
    rows = rng.standard_normal((ROWS_PER_PART, DIM), dtype=np.float32)
    write_faiss_file(train_index(rows[:3000], plan), folder / "trained.faiss")
    for number in range(NUM_PARTS):
        index = train_index(rows[:3000], plan)
        add_vectors(index, (number << 32) + np.arange(ROWS_PER_PART), rows)
        write_faiss_file(index, folder / f"part-{number}.faiss")
    return folder


@pytest.mark.parametrize(("how", "succeeds"), [("disk", True), ("memory", False)])
def test_a_merge_on_disk_needs_memory_for_some_lists_and_one_in_memory_for_the_index(parts, how, succeeds):
    arguments = [sys.executable, "-c", _MERGE, str(parts), how, str(ROOM)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if succeeds:
        assert done.stdout.split()[-1:] == [str(NUM_PARTS * ROWS_PER_PART)], done.stderr  # FAISS talks, too
    else:
        assert done.returncode != 0
        assert "MemoryError" in done.stderr or "bad_alloc" in done.stderr, done.stderr


@pytest.mark.parametrize("ids_at_a_time", [1, 3, 100])
def test_a_repeated_row_id_is_found_in_any_number_of_passes(monkeypatch, ids_at_a_time):
    monkeypatch.setattr(indexing.build, "IDS_AT_A_TIME", ids_at_a_time)
    rows = np.eye(8, dtype=np.float32)
    for factory in ("Flat", "IVF2,SQ8"):
        plan = plan_index(8, 8, IndexConfig(factory=factory))
        index = train_index(rows, plan)
        add_vectors(index, np.arange(8), rows)
        check_unique_ids(index)
        add_vectors(index, np.array([5]), rows[:1])
        with pytest.raises(ValueError, match=r"row ids 5 occur more than once"):
            check_unique_ids(index)
