"""What every test gets: no network, no token files, one thread, a Ray cluster of its own where asked."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Short, because Ray puts sockets below it and their paths are limited to 107 characters.
_RAY_FOLDER = tempfile.mkdtemp(prefix="ray", dir="/tmp")
os.environ["RAY_TMPDIR"] = _RAY_FOLDER
os.environ.pop("RAY_ADDRESS", None)
os.environ.pop("MLFLOW_TRACKING_URI", None)

import pytest
import torch

torch.set_num_threads(1)


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
