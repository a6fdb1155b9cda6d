"""`tsdae serve`: the HTTP service, until it is interrupted."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pipelines.errors import InputError

if TYPE_CHECKING:
    from pipelines.config import RunConfig

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] [KEY=VALUE]...",
            help="YAML file, if any, and settings that win over it, e.g. serve.port=8080.",
            show_default=False,
        ),
    ] = None,
    workspace: Annotated[
        str | None,
        typer.Option(
            "--workspace",
            "-w",
            help="Folder or URL of a finished run; wins over the configuration's.",
            envvar="TSDAE_WORKSPACE",
        ),
    ] = None,
) -> None:
    """Answer searches over HTTP, with a page for people, until interrupted (Ctrl-C)."""
    from pipelines.cluster import connected
    from pipelines.service.deploy import running

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    config = _config(arguments or [], workspace)
    _on_signals(_interrupt)
    try:
        settings = config.serve
        cpus, gpus = settings.cpus_per_replica, settings.gpus_per_replica
        with connected(
            config,
            replicas_cpus=settings.num_replicas * cpus,
            replicas_gpus=settings.num_replicas * gpus,
        ):
            _on_signals(_interrupt)  # Ray put a handler of its own when it started
            with running(config) as address:
                _serve(config, address, console)
            console.print("serve: stopped")
    except (KeyboardInterrupt, SystemExit):
        console.print("serve: stopped before it had started")


def _serve(config: RunConfig, address: str, console: Console) -> None:
    from pipelines.service.deploy import API_KEY_VARIABLE

    stop = threading.Event()
    _on_signals(lambda *_: stop.set())
    console.print(f"serve: {config.workspace} at {address} (page /, API /docs, metrics /metrics)")
    if config.serve.host not in _LOOPBACK and not os.environ.get(API_KEY_VARIABLE):
        console.print(f"serve: WARNING: reachable from elsewhere without a key; set {API_KEY_VARIABLE}")
    while not stop.wait(0.5):
        pass


def _on_signals(handler: Callable[[int, FrameType | None], object]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _config(arguments: list[str], workspace: str | None) -> RunConfig:
    from pipelines.cli.options import DEFAULT_WORKSPACE
    from pipelines.config_io import load_config

    paths = [one for one in arguments if "=" not in one]
    overrides = [one for one in arguments if "=" in one]
    if len(paths) > 1:
        raise InputError(f"expected one configuration, got {', '.join(paths)}")
    if workspace is not None:
        overrides.append(f"workspace={workspace}")
    elif not paths and not any(one.startswith("workspace=") for one in overrides):
        overrides.append(f"workspace={DEFAULT_WORKSPACE}")
    return load_config(Path(paths[0]) if paths else None, overrides)
