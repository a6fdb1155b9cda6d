"""Drivers of a run that start fast and can be killed: forked from a process that has loaded everything."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from multiprocessing.process import BaseProcess
from pathlib import Path

_LOADED = ["pipelines.run", "pipelines.config_io", "pipelines.progress"]


def start_driver(config: Path, *, address: str, errors: Path) -> BaseProcess:
    """Runs all stages of a configuration in a process of its own, on the Ray cluster at the address."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_LOADED)
    process = context.Process(target=_drive, args=(str(config), address, str(errors)))
    process.start()
    return process


def kill_driver_at(process: BaseProcess, workspace: Path, pattern: str, *, timeout_s: float = 600) -> bool:
    """Sends SIGKILL as soon as a file in the workspace matches; False when the run ended before that."""
    deadline = time.monotonic() + timeout_s
    try:
        while not any(workspace.glob(pattern)):
            if not process.is_alive():
                return False
            assert time.monotonic() < deadline, f"{pattern} did not appear within {timeout_s} s"
            time.sleep(0.01)
        return True
    finally:
        process.kill()
        process.join()


def _drive(config: str, address: str, errors: str) -> None:
    from rich.console import Console

    from pipelines.config_io import load_config
    from pipelines.progress import Reporter
    from pipelines.run import run_all

    os.environ["RAY_ADDRESS"] = address
    with Path(errors).open("a", encoding="utf-8") as file:
        try:
            run_all(load_config(config), reporter=Reporter(Console(file=file, force_terminal=False)))
        except BaseException:
            file.write(traceback.format_exc())
            raise
