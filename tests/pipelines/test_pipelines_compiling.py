"""`train.compile` through the train stage: the training of the plain model, or one line on the compiler."""

import json
from dataclasses import replace
from functools import partialmethod
from pathlib import Path

import pytest
import torch
from labelled_builders import prepare_and_train, small_config, small_train
from train_here import without_ray

from pipelines.errors import InputError
from tsdae_core.objective_model import ObjectiveModel


@pytest.fixture
def config(tmp_path, monkeypatch):
    without_ray(monkeypatch)
    train = small_train("tsdae", num_steps=4, validate_every=2, checkpoint_every=2, log_every=1)
    return small_config(tmp_path, train)


@pytest.fixture
def _fresh_compiler():
    """Compiled code belongs to the process, not to a model."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(config):
    return replace(config, train=replace(config.train, compile=True))


def log_of(config):
    return json.loads((Path(config.workspace) / "encoder" / "training_log.json").read_bytes())


@pytest.mark.usefixtures("_fresh_compiler")
def test_a_compiled_training_has_the_losses_of_the_plain_one(config, monkeypatch):
    """On a backend that takes the same graphs and needs no C++; the real one has a test for the hand."""
    prepare_and_train(config)
    plain = log_of(config)
    blocks = partialmethod(ObjectiveModel.compile_blocks, backend="aot_eager")
    monkeypatch.setattr(ObjectiveModel, "compile_blocks", blocks)
    graphs = torch._dynamo.utils.counters["stats"]
    graphs.clear()
    prepare_and_train(compiled(config))
    assert graphs["unique_graphs"] > 0
    log = log_of(config)
    assert log["stream_digest"] == plain["stream_digest"]
    for curve in ("losses", "validation_losses"):
        assert log[curve] == [pytest.approx(point, rel=1e-4) for point in plain[curve]], curve


@pytest.mark.usefixtures("_fresh_compiler")
def test_a_machine_without_a_compiler_is_told_in_one_line(config):
    from torch._inductor import config as inductor

    nowhere = {"cpp.cxx": (None, "/nowhere/g++"), "force_disable_caches": True, "compile_threads": 1}
    with inductor.patch(nowhere), pytest.raises(InputError) as caught:
        prepare_and_train(compiled(config))
    message = str(caught.value)
    assert message.startswith("train.compile needs a working compiler on every node")
    assert "No working C++ compiler found" in message
    assert message.endswith("install one, or set train.compile=false")
    assert "\n" not in message
