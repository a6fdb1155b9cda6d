"""`tsdae fit`: transforms behind an encoder and Sent2Vec, on the corpus of a workspace."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pipeline_builders import quiet_reporter
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.config import RunConfig
from pipelines.config_io import load_config
from pipelines.configured_systems import _fitted
from pipelines.errors import InputError
from pipelines.manifest import ShardRecord, StageFolder, read_manifest
from pipelines.parquet import write_parquet
from pipelines.storage import Location
from pipelines.system_config import SystemConfig
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.flow import Flow, FlowConfig
from tsdae_core.scratch import ScratchConfig, build_scratch_encoder, train_tokenizer
from tsdae_core.sent2vec import Sent2Vec, Sent2VecConfig
from tsdae_core.whitening_config import WhiteningConfig

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


def test_fitting_leaves_the_encoder_as_it_is(workspace, tmp_path):
    work, _ = workspace
    before = SentenceEncoder.load(work / "encoder").backbone.state_dict()
    for kind, settings in (("whitening", []), ("flow", ["--set", "lr=1e-2"])):
        fit(kind, "-o", tmp_path / kind, "-w", work, *settings)
        after = SentenceEncoder.load(tmp_path / kind).backbone.state_dict()
        assert after.keys() == before.keys()
        assert all(torch.equal(after[name], value) for name, value in before.items())


def test_a_flow_tells_its_likelihood_and_warns_where_it_only_standardises(workspace, tmp_path):
    work, _ = workspace
    told = fit("flow", "-o", tmp_path / "few", "-w", work)
    assert "flow: log density" in told
    assert "WARNING: 1 updates at rate 1e-06 leave the flow all but a standardisation" in told
    settings = ["--set", "lr=1e-2", "--set", "num_epochs=20", "--set", "num_steps=2"]
    told = fit("flow", "-o", tmp_path / "more", "-w", work, *settings)
    assert "flow: log density" in told
    assert "WARNING" not in told
    config = SentenceEncoder.load(tmp_path / "more").heads[-1].config
    assert config == FlowConfig(lr=1e-2, num_epochs=20, num_steps=2)
    given = ["--dim", 4, "--num-epochs", 1, "--set", "ngrams=1", "--set", "num_buckets=9", "--set", "dim=6"]
    fit("sent2vec", "-o", tmp_path / "s2v", "-w", work, *given)
    config = Sent2Vec.load(tmp_path / "s2v").config
    assert config == Sent2VecConfig(dim=6, num_epochs=1, ngrams=1, num_buckets=9)
    for setting, message in (
        ("lrr=1", r"unknown configuration key 'lrr'\. Did you mean 'lr'"),
        ("lr=0", "configuration: lr=0"),
        ("lr=fast", "configuration key 'lr'"),
    ):
        with pytest.raises(InputError, match=message):
            fit("flow", "-o", tmp_path / "x", "-w", work, "--set", setting)


def fitted(work, **settings):
    """A system of a configuration, fitted now or before; and what was told."""
    reporter, told = quiet_reporter()
    system = SystemConfig(name="a system", **settings)
    place = _fitted(system, RunConfig(), Location.parse(work), reporter)
    return Path(place.path), told.getvalue()


def test_the_settings_of_a_system_reach_its_fit_and_its_fingerprint(workspace):
    work, _ = workspace
    flow = {"kind": "flow", "source": str(work / "encoder")}
    place, told = fitted(work, **flow)
    assert "fitting flow on 60 texts" in told
    assert "a system: WARNING" in told
    assert SentenceEncoder.load(place).heads[-1].config == FlowConfig()
    assert fitted(work, **flow)[1] == ""  # it is there
    changed = FlowConfig(lr=1e-2, num_steps=2, hidden_size=8, num_epochs=20)
    place, told = fitted(work, **flow, flow=changed)
    assert "WARNING" not in told
    assert SentenceEncoder.load(place).heads[-1].config == changed
    place, told = fitted(work, **flow, flow=changed, max_texts=40)
    assert "on 40 texts" in told
    assert read_manifest(Location.parse(place)).counts == {"texts": 40}
    white = {"kind": "whitening", "source": str(work / "encoder")}
    place, _ = fitted(work, **white, whitening=WhiteningConfig(num_dims=5))
    assert SentenceEncoder.load(place).dim == 5
    words = Sent2VecConfig(dim=4, num_epochs=1, min_count=1, num_buckets=9)
    place, _ = fitted(work, kind="sent2vec", sent2vec=words)
    assert Sent2Vec.load(place).config == words
    assert read_manifest(Location.parse(place)).config["sent2vec"]["num_buckets"] == 9


@pytest.mark.parametrize(
    ("system", "message"),
    [
        ("kind: flow, source: x, flow: {lr: 0}", r"systems\.0\.flow': lr=0"),
        ("kind: flow, source: x, flow: {rate: 1}", r"systems\.0\.flow\.rate'"),
        ("kind: flow, source: x, whitening: {num_dims: 3}", "of kind flow has no settings of whitening"),
        ("kind: whitening, source: x, whitening: {num_dims: 0}", "num_dims=0"),
        ("kind: bm25, sent2vec: {dim: 3}", "of kind bm25 has no settings of sent2vec"),
        ("kind: bm25, max_texts: 9", "is not fitted"),
        ("kind: sent2vec, max_texts: 1", "max_texts must be 0 or at least 2"),
    ],
)
def test_settings_that_no_system_has_are_refused(tmp_path, system, message):
    path = tmp_path / "run.yaml"
    path.write_text(f"evaluate: {{tasks: [{{name: t, folder: t}}], systems: [{{name: a, {system}}}]}}\n")
    with pytest.raises(InputError, match=message):
        load_config(path)
