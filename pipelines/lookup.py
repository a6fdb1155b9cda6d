"""The lookup stage: what searching needs beside the index, ready to be memory-mapped.

In each of its versions:

    documents/part-*.arrow   texts, titles and columns, uncompressed: one document is one slice
    id_hashes.npy, id_rows.npy   from a document id to its row
    bm25/                    the lexical index
    vectors/part-*.npy       vectors for exact re-scoring, only where the index keeps compressed ones

Texts are stored a second time because a row of compressed Parquet costs the decoding of a row group; vectors
are stored a second time only where scores would be inexact without them. A change makes a new version beside
the one that readers have open (`pipelines.versions`).
"""

from __future__ import annotations

from typing import Any

from indexing.store import open_index
from pipelines.collection import finished_manifest
from pipelines.config import RunConfig
from pipelines.embed import documents_folder
from pipelines.lookup_tasks import LexicalWriter, ShardWriter
from pipelines.manifest import Manifest
from pipelines.names import INDEX_FOLDER, LOOKUP_FOLDER
from pipelines.progress import Reporter
from pipelines.shards import run_shards
from pipelines.storage import Location
from pipelines.versions import VersionedStage, current_version


def build_lookup(
    config: RunConfig, workspace: Location, *, reporter: Reporter, home: Location | None = None
) -> Manifest:
    """Runs the stage unless it is finished; writes a version below `lookup/` and switches to it.

    home: the workspace with the documents, where it is another one.

    Raises:
        InputError: documents, vectors or index are not finished.
    """
    documents = documents_folder(config, home or workspace)
    manifest = finished_manifest(documents, command="prepare")
    vectors = finished_manifest(workspace / "vectors", command="embed")
    finished_manifest(workspace / INDEX_FOLDER, command="index")
    with current_version(workspace / INDEX_FOLDER).as_local_folder() as folder:
        with_vectors = not open_index(folder).keeps_vectors
    inputs = {"documents": manifest.digest} | ({"vectors": vectors.digest} if with_vectors else {})
    stage = VersionedStage(workspace / LOOKUP_FOLDER, stage=LOOKUP_FOLDER, config={}, inputs=inputs)
    num_rows = manifest.counts["rows_kept"]
    if (finished := stage.finished()) is not None:
        reporter.note(f"lookup: up to date, {num_rows:,} documents")
        return finished
    stage.begin()
    items: dict[str, dict[str, Any]] = {shard.name: {} for shard in manifest.shards}
    source = workspace / "vectors" if with_vectors else None
    shards = run_shards(
        stage,
        "documents",
        items,
        ShardWriter(documents, source, stage.version, dtype=vectors.config["dtype"]),
        reporter=reporter,
        label="lookup documents",
        unit="documents",
        total_units=num_rows,
    )
    lexical = run_shards(
        stage,
        "lexical",
        {"lexical": {}},
        LexicalWriter(documents, manifest, stage.version),
        reporter=reporter,
        label="lookup words",
    )
    counts = {"documents": num_rows, "vectors": num_rows if with_vectors else 0}
    return stage.finish_version(counts=counts, shards=[*shards, *lexical])
