"""The encoder of the best validation: kept through a kill, and what a stopped training leaves."""

import json
from pathlib import Path

import pytest
from labelled_builders import prepare_and_train, small_config, small_train
from train_here import KilledError, without_ray

from pipelines.train_config import EarlyStopping
from tests.faults.training import assert_kept_the_start


def training_log(config):
    return json.loads((Path(config.workspace) / "encoder/training_log.json").read_text())


def test_a_stopped_training_keeps_its_best_encoder_also_through_a_kill(tmp_path, monkeypatch):
    """No gain is large enough, so the second validation after the start ends it and the start is the best."""
    here = without_ray(monkeypatch)
    train = small_train(
        "tsdae",
        num_steps=12,
        validate_every=4,
        checkpoint_every=2,
        keep="best",
        early_stopping=EarlyStopping(metric="validation_loss", patience=2, min_delta=100.0),
    )
    config = small_config(tmp_path / "killed", train)
    here.die_at("tsdae", 3)
    with pytest.raises(KilledError):
        prepare_and_train(config)
    assert here.deadly is None
    prepare_and_train(config)
    log = training_log(config)
    assert (log["num_steps"], log["kept_step"]) == (8, 0)
    assert [step for step, _ in log["validation_losses"]] == [0, 4, 8]
    undisturbed = small_config(tmp_path / "undisturbed", train)
    prepare_and_train(undisturbed)
    assert log == training_log(undisturbed)
    assert_kept_the_start(config)
    assert "train: up to date, 8 steps" in prepare_and_train(config)[1]
