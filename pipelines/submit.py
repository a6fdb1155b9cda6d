"""Submitting a run to a Ray cluster's job server: what is uploaded, the logs while it runs, how it ended.

The code of this installation and the resolved configuration are uploaded, nothing else; the nodes need the
packages of `constraints.txt`, not this project.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

import indexing
import pipelines
import tsdae_core
from pipelines.config import RunConfig
from pipelines.config_io import config_to_yaml
from pipelines.errors import InputError
from pipelines.job_places import check_places, check_tracking

MAX_UPLOAD_BYTES = 100 << 20
_PACKAGES = (indexing, pipelines, tsdae_core)
_CONFIG_NAME = "run.yaml"
_ENTRYPOINT = f"python -m pipelines run {_CONFIG_NAME}"
_FORWARDED = "MLFLOW_TRACKING_URI"
_POLL_S = 1.0
_RECONNECTS = 30
_FAILED = 1

Write = Callable[[str], object]


def submit(
    config: RunConfig, *, address: str, variables: Sequence[str] = ()
) -> tuple[JobSubmissionClient, str]:
    """Uploads code and configuration and starts the run as a job; returns the client and the job's id.

    variables: NAME=VALUE, or NAME for the value of this process; set in the job and its workers.

    Raises:
        InputError: a path that means another place on the cluster's nodes, no answer from the job server,
            or a refusal.
    """
    check_places(config)
    environment = _environment(config, variables)
    client = _connect(address)
    with upload_folder(config) as folder:
        try:
            job_id = client.submit_job(
                entrypoint=_ENTRYPOINT,
                runtime_env={"working_dir": str(folder), "env_vars": environment},
            )
        except (RuntimeError, AuthenticationError) as error:
            raise InputError(f"the job server at '{address}' refused: {_first_line(error)}") from error
    return client, str(job_id)


def follow(client: JobSubmissionClient, job_id: str, *, write: Write) -> int:
    """Writes the job's log as it grows until the job ends; returns the exit code of its driver, or 1.

    A broken connection is taken up again, without repeating lines.
    """
    written = 0
    for _ in range(_RECONNECTS):
        try:
            written = asyncio.run(_tail(client, job_id, skip=written, write=write))
        except _BrokenError as broken:
            written = broken.written
        details = _details(client, job_id)
        if details is not None and details.status.is_terminal():
            return _exit_code(details)
        time.sleep(_POLL_S)
    raise InputError(f"the connection to job {job_id} broke {_RECONNECTS} times; it may still run")


@contextmanager
def upload_folder(config: RunConfig) -> Iterator[Path]:
    """A folder with the code and the configuration; the small encoder's weights only where they are used.

    Raises:
        InputError: it is larger than a job server takes.
    """
    left_out = ["__pycache__", "*.pyc"]
    if config.model.start != "small":
        left_out.append("*.safetensors")
    with tempfile.TemporaryDirectory(prefix="tsdae-job-") as name:
        folder = Path(name)
        for package in _PACKAGES:
            source = Path(str(package.__file__)).parent
            shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns(*left_out))
        (folder / _CONFIG_NAME).write_text(config_to_yaml(config), encoding="utf-8")
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        if size > MAX_UPLOAD_BYTES:
            raise InputError(f"the upload has {size / 2**20:.0f} MiB, a job server takes 100 MiB at most")
        yield folder


class _BrokenError(Exception):
    """The connection ended before the log did; `written` characters had been shown."""

    def __init__(self, written: int):
        super().__init__(written)
        self.written = written


async def _tail(client: JobSubmissionClient, job_id: str, *, skip: int, write: Write) -> int:
    """Writes the log from character `skip` on; returns how many characters have been shown in all."""
    seen, shown = 0, skip
    try:
        async for text in client.tail_job_logs(job_id):
            fresh = text[max(0, skip - seen) :]
            seen += len(text)
            if fresh:
                write(fresh)
                shown += len(fresh)
    except (RuntimeError, OSError, aiohttp.ClientError) as error:
        raise _BrokenError(shown) from error
    return shown


def _environment(config: RunConfig, variables: Sequence[str]) -> Mapping[str, str]:
    environment = {"PYTHONUNBUFFERED": "1"}
    if config.tracking.uri is None and _FORWARDED in os.environ:
        environment[_FORWARDED] = os.environ[_FORWARDED]
    for variable in variables:
        name, separator, value = variable.partition("=")
        if not name or (not separator and name not in os.environ):
            raise InputError(f"--env '{variable}': write NAME=VALUE, or the NAME of a variable set here")
        environment[name] = value if separator else os.environ[name]
    if config.tracking.uri is None and _FORWARDED in environment:
        check_tracking(_FORWARDED, environment[_FORWARDED])
    return environment


def _connect(address: str) -> JobSubmissionClient:
    try:
        return JobSubmissionClient(address)
    except AuthenticationError as error:
        raise InputError(
            f"the job server at '{address}' asks for a token: export RAY_AUTH_MODE=token here and on all "
            "nodes, or RAY_AUTH_MODE=disabled on a trusted network"
        ) from error
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InputError(
            f"no job server answers at '{address}': {_first_line(error)}; give the address of the head's "
            "dashboard, e.g. http://HEAD:8265"
        ) from error


def _details(client: JobSubmissionClient, job_id: str) -> JobDetails | None:
    try:
        return client.get_job_info(job_id)
    except (RuntimeError, OSError):
        return None


def _exit_code(details: JobDetails) -> int:
    if details.status == JobStatus.SUCCEEDED:
        return 0
    return int(details.driver_exit_code or _FAILED)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
