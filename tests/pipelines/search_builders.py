"""A finished workspace small enough to make in a second, without a cluster: texts on a few topics."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from indexing.build import add_vectors, train_index
from indexing.exact import normalize_rows
from indexing.plan import IndexConfig, SearchParams, plan_index
from indexing.store import IndexMetadata, save_index
from indexing.vectors import write_vectors
from pipelines.manifest import ShardRecord, StageFolder
from pipelines.prepare import ROWS_PER_SHARD_BITS, write_parquet
from pipelines.storage import Location
from tsdae_core.scratch import ScratchConfig, build_scratch_encoder, train_tokenizer

TOPICS = {
    "files": "open read write file folder path line disk",
    "network": "socket connect server port address packet client host",
    "colour": "red green blue paint shade palette canvas bright",
    "numbers": "sum count mean median integer float round total",
}
NUM_SHARDS = 2
DIM = 32


def make_rows(num_rows=120, *, seed=0):
    """Rows with id, title, text, a topic, a year as text and a size as a number."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(num_rows):
        topic = list(TOPICS)[number % len(TOPICS)]
        words = rng.choice(TOPICS[topic].split(), size=6).tolist()
        rows.append(
            {
                "doc_id": f"doc/{number}",
                "text": f"{' '.join(words)} {number}",
                "title": f"{topic} {number}",
                "topic": topic,
                "year": None if number % 10 == 9 else str(2000 + number % 20),
                "size": number,
            }
        )
    return rows


def make_workspace(folder, *, factory="Flat", rows=None, seed=0, num_documents=120):
    """Documents, encoder, vectors, index and lookup under `folder`; returns the rows."""
    from pipelines.config import RunConfig
    from pipelines.lookup import build_lookup

    workspace = Location.parse(folder)
    rows = rows or make_rows(num_documents)
    documents = _write_documents(workspace, rows)
    texts = [row["text"] for row in rows]
    config = ScratchConfig(
        num_layers=1, hidden_size=DIM, num_heads=2, intermediate_size=64, max_tokens=32, embedding_init="svd"
    )
    tokenizer = train_tokenizer(texts, vocab_size=300)
    encoder = build_scratch_encoder(config, tokenizer, pooling="mean", seed=seed, texts=texts)
    encoder.save(Path(folder) / "encoder")
    stage = StageFolder(workspace / "encoder", stage="encoder", config={"seed": seed}, inputs={})
    facts = {"encoder_fingerprint": encoder.fingerprint()}
    stage.finish(counts={"dim": DIM, "steps": 0}, facts=facts)
    ids, vectors, digest = _write_vectors(workspace, documents, encoder)
    inputs = {"documents": documents.digest, "vectors": digest}
    _write_index(workspace, ids, vectors, factory, facts["encoder_fingerprint"], inputs)
    reporter = _silent()
    build_lookup(RunConfig(workspace=str(folder)), workspace, reporter=reporter)
    return rows


def call(monkeypatch, *arguments):
    """Runs `tsdae` as the shell does; returns its exit code."""
    from pipelines.cli import main as cli

    monkeypatch.setattr(sys, "argv", ["tsdae", *map(str, arguments)])
    try:
        cli.main()
    except SystemExit as stop:
        return stop.code
    return 0


def _write_documents(workspace, rows):
    stage = StageFolder(workspace / "corpus", stage="corpus", config={}, inputs={})
    stage.begin()
    shards = []
    for number in range(NUM_SHARDS):
        part = rows[number::NUM_SHARDS]
        first = number << ROWS_PER_SHARD_BITS
        table = pa.Table.from_pylist(part)
        ids = pa.array(range(first, first + len(part)), pa.int64())
        name = f"part-{number:05d}"
        digest = write_parquet(stage.folder / f"{name}.parquet", table.add_column(0, "row_id", ids))
        shards.append(ShardRecord(name=name, num_rows=len(part), digest=digest))
    return stage.finish(counts={"rows_kept": len(rows)}, shards=shards)


def _write_vectors(workspace, documents, encoder):
    from pipelines.collection import read_shard

    stage = StageFolder(workspace / "vectors", stage="vectors", config={"dtype": "float32"}, inputs={})
    stage.begin()
    all_ids, all_vectors, shards = [], [], []
    for shard in documents.shards:
        table = read_shard(workspace / "corpus", shard.name, ["row_id", "text"])
        ids, vectors = table.column("row_id").to_numpy(), encoder.encode(table.column("text").to_pylist())
        place = stage.folder / f"{shard.name}.parquet"
        write_vectors(place.filesystem, place.path, ids, vectors, dtype="float32")
        shards.append(ShardRecord(name=shard.name, num_rows=len(ids), digest=place.sha256()))
        all_ids.append(ids)
        all_vectors.append(vectors)
    manifest = stage.finish(counts={"vectors": sum(map(len, all_ids)), "dim": DIM}, shards=shards)
    return np.concatenate(all_ids), normalize_rows(np.concatenate(all_vectors)), manifest.digest


def _write_index(workspace, ids, vectors, factory, fingerprint, inputs):
    plan = plan_index(len(ids), DIM, IndexConfig(factory=factory))
    index = train_index(vectors, plan)
    add_vectors(index, ids, vectors)
    metadata = IndexMetadata(
        factory=plan.factory,
        metric="cosine",
        dim=DIM,
        num_vectors=len(ids),
        search_params=SearchParams(),
        recall_at_10=None,
        target_recall_at_10=0.9,
        encoder_fingerprint=fingerprint,
        documents_digest=inputs["documents"],
    )
    stage = StageFolder(workspace / "index", stage="index", config={"factory": factory}, inputs=inputs)
    stage.begin()
    save_index(stage.folder.local_path, index, metadata)
    files = {"index.faiss": (stage.folder / "index.faiss").sha256()}
    stage.finish(counts={"vectors": len(ids)}, files=files, facts={"documents": "corpus"})


def _silent():
    from pipeline_builders import quiet_reporter

    return quiet_reporter()[0]
