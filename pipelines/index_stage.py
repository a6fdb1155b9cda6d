"""The index stage: vectors become a FAISS index whose recall against exact search is measured and stored."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayError

from indexing.build import add_vectors, check_unique_ids, train_index, tune_search
from indexing.exact import exact_search, normalize_rows
from indexing.plan import IndexConfig, IndexPlan, plan_index
from indexing.store import IndexMetadata, save_index
from indexing.vectors import read_vectors
from pipelines.collection import finished_manifest
from pipelines.config import RunConfig
from pipelines.config_values import config_to_dict
from pipelines.embed import documents_folder
from pipelines.manifest import Manifest, StageFolder
from pipelines.progress import Reporter
from pipelines.shards import user_error_in
from pipelines.storage import Location
from tsdae_core.hashing import fold_key, keyed_permutation

INDEX_FOLDER = "index"
# Deep enough that equal scores at place 10 are known (see indexing.hits.recall_at).
_EXACT_DEPTH = 100


def build_index(config: RunConfig, workspace: Location, *, reporter: Reporter) -> Manifest:
    """Runs the stage unless it is finished; writes `index/`.

    Raises:
        InputError: vectors or encoder are not finished.
        ValueError: the recall target cannot be met with the configured index.
    """
    vectors = finished_manifest(workspace / "vectors", command="embed")
    encoder = finished_manifest(workspace / "encoder", command="train")
    documents = documents_folder(config, workspace)
    documents_digest = finished_manifest(documents, command="prepare").digest
    inputs = {"vectors": vectors.digest, "encoder": encoder.digest, "documents": documents_digest}
    settings = config_to_dict(config.index) | {"documents": documents.name}
    stage = StageFolder(workspace / INDEX_FOLDER, stage="index", config=settings, inputs=inputs)
    if (manifest := stage.finished()) is not None:
        reporter.note(
            f"index: up to date, {manifest.facts['factory']} over {manifest.counts['vectors']:,} vectors"
        )
        return manifest
    plan = plan_index(vectors.counts["vectors"], vectors.counts["dim"], config.index)
    reporter.note(f"index: {plan.factory} for {plan.num_vectors:,} vectors ({'; '.join(plan.reasons)})")
    stage.begin()
    build: Any = ray.remote(num_cpus=1)(cast(Any, _build))  # ray's types know positional arguments only
    task = build.remote(
        workspace / "vectors",
        [shard.name for shard in vectors.shards],
        plan,
        config.index,
        encoder_fingerprint=str(encoder.facts["encoder_fingerprint"]),
        documents_digest=documents_digest,
        output=stage.folder,
    )
    with reporter.track("index", total=1, unit="index") as progress:
        try:
            files, metadata = ray.get(task)
        except RayError as error:
            raise user_error_in(error) or error from error
        progress.advance()
    reporter.note(
        f"index: recall@10 {metadata.recall_at_10:.4f} against exact search, {metadata.search_params}"
    )
    facts = {
        "factory": metadata.factory,
        "recall_at_10": metadata.recall_at_10,
        "search_params": asdict(metadata.search_params),
        "documents": documents.name,
    }
    return stage.finish(
        counts={"vectors": metadata.num_vectors, "dim": metadata.dim}, files=files, facts=facts
    )


def _build(
    vectors: Location,
    names: list[str],
    plan: IndexPlan,
    config: IndexConfig,
    *,
    encoder_fingerprint: str,
    documents_digest: str,
    output: Location,
) -> tuple[dict[str, str], IndexMetadata]:
    """The task: train on a sample, add shard by shard, tune against exact search, store."""

    def blocks() -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        for name in names:
            row_ids, rows = read_vectors(vectors.filesystem, (vectors / f"{name}.parquet").path)
            yield row_ids, normalize_rows(rows) if plan.metric == "cosine" else rows

    index = train_index(_sample(blocks(), plan.num_train_vectors, plan), plan)
    for row_ids, rows in blocks():
        add_vectors(index, row_ids, rows)
    check_unique_ids(index)
    queries = _sample(blocks(), min(config.num_query_sample, plan.num_vectors), plan)
    exact = exact_search(queries, blocks(), _EXACT_DEPTH)
    tuned = tune_search(index, queries, exact, plan, config)
    metadata = IndexMetadata(
        factory=plan.factory,
        metric=plan.metric,
        dim=plan.dim,
        num_vectors=plan.num_vectors,
        search_params=tuned.params,
        recall_at_10=tuned.recall_at_10,
        target_recall_at_10=config.target_recall_at_10,
        encoder_fingerprint=encoder_fingerprint,
        documents_digest=documents_digest,
    )
    with tempfile.TemporaryDirectory(prefix="tsdae-index-") as folder:
        save_index(Path(folder), index, metadata)
        files = output.upload_folder(Path(folder))
    return files, metadata


def _sample(
    blocks: Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]], num_rows: int, plan: IndexPlan
) -> NDArray[np.float32]:
    """About `num_rows` vectors float32[m, d], an equal share of every shard, rows chosen by a keyed order."""
    taken = [np.empty((0, plan.dim), np.float32)]
    for i, (row_ids, rows) in enumerate(blocks):
        share = -(-num_rows * len(row_ids) // plan.num_vectors)
        order = keyed_permutation(len(row_ids), fold_key("index sample", plan.seed), i)
        taken.append(rows[np.sort(order[:share])])
    return np.concatenate(taken)
