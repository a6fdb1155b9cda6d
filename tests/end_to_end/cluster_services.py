"""Real services of a cluster on one machine: a Ray head with a job server, a worker node, MLflow, S3.

And how a user gives them work: `tsdae submit`, `ray job submit`, any other command.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.fs as pafs
import pytest

_WAIT_S = 300
ROOT = Path(__file__).resolve().parents[2]
BUCKET = "my-bucket"  # as in the example
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test-key", "AWS_SECRET_ACCESS_KEY": "test-secret"}


@dataclass(frozen=True)
class Services:
    """Addresses: Ray's job server, MLflow's tracking server, the object store (host:port)."""

    jobs: str
    mlflow: str
    s3: str

    def url(self, path: str) -> str:
        """A place in the object store as users write it."""
        return f"s3://{BUCKET}/{path}?endpoint_override={self.s3}&scheme=http&region=us-east-1"

    @property
    def filesystem(self) -> pafs.S3FileSystem:
        """The object store; may make buckets."""
        return pafs.S3FileSystem(
            endpoint_override=self.s3, scheme="http", region="us-east-1", allow_bucket_creation=True
        )


@contextmanager
def services_in_use(folder: Path) -> Iterator[Services]:
    """The services, their addresses and credentials in this process's environment, and an empty bucket."""
    with cluster_services(folder) as running, pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        patch.setenv("MLFLOW_TRACKING_URI", running.mlflow)
        running.filesystem.create_dir(BUCKET)
        yield running


def tsdae_submit(services: Services, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`tsdae submit` with the credentials handed on."""
    return call(
        "-m", "pipelines", "submit", *arguments, "--address", services.jobs,
        *[part for name in CREDENTIALS for part in ("--env", name)],
    )  # fmt: skip


def ray_job_submit(services: Services, *entrypoint: str) -> subprocess.CompletedProcess[str]:
    """Ray's own command, with the checkout as the working directory."""
    settings = {"env_vars": {**CREDENTIALS, "MLFLOW_TRACKING_URI": services.mlflow}}
    return call(
        "-m", "ray.scripts.scripts", "job", "submit", "--address", services.jobs, "--working-dir", str(ROOT),
        "--runtime-env-json", json.dumps(settings), "--", *entrypoint,
    )  # fmt: skip


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of this Python, to its end."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=ROOT, check=False
    )


@contextmanager
def cluster_services(folder: Path) -> Iterator[Services]:
    """Starts all of them side by side; ends what was started."""
    from ray.cluster_utils import Cluster

    s3, mlflow, jobs = _free_port(), _free_port(), _free_port()
    started = [
        _start("moto.server", "-H", "127.0.0.1", "-p", str(s3), log=folder / "s3.log"),
        _start(
            "mlflow", "server", "--host", "127.0.0.1", "--port", str(mlflow), "--workers", "1",
            "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}",
            "--artifacts-destination", str(folder / "artifacts"), log=folder / "mlflow.log",
        ),
    ]  # fmt: skip
    # Two nodes on one machine need a folder each: in a shared one the second removes the first one's upload.
    scratch = tempfile.mkdtemp(prefix="r", dir="/tmp")
    cluster = None
    try:
        with _job_environment():
            cluster = Cluster(
                initialize_head=True,
                head_node_args={
                    "num_cpus": 0,  # so that every task and train worker runs on the other node
                    "include_dashboard": True,
                    "dashboard_host": "127.0.0.1",
                    "dashboard_port": jobs,
                    "dashboard_agent_listen_port": _free_port(),
                },
            )
            cluster.add_node(num_cpus=4, dashboard_agent_listen_port=_free_port(), temp_dir=scratch)
        services = Services(f"http://127.0.0.1:{jobs}", f"http://127.0.0.1:{mlflow}", f"127.0.0.1:{s3}")
        for address in (services.jobs, services.mlflow, f"http://{services.s3}"):
            _wait_for(address)
        yield services
    finally:
        if cluster is not None:
            cluster.shutdown()
        for process in started:
            process.terminate()
        for process in started:
            process.wait(timeout=_WAIT_S)
        shutil.rmtree(scratch, ignore_errors=True)


def _start(*arguments: str, log: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", *arguments], stdout=output, stderr=subprocess.STDOUT, env=environment
        )


@contextmanager
def _job_environment() -> Iterator[None]:
    """Jobs get the environment of the head: this Python first, and no way to our source but the upload."""
    before = {name: os.environ.get(name) for name in ("PATH", "PYTHONPATH")}
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ.pop("PYTHONPATH", None)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is not None:
                os.environ[name] = value


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(address: str) -> None:
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except urllib.error.HTTPError:
            return  # an answer all the same
        except OSError:
            assert time.monotonic() < deadline, f"{address} did not answer within {_WAIT_S} s"
            time.sleep(0.2)
