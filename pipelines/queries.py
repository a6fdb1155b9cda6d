"""The queries stage: queries generated for passages of the searched documents, by actors that hold the model.

Does not depend on the encoder, so another encoder leaves it as it is. Output: `queries/part-*.parquet`
(row_id int64 of the passage; query string).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from indexing.arrays import is_among
from pipelines.cleaning import clean
from pipelines.collection import finished_manifest, read_deleted, read_shard
from pipelines.config import RunConfig
from pipelines.config_values import config_to_dict
from pipelines.embed import documents_folder
from pipelines.errors import InputError
from pipelines.manifest import Manifest, ShardRecord, StageFolder
from pipelines.names import shard_name
from pipelines.parquet import write_parquet
from pipelines.progress import Reporter
from pipelines.pseudo_labels_config import PseudoLabelsConfig
from pipelines.query_generator import QueryGenerator
from pipelines.shards import ShardFunction, run_shards, sum_drops
from pipelines.start import describe_start
from pipelines.storage import Location

QUERIES_FOLDER = "queries"
# Of the settings: what changes how fast queries come, what is about negatives, and the generator, whose files
# count and not its name.
_NOT_ITS_OWN = (
    *("num_actors", "cpus_per_actor", "gpus_per_actor", "threads_per_actor"),
    *("generator", "cross_encoder", "mode", "mining_depth", "negatives_per_query"),
)
# What a kill may lose, and what one task of mining and scoring does: minutes.
_QUERIES_PER_ITEM = 2_000
_SCHEMA = pa.schema([("row_id", pa.int64()), ("query", pa.string())])


def generate_queries(
    config: RunConfig, settings: PseudoLabelsConfig, place: Location, *, home: Location, reporter: Reporter
) -> Manifest:
    """Runs the stage unless it is finished; writes `queries/` in `place`.

    home: the workspace with the documents.

    Raises:
        InputError: the documents are not prepared, the model cannot be loaded or writes nothing.
    """
    folder = documents_folder(config, home)
    documents = finished_manifest(folder, command="prepare")
    plain = {key: value for key, value in config_to_dict(settings).items() if key not in _NOT_ITS_OWN}
    stage = StageFolder(
        place / QUERIES_FOLDER,
        stage="queries",
        config=plain | {"seed": config.seed},
        inputs={"documents": documents.digest, "generator": describe_start(settings.generator)},
    )
    if (manifest := stage.finished()) is not None:
        reporter.note(f"queries: up to date, {manifest.counts['queries']:,} queries")
        return manifest
    each = settings.queries_each(documents.counts["rows_kept"])
    items = _items(documents, settings, each)
    num_passages = sum(item["end"] - item["start"] for item in items.values())
    reporter.note(f"queries: {each} for each of {num_passages:,} passages, by {settings.generator}")
    stage.begin()
    shards = run_shards(
        stage,
        "generate",
        items,
        QueryActor(folder, documents, stage.folder, settings, each=each, seed=config.seed),
        reporter=reporter,
        label="queries",
        resources={"cpus": settings.cpus_per_actor, "gpus": settings.gpus_per_actor},
        num_actors=min(settings.num_actors, len(items)),
    )
    num_queries = sum(shard.num_rows for shard in shards)
    if num_queries == 0:
        raise InputError(
            f"labels.generate.generator '{settings.generator}' wrote no words for {num_passages:,} passages; "
            "name a model that writes queries"
        )
    counts = {"queries": num_queries, "passages": num_passages} | sum_drops(shards)
    return stage.finish(counts=counts, shards=shards)


def _items(documents: Manifest, settings: PseudoLabelsConfig, each: int) -> dict[str, dict[str, Any]]:
    """By task rows [start, end) of a shard: its first ones, a random sample, as rows are in hash order."""
    num_rows = max(1, sum(shard.num_rows for shard in documents.shards))
    wanted = min(num_rows, -(-settings.num_queries // each))
    size = max(1, _QUERIES_PER_ITEM // each)
    items: dict[str, dict[str, Any]] = {}
    for shard in documents.shards:
        end = -(-shard.num_rows * wanted // num_rows)
        for start in range(0, end, size):
            item = {"shard": shard.name, "start": start, "end": min(start + size, end)}
            items[shard_name(len(items))] = item
    return items


class QueryActor:
    """Makes the function that writes the queries of one item; the model is loaded once per actor."""

    def __init__(
        self,
        documents: Location,
        manifest: Manifest,
        queries: Location,
        settings: PseudoLabelsConfig,
        *,
        each: int,
        seed: int,
    ):
        self.documents, self.queries, self.settings = documents, queries, settings
        # For its note of deleted rows; the list of shards need not travel.
        self.manifest = replace(manifest, shards=())
        self.each, self.seed = each, seed

    def __call__(self) -> ShardFunction:
        """Loads the model; the function that does one item, `{"shard": name, "start": row, "end": row}`."""
        import torch

        settings = self.settings
        torch.set_num_threads(settings.threads_per_actor)
        generator = QueryGenerator.load(settings, device="cuda" if settings.gpus_per_actor else "cpu")
        deleted = read_deleted(self.documents, self.manifest)

        def work(name: str, spec: Mapping[str, Any]) -> ShardRecord:
            table = read_shard(self.documents, spec["shard"], ["row_id", "text"])
            table = table.slice(spec["start"], spec["end"] - spec["start"])
            table = table.filter(pa.array(~is_among(table.column("row_id").to_numpy(), deleted)))
            passages, row_ids = (table.column(key).to_pylist() for key in ("text", "row_id"))
            written = generator.generate(passages, row_ids, num_queries=self.each, seed=self.seed)
            rows, drops = _different(row_ids, written)
            digest = write_parquet(self.queries / f"{name}.parquet", rows)
            return ShardRecord(name=name, num_rows=rows.num_rows, digest=digest, counts=drops)

        return work


def _different(row_ids: list[int], written: list[list[str]]) -> tuple[pa.Table, dict[str, int]]:
    """The queries of each passage, one of each and none without words, and how many were dropped so."""
    ids: list[int] = []
    queries: list[str] = []
    num_empty = num_again = 0
    for row_id, texts in zip(row_ids, written, strict=True):
        cleaned = [query for query in map(clean, texts) if query]
        different = list(dict.fromkeys(cleaned))
        num_empty += len(texts) - len(cleaned)
        num_again += len(cleaned) - len(different)
        ids += [row_id] * len(different)
        queries += different
    drops = {"dropped_empty": num_empty, "dropped_duplicate": num_again}
    return pa.table({"row_id": ids, "query": queries}, schema=_SCHEMA), drops
