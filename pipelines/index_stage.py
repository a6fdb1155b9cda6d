"""The index stage: vectors become a FAISS index whose recall against exact search is measured and stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from indexing.index_metadata import IndexMetadata
from indexing.plan import SearchParams, plan_index
from pipelines.collection import finished_manifest, read_deleted
from pipelines.config import RunConfig
from pipelines.config_values import config_to_dict
from pipelines.embed import documents_folder
from pipelines.index_build import Build, build_version
from pipelines.index_layout import Source, way_of_merging
from pipelines.manifest import Manifest
from pipelines.names import INDEX_FOLDER
from pipelines.progress import Reporter
from pipelines.storage import Location
from pipelines.versions import VersionedStage

# Of the section `index`: what changes how long a build takes, not what is asked of it.
_SPEED_ONLY = ("train_cpus",)


def build_index(
    config: RunConfig,
    workspace: Location,
    *,
    reporter: Reporter,
    anew: bool = False,
    home: Location | None = None,
) -> Manifest:
    """Runs the stage unless it is finished; writes a version below `index/` and switches to it.

    anew: build although it is finished, which leaves deleted rows out and merges what was added (compaction).
    home: the workspace with the documents, where it is another one.

    Raises:
        InputError: vectors or encoder are not finished.
        ValueError: the recall target cannot be met with the configured index.
    """
    vectors = finished_manifest(workspace / "vectors", command="embed")
    encoder = finished_manifest(workspace / "encoder", command="train")
    place = documents_folder(config, home or workspace)
    documents = finished_manifest(place, command="prepare")
    stage = index_stage(config, workspace, encoder=encoder, documents=documents, vectors=vectors)
    if (manifest := stage.finished()) is not None and not anew:
        missed = ", MISSED its target" if manifest.facts.get("misses_target") else ""
        reporter.note(
            f"index: up to date, {manifest.facts['factory']} over {manifest.counts['vectors']:,} vectors"
            f"{missed}{stale_note(manifest.facts)}"
        )
        return manifest
    deleted = read_deleted(place, documents)
    plan = plan_index(vectors.counts["vectors"] - len(deleted), vectors.counts["dim"], config.index)
    reporter.note(f"index: {plan.factory} for {plan.num_vectors:,} vectors ({'; '.join(plan.reasons)})")
    way = way_of_merging(plan, config.index)
    if config.index.layout == "auto" and way == "shards":
        reporter.note("index: kept as shards, as merging it needs more than index.build_memory")
    about = IndexMetadata(
        factory=plan.factory,
        metric=plan.metric,
        dim=plan.dim,
        num_vectors=plan.num_vectors,
        search_params=SearchParams(),
        recall_at_10=None,
        target_recall_at_10=config.index.target_recall_at_10,
        encoder_fingerprint=str(encoder.facts["encoder_fingerprint"]),
        documents_digest=documents.digest,
        encoder_dim=encoder.counts["dim"],
        normalized=config.embed.normalize,
    )
    sources = [
        Source(folder=workspace / "vectors", name=shard.name, num_rows=shard.num_rows, digest=shard.digest)
        for shard in vectors.shards
    ]
    stage.begin()
    build = Build(
        work=stage.work, output=stage.version, plan=plan, config=config.index, about=about, deleted=deleted
    )
    files, metadata = build_version(build, stage, sources, reporter=reporter)
    reporter.note(f"index: {measured(metadata)}")
    counts = {"vectors": metadata.num_vectors, "dim": metadata.dim}
    return stage.finish_version(counts=counts, files=files, facts=facts_of(metadata, place.name))


def index_stage(
    config: RunConfig, workspace: Location, *, encoder: Manifest, documents: Manifest, vectors: Manifest
) -> VersionedStage:
    """The stage that indexes these vectors, as a question that may have been answered."""
    inputs = {"vectors": vectors.digest, "encoder": encoder.digest, "documents": documents.digest}
    settings = {key: value for key, value in config_to_dict(config.index).items() if key not in _SPEED_ONLY}
    settings["documents"] = documents_folder(config, workspace).name
    return VersionedStage(workspace / INDEX_FOLDER, stage="index", config=settings, inputs=inputs)


def facts_of(metadata: IndexMetadata, documents: str) -> dict[str, Any]:
    """What the manifest tells of an index beside counts and files."""
    return {
        "factory": metadata.factory,
        "recall_at_10": metadata.recall_at_10,
        "recall_at_10_interval": metadata.recall_at_10_interval,
        "recall_at_100": metadata.recall_at_100,
        "recall_at_100_interval": metadata.recall_at_100_interval,
        "recall_num_queries": metadata.recall_num_queries,
        "recall_version": metadata.recall_version,
        "recall_num_changed": metadata.recall_num_changed,
        "recall_is_stale": metadata.recall_is_stale,
        "target_recall_at_10": metadata.target_recall_at_10,
        "misses_target": metadata.misses_target,
        "search_params": asdict(metadata.search_params),
        "documents": documents,
        "size_bytes": metadata.size_bytes,
        "num_segments": len(metadata.segments),
        "num_deleted": metadata.num_deleted,
    }


def measured(metadata: IndexMetadata) -> str:
    """One line on the quality of an index, for people."""
    settings = ", ".join(f"{key} {value}" for key, value in asdict(metadata.search_params).items() if value)
    near = _with_interval("recall@10", metadata.recall_at_10, metadata.recall_at_10_interval)
    deep = _with_interval("recall@100", metadata.recall_at_100, metadata.recall_at_100_interval)
    rows = "" if metadata.recall_num_queries is None else f", {metadata.recall_num_queries:,} held-out rows"
    found = ", ".join(part for part in (near, deep) if part)
    found = f"{found} against exact search{rows} ({settings or 'exhaustive'})"
    if not metadata.misses_target:
        return found
    return f"MISSED target {metadata.target_recall_at_10:g}: {metadata.recall_at_10:.4g}; {found}"


def stale_note(facts: Mapping[str, Any]) -> str:
    """What to know of a recall that was measured before rows were added or deleted; "" where none were.

    facts: of a manifest, from `facts_of`; those of older programs tell nothing.
    """
    if not facts.get("recall_is_stale"):
        return ""
    return (
        f"; recall@10 {facts['recall_at_10']:.4f} is STALE, of version {facts['recall_version']}: "
        f"{facts['recall_num_changed']:,} rows were added or deleted since (`tsdae index-compact` measures "
        "again)"
    )


def _with_interval(name: str, value: float | None, interval: tuple[float, float] | None) -> str:
    if value is None:
        return ""
    return f"{name} {value:.4f}" + ("" if interval is None else f" [{interval[0]:.4f}, {interval[1]:.4f}]")
