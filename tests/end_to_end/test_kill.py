"""SIGKILL in the middle of every stage, then the same command again: the outcome is the undisturbed one's.

The first half of the runs start a Ray of their own, which has to end with them; the others join a cluster,
which has to go on without them.
"""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.end_to_end.conftest import TinyRun
from tests.end_to_end.helpers import (
    kill_at,
    manifest_digests,
    running_cluster,
    start_tsdae,
    tsdae,
    wait_gone,
    write_config,
)

# Agents of Ray see a killed raylet at once, then wait a minute for its control store before they end.
_AGENTS_END_S = 150
# A file whose appearance tells that the stage is at work.
_MOMENTS = {
    "prepare": "documents/_exchange/rows/*",
    "start": "start/_started.json",
    "tokenize": "tokens/part-*.parquet",
    "train": "training/*/checkpoint_*",
}
_MOMENTS_ON_A_CLUSTER = {
    "embed": "vectors/part-*.parquet",
    "index": "index/_started.json",
    "evaluate": "report/scores/*.parquet",
    "register": "registration/_started.json",
}


@pytest.mark.timeout(2400)
def test_killed_in_every_stage_and_rerun_gives_the_undisturbed_manifests(
    tiny_run: TinyRun, tmp_path: Path
) -> None:
    workspace = tmp_path / "work"
    config = write_config(tmp_path, tiny_run.corpus, workspace)
    descendants: set[psutil.Process] = set()
    for pattern in _MOMENTS.values():
        descendants |= kill_at(start_tsdae("run", str(config)), workspace, pattern)
    with running_cluster() as cluster:
        for pattern in _MOMENTS_ON_A_CLUSTER.values():
            kill_at(start_tsdae("run", str(config), cluster=cluster), workspace, pattern)
        done = tsdae("run", str(config), cluster=cluster)
    assert done.returncode == 0, done.stderr
    assert manifest_digests(workspace) == manifest_digests(tiny_run.workspace)
    assert not wait_gone(descendants, timeout_s=_AGENTS_END_S), "processes outlived a killed run"
    assert _run_metrics(workspace) == _run_metrics(tiny_run.workspace)


def _run_metrics(workspace: Path) -> dict[str, list[int]]:
    """The steps of every metric of the workspace's one MLflow run; system metrics depend on time."""
    from pipelines.tracking import Tracker

    client = Tracker(f"sqlite:///{workspace / 'mlflow.db'}", "tsdae", None).client()
    (run,) = client.search_runs([client.get_experiment_by_name("tsdae").experiment_id])
    names = [name for name in run.data.metrics if not name.startswith("system/")]
    return {
        name: [metric.step for metric in client.get_metric_history(run.info.run_id, name)] for name in names
    }
