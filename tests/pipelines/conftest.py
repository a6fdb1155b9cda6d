"""Stages without a cluster: the same work, one item after the other, in this process."""

import pickle

import pytest

from pipelines.manifest import write_receipt


def run_shards_here(stage, group, items, work, **_):
    """What `run_shards` promises, without Ray: skips what has a receipt, pickles what travels."""
    done = stage.receipts(group)
    function = pickle.loads(pickle.dumps(work))()
    for name, spec in items.items():
        if name not in done:
            done[name] = function(name, pickle.loads(pickle.dumps(spec)))
            write_receipt(stage.receipt_place(group, name), done[name])
    return [done[name] for name in sorted(items)]


@pytest.fixture
def _without_ray(monkeypatch):
    monkeypatch.setattr("pipelines.prepare.run_shards", run_shards_here)
