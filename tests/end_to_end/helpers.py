"""A tiny run on real text: configuration, the command as a user starts it, what its manifests say."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import yaml

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


def tsdae(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "pipelines", *arguments],
        capture_output=True,
        text=True,
        env=_environment(),
        cwd=cwd,
        check=False,
    )


def start_tsdae(*arguments: str) -> subprocess.Popen[str]:
    """Starts the command and comes back at once."""
    return subprocess.Popen(
        [sys.executable, "-m", "pipelines", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(),
    )


def _environment() -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}


def manifest_digests(workspace: Path) -> dict[str, str]:
    """The digest of every stage's manifest."""
    return {
        name: json.loads((workspace / name / "manifest.json").read_text())["digest"] for name in STAGE_FOLDERS
    }


def kill_at(
    process: subprocess.Popen[str], workspace: Path, pattern: str, *, timeout_s: float = 600
) -> set[int]:
    """Sends SIGKILL to the driver as soon as a file in the workspace matches; returns its descendants' ids.

    Raises AssertionError when the run ends, or time passes, before that.
    """
    deadline = time.monotonic() + timeout_s
    descendants: set[int] = set()
    try:
        while not any(workspace.glob(pattern)):
            if process.poll() is not None:
                raise AssertionError(f"the run ended before {pattern} appeared: {process.communicate()[1]}")
            assert time.monotonic() < deadline, f"{pattern} did not appear within {timeout_s} s"
            with contextlib.suppress(psutil.NoSuchProcess):
                descendants |= {child.pid for child in psutil.Process(process.pid).children(recursive=True)}
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
    return descendants


def wait_gone(pids: set[int], *, timeout_s: float = 60) -> set[int]:
    """Waits until the processes have ended; returns those that have not."""
    deadline = time.monotonic() + timeout_s
    while pids and time.monotonic() < deadline:
        pids = {pid for pid in pids if _alive(pid)}
        time.sleep(0.2)
    return pids


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
