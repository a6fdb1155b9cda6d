"""`tsdae submit`: a run on a Ray cluster, from a machine that is not part of it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pipelines.cli.options import ConfigPath, Overrides

_INTERRUPTED = 130


def submit(
    config: ConfigPath,
    overrides: Overrides = None,
    address: Annotated[
        str,
        typer.Option("--address", help="Job server, e.g. http://HEAD:8265.", envvar="RAY_API_SERVER_ADDRESS"),
    ] = "http://127.0.0.1:8265",
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            help="NAME=VALUE, or NAME of a variable set here, for the job. Repeatable.",
            show_default=False,
        ),
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Come back at once.")] = False,
) -> None:
    """Run a configuration as a job of a Ray cluster: upload it with this code, show the log, wait."""
    from pipelines.config_io import load_config
    from pipelines.progress import Reporter
    from pipelines.submit import follow
    from pipelines.submit import submit as start

    reporter = Reporter()
    client, job_id = start(load_config(config, overrides or ()), address=address, variables=env or ())
    later = f"ray job logs --address {address} -f {job_id}"
    reporter.note(f"submit: job {job_id} (later: {later})")
    if no_wait:
        return

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    try:
        code = follow(client, job_id, write=write)
    except KeyboardInterrupt:
        reporter.note(f"submit: job {job_id} goes on; to end it: ray job stop --address {address} {job_id}")
        raise typer.Exit(_INTERRUPTED) from None
    reporter.note(f"submit: job {job_id} ended with exit code {code}")
    raise typer.Exit(code)
