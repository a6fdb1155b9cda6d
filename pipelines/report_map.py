"""The map of the searched texts in a run's report: a sample of their vectors on a plane."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from indexing.arrays import is_among
from indexing.corpus_map import corpus_map, corpus_map_svg
from indexing.vectors import read_vectors
from pipelines.collection import column_names, read_deleted, read_shard
from pipelines.errors import InputError
from pipelines.manifest import Manifest
from pipelines.storage import Location

_NUM_POINTS = 1_000
_GROUP_CHARS = 40
_NAMESPACE = ' xmlns="http://www.w3.org/2000/svg"'


def check_map_column(documents: Location, manifest: Manifest, column: str) -> None:
    """Refuses a column that the documents do not have.

    Raises:
        InputError: with those that they have.
    """
    if not manifest.shards:
        return
    present = column_names(documents, manifest.shards[0].name)
    if column not in present:
        raise InputError(
            f"evaluate.map_column is '{column}', the columns of '{documents}' are {', '.join(present)}; "
            "keep_columns in the section of the documents keeps more"
        )


def documents_map(
    documents: Location, manifest: Manifest, vectors: Location, *, column: str | None = None, seed: int
) -> str:
    """An `<svg>` element for a page, "" when there are too few documents; titles, or else texts, on hover.

    Coloured by a column of the documents, or without one by clusters; the legend names the groups. Shards
    hold rows in the order of a hash of their text, so the first rows of the first shards are a sample, and no
    more than these shards are read. Documents that were deleted from the index are left out, and a line says
    how many there are.
    """
    texts: list[str] = []
    titles: list[str | None] = []
    values: list[object] = []
    rows: list[np.ndarray[tuple[int, int], np.dtype[np.float32]]] = []
    deleted = read_deleted(documents, manifest)
    for shard in manifest.shards:
        wanted = _NUM_POINTS - len(texts)
        if wanted <= 0:
            break
        place = vectors / f"{shard.name}.parquet"
        row_ids, shard_vectors = read_vectors(place.filesystem, place.path)
        kept = np.flatnonzero(~is_among(row_ids, deleted))[:wanted]
        names = ["text", "title"] if column is None else list(dict.fromkeys(["text", "title", column]))
        table = read_shard(documents, shard.name, names).take(pa.array(kept))
        texts += table.column("text").to_pylist()
        has_titles = "title" in table.column_names
        titles += table.column("title").to_pylist() if has_titles else [None] * table.num_rows
        values += [] if column is None else table.column(column).to_pylist()
        rows.append(shard_vectors[kept])
    if len(texts) < 2:
        return ""
    found = corpus_map(
        np.concatenate(rows),
        column=None if column is None else [as_group(value) for value in values],
        texts=texts,
        max_points=_NUM_POINTS,
        seed=seed,
    )
    labels = [titles[row] or texts[row] for row in found.rows.tolist()]
    svg = corpus_map_svg(found, labels, title="", coloured_by=column, num_deleted=len(deleted))
    # Inside HTML the element needs no namespace, and the page names no address at all.
    return svg.replace(_NAMESPACE, "")


def as_group(value: object) -> str | None:
    """A column's value as the name of a group; None and empty text have none."""
    text = "" if value is None else " ".join(str(value).split())
    return (text if len(text) <= _GROUP_CHARS else f"{text[:_GROUP_CHARS]} ...") or None
