"""A board on which a train worker writes how far it is and from which the driver reads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayError

from pipelines.progress import Tracker

_POLL_SECONDS = 1.0
_READ_TIMEOUT_S = 10.0


class _Board:
    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def write(self, state: dict[str, Any]) -> None:
        self.state = state

    def read(self) -> dict[str, Any]:
        return self.state


def new_board() -> Any:
    """A board actor; it uses no CPU, lives as long as its handle and starts anew when its node dies."""
    return ray.remote(num_cpus=0, max_restarts=-1)(_Board).remote()


@contextmanager
def followed(board: Any, tracker: Tracker) -> Iterator[None]:
    """Shows the board's `step`, `first_step` and `note` on the tracker while the body runs."""
    stopped = threading.Event()

    def follow() -> None:
        started = False
        while not stopped.wait(_POLL_SECONDS):
            state = last_state(board)
            if not state:
                continue
            if not started:
                tracker.restart_at(state["first_step"])
                started = True
            tracker.set(state["step"], note=state["note"])

    thread = threading.Thread(target=follow, name="progress-board", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        if state := last_state(board):
            tracker.set(state["step"], note=state["note"])


def last_state(board: Any) -> dict[str, Any]:
    """The board's state; nothing while its node is gone: a lost display must not fail what it displays."""
    try:
        state: dict[str, Any] = ray.get(board.read.remote(), timeout=_READ_TIMEOUT_S)
    except RayError:
        return {}
    return state
