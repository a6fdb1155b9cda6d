"""Stages without a cluster, and a finished workspace to search, opened in several ways, for several files.

A process makes that workspace once, whatever number of files it runs; tests leave it as it is.
"""

import pytest

from tests.pipelines.shard_builders import run_shards_here


@pytest.fixture
def _without_ray(monkeypatch):
    """The same work, one item after the other, in this process."""
    monkeypatch.setattr("pipelines.prepare.run_shards", run_shards_here)


@pytest.fixture(scope="session")
def search_workspace(tmp_path_factory):
    """Documents, encoder, vectors, index and lookup of `search_builders.make_rows`."""
    from search_builders import make_workspace

    folder = tmp_path_factory.mktemp("search") / "work"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.lookup.run_shards", run_shards_here)
        make_workspace(folder)
    return folder


@pytest.fixture(scope="session")
def searcher(search_workspace):
    """The workspace opened for searching."""
    from pipelines.search import Searcher

    return Searcher.open(str(search_workspace))


@pytest.fixture(scope="session")
def engine(search_workspace):
    """The service's engine over the workspace, in this process."""
    from pipelines.config import RunConfig
    from pipelines.service.engine import Engine

    return Engine(RunConfig(workspace=str(search_workspace)))


@pytest.fixture(scope="session")
def client(engine):
    """A client of the service over that engine, whose limits are those of `service_builders.LIMITS`."""
    from service_builders import LIMITS, make_service
    from starlette.testclient import TestClient

    with TestClient(make_service(engine, **LIMITS), raise_server_exceptions=False) as client:
        yield client
