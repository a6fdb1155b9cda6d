"""Adding documents to a finished index and deleting some, without building it anew.

New documents become one more shard of `documents/` and `vectors/`, and one more segment of the index; deleted
ones stay in their files and are never found. All three manifests then tell the truth about their folders and
answer the same questions as before, so stages that depend on them follow, and a later build keeps the growth.
The manifests are replaced by a journal: written whole, then carried out, again if a kill came in between.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from indexing.store import DELETED_FILE, VERSIONS_FOLDER
from pipelines.collection import finished_manifest, iterate_shards, read_deleted, read_shard
from pipelines.config import RunConfig
from pipelines.embed import EmbedActor, documents_folder, vectors_stage
from pipelines.errors import InputError
from pipelines.index_segments import grown_version
from pipelines.index_stage import facts_of, index_stage, stale_note
from pipelines.manifest import MANIFEST_NAME, Manifest, ShardRecord
from pipelines.names import INDEX_FOLDER, shard_name
from pipelines.prepare import ROWS_PER_SHARD_BITS, prepare, write_parquet
from pipelines.progress import Reporter
from pipelines.shards import finish_task, start_task
from pipelines.storage import Location
from pipelines.versions import current_version, next_version, record, remove_other_versions, switch

_WORK = "_growth"
_JOURNAL = "journal.json"
_COLUMNS = ("row_id", "doc_id", "text", "title")


@dataclass(frozen=True)
class _State:
    """The finished stages that grow together."""

    place: Location
    encoder: Manifest
    documents: Manifest
    vectors: Manifest
    index: Manifest
    columns: tuple[str, ...]


def add_documents(config: RunConfig, workspace: Location, source: str, *, reporter: Reporter) -> Manifest:
    """Reads, cleans, embeds and indexes the documents of `source`; returns the index's manifest.

    A document whose id is there already replaces the old one; one that is the same in every column is left.

    Raises:
        InputError: the index is not finished for this configuration, or the input cannot be used.
    """
    recover(workspace)
    state = _state(config, workspace)
    assert config.documents is not None
    staged = prepare(
        f"{_WORK}/documents",
        replace(config.documents, input=source, num_shards=1),
        workspace,
        reporter=reporter,
        kept_unchanged=False,
    )
    fresh = read_shard(workspace / _WORK / "documents", staged.shards[0].name, state.columns)
    deleted = read_deleted(state.place, state.documents)
    fresh, replaced = _compared(state, fresh)
    if fresh.num_rows == 0:
        (workspace / _WORK).delete()
        reporter.note("index: nothing to add, every document is there already")
        return state.index
    shard = _store_shard(state, fresh)
    vector = _embed(config, workspace, state.place, shard.name)
    deleted = np.union1d(deleted, replaced)
    documents = _grown(state, deleted, [shard])
    vectors = replace(
        state.vectors,
        shards=(*state.vectors.shards, vector),
        counts={**state.vectors.counts, "vectors": state.vectors.counts["vectors"] + vector.num_rows},
    )
    manifest = _commit(config, workspace, state, documents, vectors, deleted, added=vector)
    reporter.note(
        f"index: {fresh.num_rows:,} documents added, {len(replaced):,} of them in place of older ones; "
        f"{manifest.counts['vectors']:,} in all, version {manifest.facts['version']}"
        f"{stale_note(manifest.facts)}"
    )
    return manifest


def delete_documents(
    config: RunConfig, workspace: Location, doc_ids: Sequence[str], *, reporter: Reporter
) -> Manifest:
    """Makes these documents impossible to find; returns the index's manifest.

    Raises:
        InputError: the index is not finished for this configuration, or it has none of these documents.
    """
    recover(workspace)
    state = _state(config, workspace)
    deleted = read_deleted(state.place, state.documents)
    wanted = pa.array(sorted(set(doc_ids)), pa.string())
    found = [np.empty(0, np.int64)]
    for table in iterate_shards(state.place, state.documents, ["row_id", "doc_id"]):
        is_wanted = pc.is_in(table.column("doc_id"), wanted)
        found += [table.filter(is_wanted).column("row_id").to_numpy()]
    gone = np.unique(np.concatenate(found))
    if len(gone) == 0:
        raise InputError(
            f"none of the {len(wanted)} document ids is in the index, the first is '{wanted[0]}'"
        )
    deleted = np.union1d(deleted, gone)
    manifest = _commit(
        config, workspace, state, _grown(state, deleted, []), state.vectors, deleted, added=None
    )
    reporter.note(
        f"index: {len(gone):,} documents deleted ({len(wanted) - len(gone):,} of the ids are not there); "
        f"{manifest.counts['vectors']:,} in all, version {manifest.facts['version']}"
        f"{stale_note(manifest.facts)}"
    )
    return manifest


def recover(workspace: Location) -> None:
    """Carries out a journal that a kill left behind, and removes what was begun without one."""
    journal = workspace / _WORK / _JOURNAL
    if journal.exists():
        _carry_out(workspace, journal.read_json())
    (workspace / _WORK).delete()
    remove_other_versions(workspace / INDEX_FOLDER)


def _state(config: RunConfig, workspace: Location) -> _State:
    if config.documents is None:
        raise InputError(
            "this index searches the training corpus, which must not change under the encoder: "
            "name the searched collection in `documents` to add to it or delete from it"
        )
    place = documents_folder(config, workspace)
    encoder = finished_manifest(workspace / "encoder", command="train")
    documents = finished_manifest(place, command="prepare")
    vectors = finished_manifest(workspace / "vectors", command="embed")
    stage = index_stage(config, workspace, encoder=encoder, documents=documents, vectors=vectors)
    answered = vectors_stage(config, workspace / "vectors", encoder=encoder, documents=documents).finished()
    index = stage.finished()
    if index is None or answered is None:
        raise InputError(f"'{stage.folder}' is not that of this configuration; run `tsdae index` first")
    columns = (*_COLUMNS, *config.documents.keep_columns)
    return _State(place, encoder, documents, vectors, index, columns)


def _compared(state: _State, fresh: pa.Table) -> tuple[pa.Table, NDArray[np.int64]]:
    """The documents that are new or have changed, and the row ids of those that they replace."""
    new_ids = fresh.column("doc_id")
    contents = {row["doc_id"]: _content(row) for row in fresh.to_pylist()}
    unchanged: set[str] = set()
    replaced: list[int] = []
    for table in iterate_shards(state.place, state.documents, state.columns):
        is_here = pc.is_in(table.column("doc_id"), new_ids.combine_chunks())
        for row in table.filter(is_here).to_pylist():
            if contents[row["doc_id"]] == _content(row):
                unchanged.add(row["doc_id"])
            else:
                replaced.append(row["row_id"])
    changed = pc.invert(pc.is_in(new_ids, pa.array(sorted(unchanged), pa.string())))
    return fresh.filter(changed), np.array(sorted(replaced), np.int64)


def _content(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "row_id"}


def _store_shard(state: _State, fresh: pa.Table) -> ShardRecord:
    number = len(state.documents.shards)
    row_ids = (number << ROWS_PER_SHARD_BITS) + np.arange(fresh.num_rows, dtype=np.int64)
    position = fresh.schema.get_field_index("row_id")
    table = fresh.set_column(position, fresh.schema.field("row_id"), pa.array(row_ids))
    place = state.place / f"{shard_name(number)}.parquet"
    write_parquet(place, table)
    return ShardRecord(name=shard_name(number), num_rows=table.num_rows, digest=place.sha256())


def _embed(config: RunConfig, workspace: Location, documents: Location, name: str) -> ShardRecord:
    actor = EmbedActor(workspace / "encoder", documents, workspace / "vectors", config.embed)

    def embed_one() -> ShardRecord:
        return actor()(name, {})

    cpus, gpus = config.embed.cpus_per_actor, config.embed.gpus_per_actor
    record: ShardRecord = finish_task(start_task(embed_one, cpus=cpus, gpus=gpus))
    return record


def _grown(state: _State, deleted: NDArray[np.int64], added: Sequence[ShardRecord]) -> Manifest:
    """The manifest of the documents after growing; its `deleted.npy` is written when the journal is."""
    counts = dict(state.documents.counts)
    counts["rows_kept"] += sum(shard.num_rows for shard in added)
    files = dict(state.documents.files)
    if len(deleted):
        files[DELETED_FILE] = _sha256(_as_bytes(deleted))
    return replace(
        state.documents,
        shards=(*state.documents.shards, *added),
        counts=counts,
        files=files,
        facts={**state.documents.facts, "grown": True},
    )


def _commit(
    config: RunConfig,
    workspace: Location,
    state: _State,
    documents: Manifest,
    vectors: Manifest,
    deleted: NDArray[np.int64],
    *,
    added: ShardRecord | None,
) -> Manifest:
    """Builds the new version aside, writes the journal, carries it out; returns the index's manifest."""
    answered = vectors_stage(config, workspace / "vectors", encoder=state.encoder, documents=documents)
    vectors = replace(vectors, fingerprint=answered.fingerprint, inputs=answered.inputs)
    stage = index_stage(config, workspace, encoder=state.encoder, documents=documents, vectors=vectors)
    target = stage.folder / VERSIONS_FOLDER / next_version(stage.folder)
    present = current_version(stage.folder)
    files, metadata = finish_task(
        start_task(grown_version, present, target, workspace / "vectors", deleted, added, documents)
    )
    index = replace(
        state.index,
        fingerprint=stage.fingerprint,
        inputs=stage.inputs,
        counts={"vectors": metadata.num_vectors, "dim": metadata.dim},
        files=files,
        facts={**facts_of(metadata, state.place.name), "version": target.name},
    )
    record(target, index)
    if len(deleted):
        (workspace / _WORK / DELETED_FILE).write_bytes(_as_bytes(deleted))
    manifests = {state.place.name: documents, "vectors": vectors, INDEX_FOLDER: index}
    journal = {name: {**asdict(one), "digest": one.digest} for name, one in manifests.items()}
    (workspace / _WORK / _JOURNAL).write_json({"documents": state.place.name, "manifests": journal})
    recover(workspace)
    return index


def _carry_out(workspace: Location, journal: Mapping[str, Any]) -> None:
    """Every step can be done twice."""
    deleted = workspace / _WORK / DELETED_FILE
    if deleted.exists():
        (workspace / str(journal["documents"]) / DELETED_FILE).write_bytes(deleted.read_bytes())
    for name, manifest in journal["manifests"].items():
        if name == INDEX_FOLDER:
            switch(workspace / name, str(manifest["facts"]["version"]))
        (workspace / name / MANIFEST_NAME).write_json(manifest)


def _as_bytes(array: NDArray[np.int64]) -> bytes:
    data = io.BytesIO()
    np.save(data, array, allow_pickle=False)
    return data.getvalue()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
