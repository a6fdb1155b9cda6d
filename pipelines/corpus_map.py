"""The map of a workspace's documents, for a report or a file of its own."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from indexing.arrays import is_among
from indexing.corpus_map import corpus_map, corpus_map_svg
from indexing.vectors import iter_vectors
from pipelines.collection import column_names, finished_manifest, read_deleted, read_shard
from pipelines.errors import InputError
from pipelines.report_map import as_group
from pipelines.storage import Location

_NUM_POINTS = 2_000
_VECTORS_FOLDER = "vectors"


def workspace_map_svg(
    workspace: Location,
    documents: Location,
    *,
    column: str | None = None,
    num_points: int = _NUM_POINTS,
    title: str = "Map of the documents",
) -> str:
    """A self-contained SVG of a sample: points coloured by cluster, or by a column, titles on hover.

    Rows lie in the order of a hash of their text, so the first rows of every shard are a random sample; no
    more than one row group of a shard is read. Documents that were deleted from the index are left out, and
    a line says how many there are.

    Args:
        workspace: with finished `vectors/`.
        documents: the collection that was embedded.
        column: one of its kept columns to colour by; None: clusters, named by their words.
        num_points: size of the sample.
        title: above the map.

    Raises:
        InputError: vectors or documents are not finished, fewer than two documents, or no such column.
    """
    manifest = finished_manifest(documents, command="prepare")
    finished_manifest(workspace / _VECTORS_FOLDER, command="embed")
    total = max(1, sum(shard.num_rows for shard in manifest.shards))
    deleted = read_deleted(documents, manifest)
    vectors, rows = [], []
    for shard in manifest.shards:
        share = -(-shard.num_rows * num_points // total)
        if share == 0:
            continue
        place = workspace / _VECTORS_FOLDER / f"{shard.name}.parquet"
        row_ids, block = next(iter_vectors(place.filesystem, place.path))
        kept = np.flatnonzero(~is_among(row_ids, deleted))[:share]
        table = read_shard(documents, shard.name, _columns(documents, shard.name, column))
        vectors.append(block[kept])
        rows += table.take(pa.array(kept)).to_pylist()
    if len(rows) < 2:
        raise InputError(f"'{documents}' has {len(rows)} documents to show, a map needs at least two")
    texts = [row["text"] or "" for row in rows]
    found = corpus_map(
        np.concatenate(vectors),
        column=None if column is None else [as_group(row[column]) for row in rows],
        texts=texts,
        max_points=num_points,
    )
    labels = [rows[i]["title"] or texts[i] for i in found.rows.tolist()]
    return corpus_map_svg(found, labels, title=title, coloured_by=column, num_deleted=len(deleted))


def _columns(documents: Location, name: str, column: str | None) -> list[str]:
    wanted = ["text", "title"] if column is None else ["text", "title", column]
    if column is not None:
        present = column_names(documents, name)
        if column not in present:
            raise InputError(f"'{documents}' has no column '{column}'; there are {', '.join(present)}")
    return list(dict.fromkeys(wanted))
