"""Checks for what would otherwise hang or fail hours later; each finding says what to do."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ray
import ray.data

from pipelines.cluster import connected, cpus_needed
from pipelines.config import RunConfig
from pipelines.errors import InputError
from pipelines.inputs import find_files
from pipelines.labels import label_files
from pipelines.query_generator import check_models
from pipelines.storage import Location
from pipelines.tracking import Tracker

_MAX_UPLOAD_BYTES = 100 << 20
_MIN_FREE_BYTES = 2 << 30


@dataclass(frozen=True)
class Finding:
    """One check: its name, whether all is well, and what was found or what to do."""

    name: str
    ok: bool
    message: str


def examine(config: RunConfig) -> list[Finding]:
    """Runs every check; none of them changes anything but a probe file that is removed again."""
    workspace = Location.parse(config.workspace)
    findings = [
        _check("packages", _packages),
        _check("input", lambda: _inputs(config)),
        _check("workers", lambda: f"{config.train.num_workers} workers share {config.train.lanes} lanes"),
        _check("workspace", lambda: _writable(workspace)),
        _check("upload", _upload_size),
    ]
    try:
        with connected(config):
            findings += [
                Finding("cluster", True, _cluster(config)),
                _check("storage on workers", lambda: _worker_storage(workspace)),
                _check("tracking on workers", lambda: _worker_tracking(config, workspace)),
            ]
    except InputError as error:
        findings.append(Finding("cluster", False, str(error)))
    return findings


def _check(name: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, check())
    except (ValueError, OSError, ray.exceptions.RayError) as error:
        reason = str(error).strip().splitlines()
        return Finding(name, False, reason[-1] if reason else type(error).__name__)


def _packages() -> str:
    """ray[default] brings the job server; without it `ray job submit` cannot connect."""
    missing = [name for name in ("aiohttp", "aiohttp_cors", "grpc") if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"ray[default] is incomplete (no {', '.join(missing)}): "
            "pip install 'ray[default,data,train,serve]'"
        )
    return f"ray {ray.__version__} with its job server"


def _inputs(config: RunConfig) -> str:
    collections = [config.corpus] + ([config.documents] if config.documents else [])
    found = [(collection.input, find_files(collection.input)) for collection in collections]
    trainings = [phase.train for phase in config.phases] or [config.train]
    for train in trainings:
        if train.labels is None:
            continue
        if train.labels.generate is None:
            found.append((train.labels.input, label_files(train)))
        else:
            check_models(train.labels.generate)
    return ", ".join(f"{place}: {len(files)} files" for place, files in found)


def _writable(workspace: Location) -> str:
    probe = workspace / f".probe-{uuid.uuid4().hex[:8]}"
    probe.write_bytes(b"probe")
    probe.delete()
    if not workspace.is_local:
        return f"{workspace} is writable"
    free = shutil.disk_usage(workspace.path).free
    if free < _MIN_FREE_BYTES:
        raise InputError(f"only {free / 2**30:.1f} GiB are free at {workspace}; at least 2 GiB are needed")
    return f"{workspace} is writable, {free / 2**30:.0f} GiB free"


def _upload_size() -> str:
    """`ray job submit --working-dir .` uploads what git does not ignore, at most 100 MiB."""
    if shutil.which("git") is None:
        return "git is not installed; not checked"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        return "not a git checkout; not checked"
    size = sum(Path(name).stat().st_size for name in listed.stdout.splitlines() if Path(name).is_file())
    if size > _MAX_UPLOAD_BYTES:
        raise InputError(
            f"the working folder has {size / 2**20:.0f} MiB, `ray job submit` uploads 100 MiB at most"
        )
    return f"{size / 2**20:.1f} MiB of at most 100 MiB for `ray job submit`"


def _cluster(config: RunConfig) -> str:
    resources = ray.cluster_resources()
    return (
        f"{resources.get('CPU', 0):g} CPUs for {cpus_needed(config)} needed, {resources.get('GPU', 0):g} GPUs"
    )


def _on_every_node(function: Callable[..., str], *arguments: object) -> str:
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    remote = ray.remote(num_cpus=1)(function)
    tasks = [
        remote.options(scheduling_strategy=strategy(node, soft=False)).remote(*arguments) for node in nodes
    ]
    try:
        answers = ray.get(tasks, timeout=120)
    except ray.exceptions.GetTimeoutError as error:
        raise InputError("a node did not answer within 120 s; is it busy or unreachable?") from error
    return f"{answers[0]} (from {len(nodes)} nodes)"


def _worker_storage(workspace: Location) -> str:
    """The driver writes, every node reads: a folder that is not shared shows here."""
    probe = workspace / f".probe-{uuid.uuid4().hex[:8]}"
    probe.write_bytes(b"probe")
    try:
        return _on_every_node(_read_probe, probe)
    finally:
        probe.delete()


def _read_probe(probe: Location) -> str:
    if not probe.exists():
        raise InputError(f"a node does not see {probe}; use storage that all nodes share (s3://, gs://, NFS)")
    return "readable"


def _worker_tracking(config: RunConfig, workspace: Location) -> str:
    tracker = Tracker.of(config, workspace)
    tracker.experiment_id()
    return _on_every_node(_reach_tracking, tracker)


def _reach_tracking(tracker: Tracker) -> str:
    tracker.experiment_id()
    return f"{tracker.uri} answers"
