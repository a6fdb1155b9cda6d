"""What a phase hands to the next: its encoder, with another pooling or through an object store."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.fs as pafs
import pytest
import torch
from labelled_builders import prepare_and_train, small_config, small_train
from train_here import without_ray

from pipelines.phase_config import PhaseConfig
from pipelines.phases import one_phase
from pipelines.storage import Location
from tsdae_core.encoder import SentenceEncoder


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    without_ray(monkeypatch)


def test_each_phase_pools_as_it_says_and_a_silent_one_as_the_one_before(tmp_path):
    phases = [
        PhaseConfig(name="mlm", pooling="mean", train=small_train("mlm")),
        PhaseConfig(name="tsdae", pooling="cls", train=small_train("tsdae")),
        PhaseConfig(name="last", train=small_train("mlm")),
    ]
    config = small_config(tmp_path, phases=phases)
    config = replace(config, model=replace(config.model, pooling="max"))
    prepare_and_train(config)
    work = Path(config.workspace)
    for place, pooling in (("phases/mlm", "mean"), ("phases/tsdae", "cls"), (".", "cls")):
        assert SentenceEncoder.load(work / place / "encoder").pooling == pooling
        recorded = json.loads((work / place / "start/manifest.json").read_text())
        assert recorded["config"]["model"]["pooling"] == pooling
    handed_on = SentenceEncoder.load(work / "phases/mlm/encoder").backbone.state_dict()
    begun = SentenceEncoder.load(work / "phases/tsdae/start").backbone.state_dict()
    assert all(torch.equal(value, begun[name]) for name, value in handed_on.items())

    changed = replace(phases[-1], pooling="mean")
    _, told = prepare_and_train(replace(config, phases=(*phases[:2], changed)))
    assert told.count("up to date, 3 steps") == 2
    assert SentenceEncoder.load(work / "encoder").pooling == "mean"


@pytest.fixture
def store(tmp_path, monkeypatch):
    """An object store below `mock://`, whose files stay for as long as the test runs."""
    (tmp_path / "store").mkdir()
    filesystem = pafs.SubTreeFileSystem(str(tmp_path / "store"), pafs.LocalFileSystem())
    parse = Location.parse

    def parse_here(text):
        if not str(text).startswith("mock://"):
            return parse(text)
        path = str(text).removeprefix("mock://").partition("?")[0].rpartition("@")[2]
        return Location(filesystem, path)

    monkeypatch.setattr(Location, "parse", staticmethod(parse_here))
    return parse_here


def test_phases_hand_their_encoder_on_through_an_object_store(tmp_path, store):
    phases = [PhaseConfig(name=name, train=small_train(name)) for name in ("mlm", "tsdae")]
    local = small_config(tmp_path, phases=phases)
    remote = replace(local, workspace="mock://key:secret@bucket/run?region=x")
    prepare_and_train(local)
    _, told = prepare_and_train(remote)
    work = store(remote.workspace)
    start = (work / "start/manifest.json").read_json()["config"]["model"]["start"]
    assert start == "mock://***@bucket/run/phases/mlm/encoder?region=x"
    assert "secret" not in told
    for place in ("phases/mlm/encoder", "encoder"):
        with (work / place).as_local_folder() as folder:
            found = SentenceEncoder.load(folder).fingerprint()
        assert found == SentenceEncoder.load(Path(local.workspace) / place).fingerprint()
    _, again = prepare_and_train(remote)
    assert again.count("up to date, 3 steps") == 2
    alone, place = one_phase(remote, work, "tsdae")
    assert store(alone.model.start) == work / "phases/mlm/encoder"
    assert place == work
