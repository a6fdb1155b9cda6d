"""One run at a time in a workspace: a file lock where the workspace is local, a lease where it is remote.

A lease is an object in the workspace that names its holder and is written again every few seconds. Object
stores have no lock that a killed process would let go, so a lease that nobody renews ends by itself. No
clocks are compared: whoever comes looks whether the object changes.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import filelock

from pipelines.errors import InputError
from pipelines.storage import Location

_LOCK_NAME = ".lock"
_LEASE_NAME = ".lease.json"


@dataclass(frozen=True)
class LeaseTimes:
    """Seconds: a holder renews every `renew_s`; a lease not renewed for `expire_s` is free.

    settle_s: after taking a lease, how long until it is read again, to see whether another start took it in
    the same moment; the last writer has it.
    """

    renew_s: float = 15.0
    expire_s: float = 60.0
    settle_s: float = 1.0


_DEFAULT_TIMES = LeaseTimes()


@contextmanager
def only_one(
    workspace: Location, *, note: Callable[[str], object] = print, times: LeaseTimes = _DEFAULT_TIMES
) -> Iterator[Callable[[], None]]:
    """Holds the workspace; the lock of a killed run is free at once, its lease after `times.expire_s`.

    Yields a check, for between two pieces of work: it raises InputError if another run holds the workspace by
    now, which happens only to a lease that could not be renewed for long.

    Raises:
        InputError: another run is at work in it.
    """
    if workspace.is_local:
        with _file_lock(workspace):
            yield lambda: None
        return
    lease = _Lease(workspace, times)
    lease.take(note)
    try:
        yield lease.check
    finally:
        lease.give_back()


@contextmanager
def _file_lock(workspace: Location) -> Iterator[None]:
    workspace.make_dir()
    lock = filelock.FileLock((workspace / _LOCK_NAME).path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise InputError(
            f"another run is at work in '{workspace}'; wait for it or use another workspace"
        ) from None
    try:
        yield
    finally:
        lock.release()


class _Lease:
    def __init__(self, workspace: Location, times: LeaseTimes) -> None:
        self.workspace, self.times = workspace, times
        self.place = workspace / _LEASE_NAME
        self.token = uuid.uuid4().hex
        self.ended = threading.Event()
        self.lost_to: str | None = None
        self.renewing = threading.Thread(target=self._renew, name="workspace-lease", daemon=True)

    def take(self, note: Callable[[str], object]) -> None:
        """Takes a free lease, or one that nobody renews; waits long enough to see which it is."""
        try:
            self._wait_until_free(note)
            self._write()
            time.sleep(self.times.settle_s)
            holder = self._holder()
        except OSError as error:
            reason = " ".join(str(error).split())
            raise InputError(f"cannot write to the workspace '{self.workspace}': {reason}") from error
        if holder is not None and holder["token"] != self.token:
            raise self._taken(holder)
        self.renewing.start()

    def check(self) -> None:
        """Raises InputError when another run holds the workspace by now."""
        if self.lost_to is not None:
            raise InputError(
                f"another run ({self.lost_to}) took over '{self.workspace}' while this one could not renew "
                "its lease; give the command again when that run has ended"
            )

    def give_back(self) -> None:
        self.ended.set()
        self.renewing.join()
        with contextlib.suppress(OSError):  # a store that is gone: the lease ends by itself
            holder = self._holder()
            if holder is not None and holder["token"] == self.token:
                self.place.delete()

    def _wait_until_free(self, note: Callable[[str], object]) -> None:
        holder = self._holder()
        if holder is None or _is_dead_here(holder):
            return
        started_s, is_told = time.monotonic(), False
        while time.monotonic() - started_s < self.times.expire_s:
            found = self._holder()
            if found is None:
                return
            if found != holder:  # renewed, or taken by yet another
                raise self._taken(found)
            if not is_told:
                note(
                    f"'{self.workspace}' is held by a run ({_named(holder)}) that may have been killed; "
                    f"waiting up to {self.times.expire_s:.0f} s to see whether it is alive"
                )
                is_told = True
            time.sleep(min(self.times.renew_s / 3, 2.0))

    def _taken(self, holder: dict[str, str]) -> InputError:
        return InputError(
            f"another run ({_named(holder)}) is at work in '{self.workspace}'; wait for it or use another "
            "workspace"
        )

    def _renew(self) -> None:
        while not self.ended.wait(self.times.renew_s):
            try:
                holder = self._holder()
                if holder is not None and holder["token"] != self.token:
                    self.lost_to = _named(holder)
                    return
                self._write()
            except OSError:
                continue  # the store may be back at the next turn; whoever takes the lease is seen then

    def _write(self) -> None:
        self.place.write_json(
            {
                "token": self.token,
                "host": socket.gethostname(),
                "pid": str(os.getpid()),
                "renewed": uuid.uuid4().hex,
            }
        )

    def _holder(self) -> dict[str, str] | None:
        try:
            held: dict[str, str] = self.place.read_json()
        except FileNotFoundError:
            return None
        return held


def _is_dead_here(holder: dict[str, str]) -> bool:
    """Whether the holder was a process of this machine that is gone; of other machines nothing is known."""
    if holder["host"] != socket.gethostname():
        return False
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _named(holder: dict[str, str]) -> str:
    return f"process {holder['pid']} on {holder['host']}"
