"""SIGKILL in the middle of every stage, then the same command again: the outcome is the undisturbed one's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.conftest import TinyRun
from tests.end_to_end.drivers import kill_driver_at, start_driver
from tests.end_to_end.helpers import kill_at, manifest_digests, start_tsdae, tsdae, wait_gone, write_config

# Agents of Ray see a killed raylet at once, then wait a minute for its control store before they end.
_AGENTS_END_S = 150
# A file whose appearance tells that the stage is at work.
_BEFORE = {
    "prepare": "documents/_exchange/*.parquet",
    "start": "start/_started.json",
    "tokenize": "tokens/part-*.parquet",
}
_WITH_ITS_CLUSTER = "training/*/checkpoint_*"
_AFTER = {
    "embed": "vectors/part-*.parquet",
    "index": "index/_started.json",
    "lookup": "lookup/_started.json",
    "evaluate": "report/scores/*.parquet",
    "register": "registration/_started.json",
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster that outlives the drivers that join it."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False})
    yield cluster.address
    cluster.shutdown()


@pytest.mark.timeout(2400)
def test_killed_in_every_stage_and_rerun_gives_the_undisturbed_manifests(
    tiny_run: TinyRun, tmp_path: Path, address: str
) -> None:
    """In training the command that started its own cluster is killed, elsewhere a driver that joined one."""
    workspace, errors = tmp_path / "work", tmp_path / "errors.txt"
    config = write_config(tmp_path, tiny_run.corpus, workspace)
    descendants: set[int] = set()
    for moments in (_BEFORE, None, _AFTER):
        if moments is None:
            descendants = kill_at(start_tsdae("run", str(config)), workspace, _WITH_ITS_CLUSTER)
            continue
        for stage, pattern in moments.items():
            driver = start_driver(config, address=address, errors=errors)
            assert kill_driver_at(driver, workspace, pattern), f"{stage}: {errors.read_text()}"
    done = tsdae("run", str(config))
    assert done.returncode == 0, done.stderr
    assert manifest_digests(workspace) == manifest_digests(tiny_run.workspace)
    assert not wait_gone(descendants, timeout_s=_AGENTS_END_S), "processes outlived a killed run"
