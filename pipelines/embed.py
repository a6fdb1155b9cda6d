"""The embed stage: one vectors file per shard of the documents, by Ray Data actors that hold the encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from indexing.vectors import write_vectors
from pipelines.collection import finished_manifest, read_shard
from pipelines.config import EmbedConfig, RunConfig
from pipelines.config_values import config_to_dict
from pipelines.errors import InputError
from pipelines.manifest import Manifest, ShardRecord, StageFolder
from pipelines.progress import Reporter
from pipelines.shards import ShardFunction, run_shards
from pipelines.storage import Location

# Settings that change how fast vectors are made, not what they are.
SPEED_ONLY = ("num_actors", "cpus_per_actor", "gpus_per_actor", "threads_per_actor")


def documents_folder(config: RunConfig, workspace: Location) -> Location:
    """The collection that is searched: `documents/` when configured, the training corpus otherwise."""
    return workspace / ("documents" if config.documents is not None else "corpus")


def embed(
    config: RunConfig,
    workspace: Location,
    *,
    reporter: Reporter,
    encoder_folder: str = "encoder",
    vectors_folder: str = "vectors",
    home: Location | None = None,
) -> Manifest:
    """Runs the stage for one encoder of the workspace (`encoder`, or `start` for the comparison).

    home: the workspace with the documents, where it is another one.

    Raises:
        InputError: the encoder or the documents are not finished, or embed.dim is more than there is.
    """
    encoder = finished_manifest(workspace / encoder_folder, command="train")
    documents_place = documents_folder(config, home or workspace)
    documents = finished_manifest(documents_place, command="prepare")
    dim = config.embed.dim or encoder.counts["dim"]
    if dim > encoder.counts["dim"]:
        raise InputError(
            f"embed.dim is {dim}, the vectors of '{encoder_folder}' have {encoder.counts['dim']} numbers; "
            "give fewer, or leave it out"
        )
    stage = vectors_stage(config, workspace / vectors_folder, encoder=encoder, documents=documents)
    num_rows = documents.counts["rows_kept"]
    if (manifest := stage.finished()) is not None:
        reporter.note(f"{vectors_folder}: up to date, {num_rows:,} vectors")
        return manifest
    stage.begin()
    worker = EmbedActor(workspace / encoder_folder, documents_place, stage.folder, config.embed)
    items: dict[str, dict[str, Any]] = {shard.name: {} for shard in documents.shards}
    resources = {"cpus": config.embed.cpus_per_actor, "gpus": config.embed.gpus_per_actor}
    shards = run_shards(
        stage,
        "embed",
        items,
        worker,
        reporter=reporter,
        label=f"embed ({encoder_folder})",
        unit="texts",
        total_units=num_rows,
        resources=resources,
        num_actors=min(config.embed.num_actors, len(items)),
    )
    written = sum(shard.num_rows for shard in shards)
    assert written == num_rows, f"{written} vectors for {num_rows} rows"
    return stage.finish(counts={"vectors": written, "dim": dim}, shards=shards)


def vectors_stage(
    config: RunConfig, folder: Location, *, encoder: Manifest, documents: Manifest
) -> StageFolder:
    """The stage that embeds these documents with this encoder, as a question that may have been answered."""
    settings = {key: value for key, value in config_to_dict(config.embed).items() if key not in SPEED_ONLY}
    inputs = {"encoder": encoder.digest, "documents": documents.digest}
    return StageFolder(folder, stage="vectors", config=settings, inputs=inputs)


class EmbedActor:
    """Makes the function that embeds one shard; the encoder is loaded once per actor."""

    def __init__(self, encoder: Location, documents: Location, vectors: Location, config: EmbedConfig):
        self.encoder, self.documents, self.vectors, self.config = encoder, documents, vectors, config

    def __call__(self) -> ShardFunction:
        """Loads the encoder; the function that embeds one shard of the documents."""
        import torch

        from tsdae_core.encoder import SentenceEncoder

        config = self.config
        torch.set_num_threads(config.threads_per_actor)
        device = "cuda" if config.gpus_per_actor else "cpu"
        with self.encoder.as_local_folder() as folder:
            encoder = SentenceEncoder.load(str(folder), device=device)

        def work(name: str, _spec: Mapping[str, Any]) -> ShardRecord:
            table = read_shard(self.documents, name, ["row_id", "text"])
            vectors = encoder.encode(
                table.column("text").to_pylist(), batch_tokens=config.batch_tokens, precision=config.precision
            )
            place = self.vectors / f"{name}.parquet"
            with place.write_atomically() as target:
                write_vectors(
                    target.filesystem,
                    target.path,
                    table.column("row_id").to_numpy(),
                    config.form.apply(vectors),
                    dtype=config.dtype,
                )
            return ShardRecord(name=name, num_rows=table.num_rows, digest=place.sha256())

        return work
