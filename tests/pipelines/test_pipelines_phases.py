"""A recipe of phases on Ray: handed on, resumed, and redone from the phase that changed."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pipeline_builders import quiet_reporter

from pipelines.collection_config import CollectionConfig
from pipelines.config import RunConfig
from pipelines.local_training import train_here
from pipelines.manifest import read_manifest
from pipelines.model_config import ModelConfig
from pipelines.phase_config import PhaseConfig
from pipelines.run import run_stages
from pipelines.storage import Location
from pipelines.train_config import TrainConfig
from pipelines.train_job import Training
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.optim import OptimConfig
from tsdae_core.scratch import ScratchConfig

pytestmark = pytest.mark.usefixtures("ray_cluster")


def small_train(objective, *, num_steps=3):
    return TrainConfig(
        objective=objective, num_steps=num_steps, batch_size=8, validation_rows=8, optim=OptimConfig(lr=1e-3)
    )


@pytest.fixture
def config(tmp_path):
    rng = np.random.default_rng(0)
    words = ["ba", "kori", "mi", "tula", "se", "rin", "po", "da"]
    lines = [" ".join(rng.choice(words, size=2 + i % 6)) + f" {i}" for i in range(60)]
    (tmp_path / "corpus.txt").write_text("\n".join(lines) + "\n")
    scratch = ScratchConfig(
        num_layers=1, hidden_size=16, num_heads=2, intermediate_size=32, vocab_size=80, max_tokens=24
    )
    phases = [PhaseConfig(name=name, train=small_train(name)) for name in ("mlm", "simcse")]
    return RunConfig(
        workspace=str(tmp_path / "work"),
        corpus=CollectionConfig(input=str(tmp_path / "corpus.txt")),
        model=ModelConfig(start="scratch", max_tokens=24, scratch=scratch),
        phases=tuple(phases),
    )


def run(config, *stages):
    reporter, written = quiet_reporter()
    run_stages(stages, config, reporter=reporter)
    return written.getvalue()


class KilledError(Exception):
    pass


def _a_training_in_this_process_gives_the_same(config, place):
    """The loop without Ray Train, killed after its second step, against the phase that Ray Train has run."""
    workspace = Location.parse(place)
    train = replace(config.phases[0].train, checkpoint_every=1)
    tokens = read_manifest(workspace / "tokens")
    alone = replace(config, phases=(), train=train)
    training = Training.of(alone, workspace, tokens, storage=Location.parse(place / "alone"))
    seen = []

    def kill(step, _encoder):
        seen.append(step)
        if seen == [0, 1, 2]:
            raise KilledError

    def go():
        return train_here(training, device=torch.device("cpu"), show=lambda _: None, after_step=kill)

    with pytest.raises(KilledError):
        go()
    encoder = go()
    assert seen == [0, 1, 2, 2, 3]  # what is looked at comes before the checkpoint, so nothing is missed
    by_ray = SentenceEncoder.load(place / "encoder").fingerprint()
    assert SentenceEncoder.load(encoder.local_path).fingerprint() == by_ray
    logs = [
        json.loads((folder / "training_log.json").read_text())
        for folder in (encoder.local_path, place / "encoder")
    ]
    assert logs[0] == logs[1]


def test_each_phase_starts_from_the_last_and_only_what_changed_is_redone(config):
    work = Path(config.workspace)
    first = run(config, "prepare", "train")
    assert "phase 1/2: mlm" in first
    assert "phase 2/2: simcse" in first
    handed_on = SentenceEncoder.load(work / "phases/mlm/encoder")
    start = SentenceEncoder.load(work / "start")
    assert start.fingerprint() == handed_on.fingerprint()
    assert SentenceEncoder.load(work / "encoder").fingerprint() != start.fingerprint()
    recorded = json.loads((work / "start/manifest.json").read_text())
    assert recorded["config"]["model"]["start"] == str(work / "phases/mlm/encoder")
    assert "model.safetensors" in recorded["inputs"]["checkpoint"]  # the digest of every file
    log = json.loads((work / "encoder/training_log.json").read_text())
    assert log["num_steps"] == 3
    _a_training_in_this_process_gives_the_same(config, work / "phases/mlm")
    again = run(config, "train")
    assert again.count("up to date, 3 steps") == 2
    longer = PhaseConfig(name="simcse", train=small_train("simcse", num_steps=4))
    changed = replace(config, phases=(config.phases[0], longer), train=longer.train)
    third = run(changed, "train")
    assert third.count("up to date, 3 steps") == 1
    assert json.loads((work / "encoder/training_log.json").read_text())["num_steps"] == 4
