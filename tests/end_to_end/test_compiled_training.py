"""`train.compile` with the C++ compiler of this machine and two workers of Ray Train, by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.end_to_end.helpers import tsdae, write_config

pytestmark = [pytest.mark.by_hand, pytest.mark.timeout(1800)]


def test_two_compiled_workers_train_as_two_plain_ones_do(docs_corpus: Path, tmp_path: Path) -> None:
    logs = []
    for compiled in ("false", "true"):
        workspace = tmp_path / compiled
        config = write_config(tmp_path, docs_corpus, workspace)
        # Compiled blocks draw their own dropout.
        settings = ("model.scratch.dropout=0", f"train.compile={compiled}")
        for stage in ("prepare", "train"):
            done = tsdae(stage, str(config), *settings)
            assert done.returncode == 0, done.stderr
        logs.append(json.loads((workspace / "encoder" / "training_log.json").read_bytes()))
    plain, log = logs
    assert log["stream_digest"] == plain["stream_digest"]
    for curve in ("losses", "validation_losses"):
        assert log[curve] == [pytest.approx(point, rel=1e-3) for point in plain[curve]], curve
