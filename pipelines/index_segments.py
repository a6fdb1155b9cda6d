"""One more version of an index from the present one: its segments as they are, one more, more deleted rows.

The files of the present version are linked or copied, never changed. Runs as a Ray task.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from indexing.arrays import is_among
from indexing.build import add_vectors
from indexing.exact import normalize_rows
from indexing.faiss_library import LISTS_SUFFIX, read_faiss_file, row_id_blocks, write_faiss_file
from indexing.index_metadata import IndexInput, IndexMetadata, read_metadata
from indexing.store import save_index
from indexing.vectors import read_vectors
from pipelines.index_build import TRAINED_FILE
from pipelines.manifest import Manifest, ShardRecord
from pipelines.storage import Location
from pipelines.versions import copy_into

# Row ids that are compared with the deleted ones at a time: 8 MiB.
IDS_AT_A_TIME = 2**20


def grown_version(
    source: Location,
    target: Location,
    vectors: Location,
    deleted: NDArray[np.int64],
    added: ShardRecord | None,
    documents: Manifest,
) -> tuple[dict[str, str], IndexMetadata]:
    """Builds the version in `target`; returns sha256 by file and its metadata.

    Args:
        source: the present version.
        target: emptied first.
        vectors: where the file of the added rows lies.
        deleted: all rows that must not be found; those that a segment holds are noted with it.
        added: the file of vectors that becomes a segment, if any.
        documents: the collection as it will be.
    """
    target.delete()
    with source.as_local_folder() as folder, tempfile.TemporaryDirectory(prefix="tsdae-grow-") as temporary:
        before = read_metadata(folder)
        names = [segment.file for segment in before.segments]
        lists = [path.name for path in folder.glob(f"*{LISTS_SUFFIX}")]
        built = Path(temporary)
        for name in [*names, *lists, TRAINED_FILE]:
            (built / name).symlink_to(folder / name)
        parts = [built / name for name in names]
        inputs, num_rows = before.inputs, sum(segment.num_rows for segment in before.segments)
        if added is not None:
            parts.append(_new_segment(built, vectors, added, before, _free_name(names)))
            inputs += (IndexInput(name=added.name, digest=added.digest, num_rows=added.num_rows),)
            num_rows += added.num_rows
        present = _stored(deleted, parts)
        metadata = dataclasses.replace(
            before,
            inputs=inputs,
            num_vectors=num_rows - len(present),
            documents_digest=documents.digest,
            recall_version=before.recall_version or source.name,
            recall_num_changed=before.recall_num_changed
            + (0 if added is None else added.num_rows)
            + len(present)
            - before.num_deleted,
        )
        metadata = save_index(built, cast(Any, parts), metadata, deleted=present)
        kept = [name for name in (*names, *lists, TRAINED_FILE) if (built / name).is_symlink()]
        copy_into(source, kept, target)
        for name in kept:
            (built / name).unlink()
        files = target.upload_folder(built)
        return files | {name: (target / name).sha256() for name in kept}, metadata


def _new_segment(built: Path, vectors: Location, added: ShardRecord, about: IndexMetadata, name: str) -> Path:
    """A copy of the trained index filled with the rows of one file."""
    place = vectors / f"{added.name}.parquet"
    row_ids, rows = read_vectors(place.filesystem, place.path)
    index = read_faiss_file(built / TRAINED_FILE)
    add_vectors(index, row_ids, normalize_rows(rows) if about.metric == "cosine" else rows)
    write_faiss_file(index, built / name)
    return built / name


def _free_name(names: Sequence[str]) -> str:
    numbers = [int(name.removesuffix(".faiss").rpartition("-")[2]) for name in names if "-" in name]
    return f"index-{max(numbers, default=0) + 1:05d}.faiss"


def _stored(deleted: NDArray[np.int64], parts: Sequence[Path]) -> NDArray[np.int64]:
    """Those of the deleted rows that a segment holds; the others went with an earlier compaction.

    Row ids are compared piece by piece: beside the id map of a segment that has one, the memory is that of
    the deleted rows.
    """
    found = [np.empty(0, np.int64)]
    for part in parts if len(deleted) else ():
        index = read_faiss_file(part, mmap=True)
        for ids in row_id_blocks(index):
            for start in range(0, len(ids), IDS_AT_A_TIME):
                piece = ids[start : start + IDS_AT_A_TIME]
                found.append(piece[is_among(piece, deleted)])
    return np.unique(np.concatenate(found))
