"""A disk for checkpoints that gets full in the middle of a training."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from pipelines.config import RunConfig
from tests.faults.training import killing, processes

_WORKER = "RayTrainWorker"
_BLOCK = b"x" * 4096
_LOOK_S = 0.001


@contextmanager
def disk_that_fills(config: RunConfig, *, when: str) -> Iterator[Callable[[], object]]:
    """Leaves no room for checkpoints from the moment a file matches; yields what makes room again.

    A small file system on which something else takes every free byte, where this process may mount one; else
    a limit on the size of the workers' files.
    """
    if os.geteuid() != 0:

        def limit(_process: psutil.Process) -> None:
            for worker in processes(_WORKER):
                worker.rlimit(psutil.RLIMIT_FSIZE, (40_000, 40_000))

        with killing(config, _WORKER, when=when, act=limit):
            yield lambda: None
        return
    disk = Path(config.workspace) / "training"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=True)
    room_is_made = threading.Event()
    filler = threading.Thread(target=_fill, args=(Path(config.workspace), when, disk, room_is_made))
    filler.start()

    def make_room() -> None:
        room_is_made.set()
        filler.join()

    try:
        yield make_room
    finally:
        make_room()
        subprocess.run(["umount", "-l", str(disk)], check=True)


def _fill(workspace: Path, when: str, disk: Path, room_is_made: threading.Event) -> None:
    """Once a file matches, takes all room there is, that of deleted checkpoints too, until told to stop."""
    while not any(workspace.glob(when)):
        if room_is_made.wait(5 * _LOOK_S):
            return
    path = disk / "of-somebody-else"
    with path.open("wb", buffering=0) as file:
        while not room_is_made.is_set():
            try:
                file.write(_BLOCK)
            except OSError:
                room_is_made.wait(_LOOK_S)
    path.unlink()
