"""Where the evaluation's BM25 comes from: that of the lookup where it is the same one, else built anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from indexing.bm25 import BM25Config, BM25Searcher
from pipelines.collection import iterate_shards
from pipelines.manifest import Manifest
from pipelines.names import BM25_FOLDER, LOOKUP_FOLDER
from pipelines.storage import Location
from pipelines.versions import readable_versions

# The published settings, whatever a lookup may have been built with.
EVALUATED = BM25Config()


def lexical_place(workspace: Location, documents: Manifest) -> tuple[Location | None, str]:
    """The folder of a BM25 index over these documents with the evaluated settings, or None; and why."""
    versions = readable_versions(workspace / LOOKUP_FOLDER)
    if not versions:
        return None, "built here, there is no finished lookup"
    lookup, manifest = versions[0]
    if manifest.inputs["documents"] != documents.digest:
        return None, "built here, the lookup is of other documents"
    place = lookup / BM25_FOLDER
    with place.as_local_folder() as folder:
        found = BM25Config.saved_in(folder)
    if found != EVALUATED:
        return None, f"built here with {EVALUATED}, the lookup has {found}"
    return place, "that of the lookup"


@contextmanager
def lexical_searcher(
    place: Location | None, documents: Location, manifest: Manifest
) -> Iterator[BM25Searcher]:
    """The index of `lexical_place`, opened, or built with all texts of the collection in memory."""
    if place is not None:
        with place.as_local_folder() as folder:
            yield BM25Searcher.load(folder, mmap=True)
        return
    row_ids, texts = [np.empty(0, np.int64)], []
    for table in iterate_shards(documents, manifest, ["row_id", "text"]):
        row_ids.append(table.column("row_id").to_numpy())
        texts += table.column("text").to_pylist()
    yield BM25Searcher.build(
        np.concatenate(row_ids),
        texts,
        k1=EVALUATED.k1,
        b=EVALUATED.b,
        stopwords=EVALUATED.stopwords,
        stemmer=EVALUATED.stemmer,
    )
