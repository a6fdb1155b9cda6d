"""One run at a time in a workspace, local or remote."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from pipelines.errors import InputError
from pipelines.storage import Location
from pipelines.workspace_lock import LeaseTimes, only_one

QUICK = LeaseTimes(renew_s=0.1, expire_s=2.0, settle_s=0.01)
NEVER_RENEWS = LeaseTimes(renew_s=600.0, expire_s=0.5, settle_s=0.01)


@pytest.fixture
def remote(tmp_path: Path) -> Location:
    """A workspace whose file system is not the local one, as an object store's."""
    (tmp_path / "store" / "work").mkdir(parents=True)
    return Location(pafs.SubTreeFileSystem(str(tmp_path / "store"), pafs.LocalFileSystem()), "work")


def lease_of(workspace: Location, *, host: str, pid: int) -> Location:
    place = workspace / ".lease.json"
    place.write_json({"token": "theirs", "host": host, "pid": str(pid), "renewed": "once"})
    return place


def test_a_second_run_is_refused_with_the_name_of_the_first_and_may_run_after_it(remote: Location) -> None:
    with only_one(remote, times=QUICK):
        named = rf"process {os.getpid()} on {socket.gethostname()}.*is at work"
        with pytest.raises(InputError, match=named), only_one(remote, times=QUICK):
            pass
    assert not (remote / ".lease.json").exists()
    with only_one(remote, times=QUICK) as check:
        check()


def test_the_lease_of_a_killed_process_of_this_machine_is_free_at_once(remote: Location) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    lease_of(remote, host=socket.gethostname(), pid=ended.pid)
    notes: list[str] = []
    with only_one(remote, note=notes.append, times=LeaseTimes(expire_s=3600.0, settle_s=0.01)):
        pass
    assert notes == []


def test_a_lease_of_another_machine_that_nobody_renews_ends_and_the_wait_is_told(remote: Location) -> None:
    lease_of(remote, host="node-7", pid=41)
    notes: list[str] = []
    with only_one(remote, note=notes.append, times=NEVER_RENEWS) as check:
        check()
    assert len(notes) == 1
    assert "process 41 on node-7" in notes[0]


def test_a_lease_that_is_renewed_during_the_wait_is_respected(remote: Location) -> None:
    place = lease_of(remote, host="node-7", pid=41)
    renewed = {"token": "theirs", "host": "node-7", "pid": "41", "renewed": "twice"}
    again = only_one(remote, note=lambda _: place.write_json(renewed), times=QUICK)
    with pytest.raises(InputError, match="process 41 on node-7"), again:
        pass
    assert place.read_json() == renewed


def test_of_two_starts_in_the_same_moment_the_last_writer_has_the_workspace(
    remote: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_writes(seconds: float) -> None:
        del seconds
        lease_of(remote, host="node-8", pid=42)

    monkeypatch.setattr("pipelines.workspace_lock.time.sleep", other_writes)
    with pytest.raises(InputError, match="process 42 on node-8"), only_one(remote, times=QUICK):
        pass
    assert (remote / ".lease.json").exists(), "the lease of the other"


def test_a_run_that_lost_its_lease_says_so_and_leaves_the_other_s(remote: Location) -> None:
    before = set(threading.enumerate())
    with only_one(remote, times=QUICK) as check:
        check()
        (renewing,) = set(threading.enumerate()) - before
        lease_of(remote, host="node-9", pid=43)
        renewing.join(30)
        # A renewal under way may have come after the other's writing: then the lease is still ours.
        if renewing.is_alive():
            lease_of(remote, host="node-9", pid=43)
            renewing.join(30)
        with pytest.raises(InputError, match=r"process 43 on node-9.*took over"):
            check()
    assert (remote / ".lease.json").read_json()["token"] == "theirs"


def test_a_store_that_cannot_be_written_is_an_error_that_names_the_workspace(tmp_path: Path) -> None:
    gone = Location(pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()), "file/work")
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(InputError, match="cannot write to the workspace"), only_one(gone, times=QUICK):
        pass


def test_a_local_workspace_has_a_file_lock(tmp_path: Path) -> None:
    workspace = Location.parse(tmp_path / "work")
    with only_one(workspace) as check:
        check()
        with pytest.raises(InputError, match="another run is at work"), only_one(workspace):
            pass
    with only_one(workspace):
        pass
