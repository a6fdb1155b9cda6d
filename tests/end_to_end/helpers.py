"""A tiny run on real text: configuration, the command as a user starts it, what its manifests say."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import yaml

_LOOK_EVERY_S = 0.5
_NUM_CPUS = 4  # two train workers, and their ingest
# Ray Train looks at its workers every two seconds, and they wait for it after every checkpoint.
_SETTINGS = {
    "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
    "OMP_NUM_THREADS": "1",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
}
STAGE_FOLDERS = (
    "corpus",
    "documents",
    "start",
    "tokens",
    "encoder",
    "vectors",
    "index",
    "lookup",
    "report",
    "registration",
)


def write_config(folder: Path, corpus: Path, workspace: Path) -> Path:
    """A configuration that runs every stage in seconds, with two train workers."""
    config = {
        "workspace": str(workspace),
        "corpus": {"input": str(corpus / "sentences"), "id_column": "id"},
        "documents": {"input": str(corpus / "documents"), "id_column": "id", "title_column": "title"},
        "model": {
            "start": "scratch",
            "max_tokens": 32,
            "scratch": {
                "num_layers": 2,
                "hidden_size": 32,
                "num_heads": 2,
                "intermediate_size": 64,
                "vocab_size": 600,
            },
        },
        "train": {
            "batch_size": 16,
            "num_steps": 24,
            "num_workers": 2,
            "optim": {"lr": 1e-3},
            "validation_rows": 32,
            "validate_every": 8,
            "checkpoint_every": 8,
            "log_every": 4,
        },
        "index": {"factory": "Flat"},
        "evaluate": {"tasks": [{"name": "docstrings", "folder": str(corpus / "task")}], "top_k": 100},
        "register": {"name": "tiny-encoder", "alias": "candidate"},
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def tsdae(
    *arguments: str, cwd: Path | None = None, cluster: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end, on a Ray of its own or on a cluster."""
    return subprocess.run(
        [sys.executable, "-m", "pipelines", *arguments],
        capture_output=True,
        text=True,
        env=_environment(cluster),
        cwd=cwd,
        check=False,
    )


def start_tsdae(*arguments: str, cluster: str | None = None) -> subprocess.Popen[str]:
    """Starts the command, on a Ray of its own or on a cluster, and comes back at once."""
    return subprocess.Popen(
        [sys.executable, "-m", "pipelines", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(cluster),
    )


def _environment(cluster: str | None = None) -> dict[str, str]:
    joined = {} if cluster is None else {"RAY_ADDRESS": cluster}
    return {**os.environ, **_SETTINGS, **joined}


@contextmanager
def running_cluster() -> Iterator[str]:
    """The address of a Ray cluster that outlives the runs which join it."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        for name, value in _SETTINGS.items():
            patch.setenv(name, value)
        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": _NUM_CPUS, "include_dashboard": False}
        )
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


def manifest_digests(workspace: Path) -> dict[str, str]:
    """The digest of every stage's manifest."""
    return {
        name: json.loads((workspace / name / "manifest.json").read_text())["digest"] for name in STAGE_FOLDERS
    }


def kill_at(
    process: subprocess.Popen[str], workspace: Path, pattern: str, *, timeout_s: float = 600
) -> set[psutil.Process]:
    """Sends SIGKILL to the driver as soon as a file in the workspace matches; returns its descendants.

    Raises AssertionError when the run ends, or time passes, before that.
    """
    deadline = time.monotonic() + timeout_s
    driver, descendants, next_look_s = psutil.Process(process.pid), set[psutil.Process](), 0.0
    try:
        while not any(workspace.glob(pattern)):
            if process.poll() is not None:
                raise AssertionError(f"the run ended before {pattern} appeared: {process.communicate()[1]}")
            assert time.monotonic() < deadline, f"{pattern} did not appear within {timeout_s} s"
            if time.monotonic() > next_look_s:  # walks through all processes, so not in every round
                descendants |= _descendants(driver)
                next_look_s = time.monotonic() + _LOOK_EVERY_S
            time.sleep(0.02)
        descendants |= _descendants(driver)
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
    return descendants


def _descendants(process: psutil.Process) -> set[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return set(process.children(recursive=True))
    return set()


def wait_gone(processes: set[psutil.Process], *, timeout_s: float = 60) -> set[psutil.Process]:
    """Waits until the processes have ended; returns those that have not.

    They are told from others by id and start: Ray's threads take ids too, so that ids come again in minutes.
    """
    deadline = time.monotonic() + timeout_s
    while processes and time.monotonic() < deadline:
        processes = {process for process in processes if _alive(process)}
        time.sleep(0.2)
    return processes


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
