"""Pseudo-labels in the manner of GPL (Wang et al. 2022, arXiv 2112.07577): rows for `margin_mse`.

Queries are generated (`queries`), negatives mined with the encoder that the training starts from, and a
cross-encoder scores how much better the passage of a query answers it than each negative. Output:
`pseudo_labels/part-*.parquet` (query, positive, negative string; margin float32; positive_id, negative_id
string). To be searched, the documents are embedded and indexed in `mining/`, a workspace of its own that is
removed when the rows are there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from indexing.hits import NO_HIT
from indexing.index_config import IndexConfig
from pipelines.collection import finished_manifest, read_shard
from pipelines.config import RunConfig
from pipelines.embed import SPEED_ONLY, documents_folder, embed
from pipelines.embed_config import EmbedConfig
from pipelines.errors import InputError
from pipelines.index_stage import build_index
from pipelines.labels_config import PSEUDO_COLUMNS, PSEUDO_MARGIN
from pipelines.lookup import build_lookup
from pipelines.manifest import Manifest, ShardRecord, StageFolder, read_manifest
from pipelines.parquet import write_parquet
from pipelines.progress import Reporter
from pipelines.pseudo_labels_config import PseudoLabelsConfig
from pipelines.queries import QUERIES_FOLDER, generate_queries
from pipelines.query_generator import check_models, local_model
from pipelines.shards import ShardFunction, run_shards, sum_drops
from pipelines.start import START_FOLDER, describe_start
from pipelines.storage import Location
from pipelines.train_config import TrainConfig
from tsdae_core.hashing import fold_key, keyed_permutation

if TYPE_CHECKING:
    from pipelines.rerank import CrossEncoderReranker
    from pipelines.search import Searcher

PSEUDO_LABELS_FOLDER = "pseudo_labels"
_MINING_FOLDER = "mining"
_SEARCHED_AT_ONCE = 256
_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in PSEUDO_COLUMNS),
        (PSEUDO_MARGIN, pa.float32()),
        ("positive_id", pa.string()),
        ("negative_id", pa.string()),
    ]
)


def generates(train: TrainConfig) -> bool:
    """Whether a training's labelled rows are made here."""
    return train.labels is not None and train.labels.generate is not None


def check_generation(train: TrainConfig, place: Location) -> None:
    """Refuses models that cannot be used, where rows are still to be made with them.

    Raises:
        InputError: as `check_models`.
    """
    if train.labels is None or train.labels.generate is None:
        return
    if read_manifest(place / PSEUDO_LABELS_FOLDER) is None:
        check_models(train.labels.generate)


def make_pseudo_labels(
    config: RunConfig, place: Location, start: Manifest, *, home: Location, reporter: Reporter
) -> Manifest:
    """Runs both stages unless they are finished; writes `queries/` and `pseudo_labels/` in `place`.

    Args:
        config: of one training; its `train.labels.generate` says what to do.
        place: where `start/`, the encoder that negatives are mined with, lies.
        start: its manifest.
        home: the run's workspace, with the documents.
        reporter: progress.

    Raises:
        InputError: the documents are not prepared, a model cannot be used, or no row comes out.
    """
    assert config.train.labels is not None
    settings = config.train.labels.generate
    assert settings is not None
    documents = finished_manifest(documents_folder(config, home), command="prepare")
    check_generation(config.train, place)
    queries = generate_queries(config, settings, place, home=home, reporter=reporter)
    stage = _stage(config, settings, place, queries=queries, start=start, documents=documents)
    mining = place / _MINING_FOLDER
    if (manifest := stage.finished()) is not None:
        mining.delete()
        reporter.note(f"pseudo-labels: up to date, {manifest.counts['rows']:,} rows")
        return manifest
    _make_searchable(config, place / START_FOLDER, start, mining, home=home, reporter=reporter)
    stage.begin()
    shards = run_shards(
        stage,
        "score",
        {shard.name: {} for shard in queries.shards},
        MiningActor(place / QUERIES_FOLDER, mining, stage.folder, settings, seed=config.seed),
        reporter=reporter,
        label="pseudo-labels",
        resources={"cpus": settings.cpus_per_actor, "gpus": settings.gpus_per_actor},
        num_actors=min(settings.num_actors, len(queries.shards)),
    )
    counts = {"rows": sum(shard.num_rows for shard in shards)} | sum_drops(shards)
    if counts["rows"] == 0:
        raise InputError(
            f"none of {queries.counts['queries']:,} queries has a negative: the documents are too few"
        )
    manifest = stage.finish(counts=counts, shards=shards)
    mining.delete()
    reporter.note(f"pseudo-labels: {counts['rows']:,} rows in {stage.folder}")
    return manifest


def _stage(
    config: RunConfig,
    settings: PseudoLabelsConfig,
    place: Location,
    *,
    queries: Manifest,
    start: Manifest,
    documents: Manifest,
) -> StageFolder:
    asked = {
        "mode": settings.mode,
        "mining_depth": settings.mining_depth,
        "negatives_per_query": settings.negatives_per_query,
        "memory_budget": config.index.memory_budget,
        "seed": config.seed,
    }
    inputs = {
        "queries": queries.digest,
        "encoder": start.digest,
        "documents": documents.digest,
        "cross_encoder": describe_start(settings.cross_encoder),
    }
    return StageFolder(place / PSEUDO_LABELS_FOLDER, stage="pseudo_labels", config=asked, inputs=inputs)


