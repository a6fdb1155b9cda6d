"""A disk that gets full while a checkpoint is written ends a training; the same command then finishes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipelines.errors import InputError
from tests.faults.conftest import Nodes
from tests.faults.full_disk import disk_that_fills
from tests.faults.linked import Linked
from tests.faults.training import Outcome, copy_of, train

_LATE_CHECKPOINT = "training/*/checkpoint_step_0000000040/state/*.safetensors"


def test_a_full_disk_is_told_and_once_there_is_room_the_same_command_ends_as_if_nothing_had_been(
    nodes: Nodes, undisturbed: Linked, tmp_path: Path
) -> None:
    config = copy_of(undisturbed.config, tmp_path)
    with disk_that_fills(config, when=_LATE_CHECKPOINT) as make_room:
        with pytest.raises(InputError, match=r"no room to write the checkpoint of step [56]0") as caught:
            train(config)
        assert re.search(r"the last good checkpoint is that of step [45]0", str(caught.value))
        assert "lost a worker" not in caught.value.__notes__[0]
        make_room()
        told = train(config)
        assert "60/60 steps" in told
        assert " 0/60 steps" not in told  # it goes on from the last good checkpoint
        outcome = Outcome.of(config)
    assert outcome.stream == undisturbed.finished.stream
    assert outcome.distance(undisturbed.finished) == 0
    assert outcome.digest == undisturbed.finished.digest
