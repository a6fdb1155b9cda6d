"""Stages without a cluster: the same work, one item after the other, in this process."""

import pytest

from tests.pipelines.shard_builders import run_shards_here


@pytest.fixture
def _without_ray(monkeypatch):
    monkeypatch.setattr("pipelines.prepare.run_shards", run_shards_here)
