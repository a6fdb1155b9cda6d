"""The number of workers, and how they share a model, change neither the examples nor the outcome."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from pipelines.errors import InputError
from tests.faults.conftest import Undisturbed
from tests.faults.full_disk import disk_that_fills
from tests.faults.training import Outcome, copy_of, train

_CLOSE = 1e-5
_LATE_CHECKPOINT = "training/*/checkpoint_step_0000000040/state/*.safetensors"


def test_one_worker_sees_the_rows_of_two_and_ends_with_their_weights(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    config = copy_of(undisturbed.config, tmp_path, num_workers=1)
    train(config)
    outcome, of_two = Outcome.of(config), undisturbed.outcome
    for key in ("stream_digest", "num_sentences", "num_target_tokens", "num_steps"):
        assert outcome.log[key] == of_two.log[key], key
    assert any(name.startswith("model.bottleneck") for name in outcome.weights)
    assert outcome.distance(of_two) < _CLOSE
    # A rank jumps where two scores are almost equal, as they are in an encoder that has hardly been trained.
    for key, close in (("losses", 1e-4), ("validation_losses", 1e-4), ("retrieval_mrrs", 0.05)):
        assert outcome.log[key] == [pytest.approx(point, abs=close) for point in of_two.log[key]], key


def test_four_workers_with_copies_fill_the_disk_and_two_with_shards_go_on_to_the_same_weights(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Micro-batches are small: workers have different numbers of them and must meet in every pass."""
    config = copy_of(undisturbed.config, tmp_path, num_workers=4, max_batch_tokens=30)
    with disk_that_fills(config, when=_LATE_CHECKPOINT) as make_room:
        with pytest.raises(InputError, match=r"no room to write the checkpoint of step [56]0") as caught:
            train(config)
        assert re.search(r"the last good checkpoint is that of step [45]0", str(caught.value))
        assert "lost a worker" not in caught.value.__notes__[0]
        make_room()
        fewer = dataclasses.replace(config.train, num_workers=2, strategy="fsdp2")
        told = train(dataclasses.replace(config, train=fewer))
        assert "60/60 steps" in told
        outcome = Outcome.of(config)
    for key in ("stream_digest", "num_sentences", "num_target_tokens", "num_steps"):
        assert outcome.log[key] == undisturbed.outcome.log[key], key
    assert outcome.distance(undisturbed.outcome) < _CLOSE
    losses = undisturbed.outcome.log["validation_losses"]
    assert outcome.log["validation_losses"] == [pytest.approx(point, abs=1e-4) for point in losses]