def _make_searchable(
    config: RunConfig,
    start: Location,
    manifest: Manifest,
    mining: Location,
    *,
    home: Location,
    reporter: Reporter,
) -> None:
    """Embeds and indexes the documents with the starting encoder, as a workspace that `Searcher` opens.

    By cosine, whatever the run's own index is by: dot products of this encoder are not trained yet. Of the
    run's settings only those of speed and memory count.
    """
    _hand_over(start, manifest, mining / "encoder")
    speed = {name: getattr(config.embed, name) for name in (*SPEED_ONLY, "batch_tokens")}
    index = IndexConfig(
        allow_lower_recall=True,
        memory_budget=config.index.memory_budget,
        build_memory=config.index.build_memory,
        train_cpus=config.index.train_cpus,
    )
    alone = replace(config, embed=EmbedConfig(**speed), index=index)
    embed(alone, mining, reporter=reporter, home=home)
    build_index(alone, mining, reporter=reporter, home=home)
    build_lookup(alone, mining, reporter=reporter, home=home)


def _hand_over(start: Location, manifest: Manifest, folder: Location) -> None:
    """The starting encoder as a finished one."""
    stage = StageFolder(folder, stage="encoder", config={}, inputs={"start": manifest.digest})
    if stage.finished() is not None:
        return
    from tsdae_core.encoder import SentenceEncoder

    stage.begin()
    with start.as_local_folder() as source:
        encoder = SentenceEncoder.load(str(source))
    with tempfile.TemporaryDirectory(prefix="tsdae-mining-") as copied:
        encoder.save(Path(copied))
        files = stage.folder.upload_folder(Path(copied))
    facts = {"encoder_fingerprint": encoder.fingerprint()}
    stage.finish(counts={"dim": encoder.dim}, files=files, facts=facts)


class MiningActor:
    """Makes the function that mines and scores for one shard of queries; models are loaded once per actor."""

    def __init__(
        self,
        queries: Location,
        mining: Location,
        output: Location,
        settings: PseudoLabelsConfig,
        *,
        seed: int,
    ):
        self.queries, self.mining, self.output = queries, mining, output
        self.settings, self.seed = settings, seed

    def __call__(self) -> ShardFunction:
        """Opens index and models; the function that does one shard."""
        import torch

        from pipelines.rerank import CrossEncoderReranker
        from pipelines.search import Searcher

        torch.set_num_threads(self.settings.threads_per_actor)
        device = "cuda" if self.settings.gpus_per_actor else "cpu"
        searcher = Searcher.open(self.mining, device=device)
        with local_model(self.settings.cross_encoder) as source:
            scorer = CrossEncoderReranker.load(source, device=device, logits=True)

        def work(name: str, _spec: Mapping[str, Any]) -> ShardRecord:
            table = read_shard(self.queries, name, ["row_id", "query"])
            rows: list[dict[str, Any]] = []
            without = 0
            for start in range(0, table.num_rows, _SEARCHED_AT_ONCE):
                part = table.slice(start, _SEARCHED_AT_ONCE)
                for found in self._rows(part, searcher, scorer):
                    rows += found
                    without += not found
            digest = write_parquet(self.output / f"{name}.parquet", pa.Table.from_pylist(rows, _SCHEMA))
            drops = {"dropped_no_negative": without} if without else {}
            return ShardRecord(name=name, num_rows=len(rows), digest=digest, counts=drops)

        return work

    def _rows(
        self, table: pa.Table, searcher: Searcher, scorer: CrossEncoderReranker
    ) -> Iterator[list[dict[str, Any]]]:
        """Yields the rows of each query; none where nothing but its own passage is found."""
        settings = self.settings
        queries, row_ids = (table.column(name).to_pylist() for name in ("query", "row_id"))
        hits = searcher.search_hits(queries, settings.mining_depth + 1, mode=settings.mode)
        for query, own, ids in zip(queries, row_ids, hits.ids, strict=True):
            found = ids[(ids != NO_HIT) & (ids != own)][: settings.mining_depth]
            key = fold_key("negatives", self.seed, own, query)
            chosen = found[keyed_permutation(len(found), key)[: settings.negatives_per_query]]
            if len(chosen) == 0:
                yield []
                continue
            positive, *negatives = searcher.documents.rows(np.concatenate([[own], chosen]))
            scores = scorer.score(query, [str(row["text"]) for row in (positive, *negatives)])
            yield [
                {
                    "query": query,
                    "positive": positive["text"],
                    "negative": negative["text"],
                    PSEUDO_MARGIN: float(scores[0] - score),
                    "positive_id": positive["doc_id"],
                    "negative_id": negative["doc_id"],
                }
                for negative, score in zip(negatives, scores[1:], strict=True)
            ]
