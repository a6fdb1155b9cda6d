"""`tsdae fit`: transforms behind an encoder and Sent2Vec, on the corpus of a workspace."""

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.errors import InputError
from pipelines.manifest import ShardRecord, StageFolder
from pipelines.parquet import write_parquet
from pipelines.storage import Location
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.flow import Flow
from tsdae_core.scratch import ScratchConfig, build_scratch_encoder, train_tokenizer
from tsdae_core.sent2vec import Sent2Vec

NUM_TEXTS = 60


@pytest.fixture
def workspace(tmp_path):
    rng = np.random.default_rng(0)
    words = ["ba", "kori", "mi", "tula", "se", "rin", "po", "da"]
    texts = [" ".join(rng.choice(words, size=2 + i % 6)) for i in range(NUM_TEXTS)]
    work = Location.parse(tmp_path / "work")
    stage = StageFolder(work / "corpus", stage="corpus", config={}, inputs={})
    stage.begin()
    table = pa.table(
        {"row_id": np.arange(NUM_TEXTS), "doc_id": list(map(str, range(NUM_TEXTS))), "text": texts}
    )
    digest = write_parquet(stage.folder / "part-00000.parquet", table)
    shard = ShardRecord(name="part-00000", num_rows=NUM_TEXTS, digest=digest, counts={})
    stage.finish(counts={"rows_kept": NUM_TEXTS}, shards=[shard])
    scratch = ScratchConfig(num_layers=1, hidden_size=16, num_heads=2, intermediate_size=32, max_tokens=24)
    encoder = build_scratch_encoder(scratch, train_tokenizer(texts, vocab_size=80), pooling="mean", seed=0)
    encoder.save((work / "encoder").path)
    return tmp_path / "work", texts


def fit(*arguments):
    result = CliRunner().invoke(app, ["fit", *map(str, arguments)])
    if isinstance(result.exception, InputError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_whitening_and_flow_make_encoders_of_the_workspaces_own(workspace, tmp_path):
    work, texts = workspace
    told = fit("whitening", "-o", tmp_path / "white", "-w", work, "--num-dims", 5)
    assert "fitted on 60 texts, 5 dimensions" in told
    vectors = SentenceEncoder.load(tmp_path / "white").encode(texts)
    np.testing.assert_allclose(np.cov(vectors.T), np.eye(5), atol=1e-2)
    fit("flow", "-o", tmp_path / "flow", "-w", work, "-e", work / "encoder", "--max-texts", 40)
    flow = SentenceEncoder.load(tmp_path / "flow")
    assert isinstance(flow.heads[-1], Flow)
    assert flow.encode(texts[:2]).shape == (2, 16)


def test_sent2vec_is_trained_on_the_corpus(workspace, tmp_path):
    work, _ = workspace
    told = fit("sent2vec", "-o", tmp_path / "s2v", "-w", work, "--dim", 8, "--num-epochs", 1)
    assert "8 words from 60 texts" in told
    assert Sent2Vec.load(tmp_path / "s2v").encode(["kori mi"]).any()


def test_full_outputs_missing_corpora_and_encoders_are_told(workspace, tmp_path):
    work, _ = workspace
    for arguments, message in (
        (("whitening", "-o", work, "-w", work), "not an empty folder"),
        (("whitening", "-o", tmp_path / "x", "-w", work, "-e", tmp_path), "cannot load the encoder"),
        (("sent2vec", "-o", tmp_path / "x", "-w", tmp_path), "prepare"),
    ):
        with pytest.raises(InputError, match=message):
            fit(*arguments)
