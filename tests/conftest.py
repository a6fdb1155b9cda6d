"""What every test gets: no network, no token files, one thread, a Ray cluster of its own where asked.

And how the files go to processes under pytest-xdist: which of them together, which of them first.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# An actor more for every start of train workers; nobody takes these machines away with a notice.
os.environ["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = "0"
# A Ray call without a cluster is an error here, and does not start one that nobody stops.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Short, because Ray puts sockets below it and their paths are limited to 107 characters.
_RAY_FOLDER = tempfile.mkdtemp(prefix="ray", dir="/tmp")
os.environ["RAY_TMPDIR"] = _RAY_FOLDER
os.environ.pop("RAY_ADDRESS", None)
os.environ.pop("MLFLOW_TRACKING_URI", None)

import pytest
import torch

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling

torch.set_num_threads(1)

# What takes minutes, by the beginning of its file's name: the longest first, so that no process is left alone
# with one of them at the end. Files of one entry share fixtures that take a minute, so one process runs them.
_LONG = (
    ("tests/end_to_end/test_kill.py", "tests/end_to_end/test_whole_job.py"),
    ("tests/faults/",),
    ("tests/end_to_end/test_cluster_job.py",),
)


def _place(nodeid: str) -> int:
    """The number of the entry above that a test belongs to."""
    return next((i for i, files in enumerate(_LONG) if nodeid.startswith(files)), len(_LONG))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _place(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """A file goes to one process, and so do the files of one entry of `_LONG`."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            place = _place(nodeid)
            return super()._split_scope(nodeid) if place == len(_LONG) else _LONG[place][0]

    if config.getvalue("dist") != "loadfile":
        return None
    # Left to itself it starts with the files that have the most tests, and ends with those that take minutes.
    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[None]:
    """A local Ray cluster for the tests of one module, stopped afterwards."""
    import ray

    ray.init(num_cpus=4, include_dashboard=False, logging_level=logging.WARNING, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="session", autouse=True)
def _no_leftovers() -> Iterator[None]:
    """Removes what the Ray clusters of the session wrote."""
    yield
    shutil.rmtree(_RAY_FOLDER, ignore_errors=True)
