"""The map of the searched texts in a run's report: a sample of their vectors on a plane."""

from __future__ import annotations

import numpy as np

from indexing.corpus_map import corpus_map, corpus_map_svg
from indexing.vectors import read_vectors
from pipelines.collection import read_shard
from pipelines.manifest import Manifest
from pipelines.storage import Location

_NUM_POINTS = 1_000
_NAMESPACE = ' xmlns="http://www.w3.org/2000/svg"'


def documents_map(documents: Location, manifest: Manifest, vectors: Location, *, seed: int) -> str:
    """An `<svg>` element for a page, "" when there are too few documents; titles, or else texts, on hover.

    Shards hold rows in the order of a hash of their text, so the first rows of the first shards are a sample,
    and no more than these are read.
    """
    texts: list[str] = []
    titles: list[str | None] = []
    rows: list[np.ndarray[tuple[int, int], np.dtype[np.float32]]] = []
    for shard in manifest.shards:
        wanted = _NUM_POINTS - len(texts)
        if wanted <= 0:
            break
        table = read_shard(documents, shard.name, ["text", "title"]).slice(0, wanted)
        texts += table.column("text").to_pylist()
        has_titles = "title" in table.column_names
        titles += table.column("title").to_pylist() if has_titles else [None] * table.num_rows
        place = vectors / f"{shard.name}.parquet"
        rows.append(read_vectors(place.filesystem, place.path)[1][:wanted])
    if len(texts) < 2:
        return ""
    found = corpus_map(np.concatenate(rows), texts=texts, max_points=_NUM_POINTS, seed=seed)
    labels = [titles[row] or texts[row] for row in found.rows.tolist()]
    svg = corpus_map_svg(found, labels, title="")
    # Inside HTML the element needs no namespace, and the page names no address at all.
    return svg.replace(_NAMESPACE, "")
