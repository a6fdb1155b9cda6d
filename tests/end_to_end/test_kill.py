"""SIGKILL in the middle of every stage, then the same command again: the outcome is the undisturbed one's."""

from __future__ import annotations

from pathlib import Path

from tests.end_to_end.conftest import TinyRun
from tests.end_to_end.helpers import kill_at, manifest_digests, start_tsdae, tsdae, wait_gone, write_config

# A file whose appearance tells that the stage is at work.
_MOMENTS = {
    "prepare, reading": "corpus/_started.json",
    "prepare, second collection": "documents/_exchange/*.parquet",
    "start": "start/_started.json",
    "tokenize": "tokens/part-*.parquet",
    "train, before the first checkpoint": "encoder/_started.json",
    "train, after a checkpoint": "training/*/checkpoint_*",
    "embed": "vectors/part-*.parquet",
    "index": "index/_started.json",
    "evaluate": "report/scores/*.parquet",
    "register": "registration/_started.json",
}


def test_killed_in_every_stage_and_rerun_gives_the_undisturbed_manifests(
    tiny_run: TinyRun, tmp_path: Path
) -> None:
    workspace = tmp_path / "work"
    config = write_config(tmp_path, tiny_run.corpus, workspace)
    for moment, pattern in _MOMENTS.items():
        descendants = kill_at(start_tsdae("run", str(config)), workspace, pattern)
        assert not wait_gone(descendants), f"{moment}: processes outlived the killed run"
    done = tsdae("run", str(config))
    assert done.returncode == 0, done.stderr
    assert manifest_digests(workspace) == manifest_digests(tiny_run.workspace)
