"""A small workspace with documents, encoder, vectors and index, and tasks that run in this process."""

import dataclasses
import pickle

import numpy as np
import pytest
from pipeline_builders import quiet_reporter, write_rows
from shard_builders import run_shards_here

from indexing.index_config import IndexConfig
from indexing.vectors import read_vectors
from pipelines.collection_config import CollectionConfig
from pipelines.config import RunConfig
from pipelines.embed import embed
from pipelines.index_stage import build_index
from pipelines.manifest import StageFolder
from pipelines.prepare import prepare
from pipelines.storage import Location
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.scratch import ScratchConfig, build_scratch_encoder, train_tokenizer

NUM_DOCS, NUM_SHARDS = 600, 6
WORDS = "red green blue cat dog tree house river stone cloud runs sleeps over under small big"


def without_ray(patch):
    """Stages work in this process; what would travel to a task is pickled."""
    for module in ("prepare", "embed", "index_build", "lookup"):
        patch.setattr(f"pipelines.{module}.run_shards", run_shards_here)
    for module in ("index_build", "grow"):
        patch.setattr(f"pipelines.{module}.start_task", _start_here)
        patch.setattr(f"pipelines.{module}.finish_task", lambda result: result)


def _start_here(function, *arguments, **_):
    return function(*pickle.loads(pickle.dumps(arguments)))


def sentence(number):
    rng = np.random.default_rng(number)
    return " ".join([*rng.choice(WORDS.split(), size=rng.integers(3, 12)), str(number)])


def in_place(workspace, **changes):
    """The configuration of the tests, in a workspace, with the given sections replaced."""
    config = RunConfig(
        workspace=str(workspace),
        documents=CollectionConfig(
            input=str(workspace / "input"), id_column="id", title_column="title", num_shards=NUM_SHARDS
        ),
        index=IndexConfig(factory="IVF8,SQ8", num_query_sample=40, target_recall_at_10=0.8),
    )
    return dataclasses.replace(config, **changes)


def build_workspace(workspace, *, with_index):
    """A workspace with documents, an encoder, vectors and an index, made without Ray."""
    rows = [(f"d{i}", sentence(i), f"title {i}") for i in range(NUM_DOCS)]
    write_rows(workspace / "input" / "rows.jsonl", rows, columns=("id", "text", "title"))
    place, config = Location.parse(workspace), in_place(workspace)
    with pytest.MonkeyPatch.context() as patch:
        without_ray(patch)
        _fill(workspace, place, config, rows, with_index=with_index)


def _fill(workspace, place, config, rows, *, with_index):
    reporter, _ = quiet_reporter()
    prepare("documents", config.documents, place, reporter=reporter)
    texts = [row[1] for row in rows]
    shape = ScratchConfig(num_layers=1, hidden_size=32, num_heads=2, intermediate_size=32, max_tokens=32)
    encoder = build_scratch_encoder(
        shape, train_tokenizer(texts, vocab_size=200), pooling="mean", seed=0, texts=texts
    )
    encoder.save(workspace / "encoder")
    loaded = SentenceEncoder.load(workspace / "encoder")
    stage = StageFolder(place / "encoder", stage="encoder", config={}, inputs={})
    files = {"model.safetensors": (place / "encoder" / "model.safetensors").sha256()}
    stage.finish(counts={"dim": loaded.dim}, files=files, facts={"encoder_fingerprint": loaded.fingerprint()})
    embed(config, place, reporter=reporter)
    if with_index:
        build_index(config, place, reporter=reporter)


def of(finished, workspace, **changes):
    """The configuration of the finished run, for a copy of it."""
    return dataclasses.replace(in_place(finished, **changes), workspace=str(workspace))


def all_vectors(workspace, folder="vectors"):
    place = Location.parse(workspace / folder)
    parts = [
        read_vectors(place.filesystem, info.path) for info in place.files() if info.path.endswith("parquet")
    ]
    return np.concatenate([ids for ids, _ in parts]), np.concatenate([rows for _, rows in parts])
