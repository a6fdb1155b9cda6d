"""A recipe of phases on Ray: handed on, redone from what changed, equal for any number of workers."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from labelled_builders import prepare_and_train, small_config, small_train, write_labels
from pipeline_builders import quiet_reporter
from safetensors.numpy import load_file
from train_here import without_ray

from pipelines.local_training import train_here
from pipelines.manifest import read_manifest
from pipelines.phase_config import PhaseConfig
from pipelines.run import run_stages
from pipelines.storage import Location
from pipelines.tracking import Tracker
from pipelines.train_job import Training
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.optim import OptimConfig

pytestmark = pytest.mark.usefixtures("ray_cluster")


def run(config, *stages):
    reporter, written = quiet_reporter()
    run_stages(stages, config, reporter=reporter)
    return written.getvalue()


def dataset_names(config):
    """What each run in MLflow says that it read."""
    tracker = Tracker.of(config, Location.parse(config.workspace))
    runs = tracker.client().search_runs([tracker.experiment_id()])
    return sorted(one.dataset.name for run in runs for one in run.inputs.dataset_inputs)


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


def test_each_phase_starts_from_the_last_and_only_what_changed_is_redone(tmp_path, monkeypatch):
    """MLM on the corpus, then ranking by two workers, whose loss compares the rows of both."""
    labels = write_labels(tmp_path / "pairs.jsonl", "ranking")
    # A large epsilon: vectors that hardly differ yet round apart, which Adam would blow up.
    ranking = small_train("ranking", labels=labels, num_workers=2, optim=OptimConfig(lr=1e-3, eps=1e-2))
    phases = [PhaseConfig(name="mlm", train=small_train("mlm")), PhaseConfig(name="pairs", train=ranking)]
    config = small_config(tmp_path, phases=phases)
    work = Path(config.workspace)
    first = run(config, "prepare", "train")
    assert "phase 1/2: mlm" in first
    assert "phase 2/2: pairs" in first
    assert dataset_names(config) == ["corpus", "labels"]
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
    weights = load_file(work / "encoder/model.safetensors")
    again = run(config, "train")
    assert again.count("up to date, 3 steps") == 2

    without_ray(monkeypatch)
    alone = replace(ranking, num_workers=1)
    longer = PhaseConfig(name="pairs", train=replace(alone, num_steps=4))
    changed = replace(config, phases=(config.phases[0], longer), train=longer.train)
    _, third = prepare_and_train(changed)
    assert third.count("up to date, 3 steps") == 1
    assert json.loads((work / "encoder/training_log.json").read_text())["num_steps"] == 4

    shutil.rmtree(work / "encoder")
    pairs = PhaseConfig(name="pairs", train=alone)
    prepare_and_train(replace(config, phases=(config.phases[0], pairs), train=alone))
    by_one = json.loads((work / "encoder/training_log.json").read_text())
    assert by_one["stream_digests"] == log["stream_digests"]
    np.testing.assert_allclose(by_one["validation_losses"], log["validation_losses"], atol=1e-4)
    for name, value in load_file(work / "encoder/model.safetensors").items():
        np.testing.assert_allclose(value, weights[name], atol=1e-5, err_msg=name)
