"""Embedding while actors and nodes die: every row has one vector, the same as in an undisturbed run."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from index_builders import NUM_DOCS, all_vectors, build_workspace, in_place
from pipeline_builders import quiet_reporter, write_rows

import pipelines.embed
from pipelines.collection import finished_manifest
from pipelines.embed import EmbedActor, embed
from pipelines.embed_config import EmbedConfig
from pipelines.grow import add_documents, delete_documents
from pipelines.index_stage import build_index
from pipelines.storage import Location


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """A head with two CPUs, to which a test adds a node."""
    import ray
    from ray import cloudpickle
    from ray.cluster_utils import Cluster

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test
    # A lost node is asked several times whether it is there before it counts as lost.
    head = {"num_cpus": 2, "include_dashboard": False, "_system_config": {"health_check_period_ms": 500}}
    made = Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=made.address, log_to_driver=False, logging_level="warning")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    build_workspace(folder, with_index=True)
    return folder


def embed_again(workspace, folder, **settings):
    """Embeds into another folder; returns the digests of this time and of the undisturbed run."""
    reporter, _ = quiet_reporter()
    place = Location.parse(workspace)
    config = in_place(workspace, embed=EmbedConfig(**settings))
    manifest = embed(config, place, reporter=reporter, vectors_folder=folder)
    return manifest.digest, finished_manifest(place / "vectors", command="embed").digest


def test_an_index_built_by_tasks_is_the_one_built_in_one_process(workspace):
    reporter, _ = quiet_reporter()
    place = Location.parse(workspace)
    here = finished_manifest(place / "index", command="index")
    on_ray = build_index(in_place(workspace), place, reporter=reporter, anew=True)
    assert on_ray.digest == here.digest
    assert on_ray.facts["version"] != here.facts["version"]


class DoomedActor(EmbedActor):
    """Kills its own process in the middle of a shard, once; every one waits there until a node is gone."""

    def __call__(self):
        import ray

        work, folder = super().__call__(), Path(self.vectors.path)
        mark = folder / "_died"

        def doomed(name, spec):
            record = work(name, spec)
            if name == "part-00002" and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            (folder / f"_on-{ray.get_runtime_context().get_node_id()}").touch()
            deadline = time.monotonic() + 60
            while not (folder / "_gone").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            return record

        return doomed


def test_a_killed_actor_and_a_lost_node_lose_and_double_nothing(cluster, workspace, monkeypatch):
    node = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    folder = workspace / "lost"

    def remove_when_at_work():
        deadline = time.monotonic() + 90
        while not (folder / f"_on-{node.node_id}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        cluster.remove_node(node, allow_graceful=False)
        (folder / "_gone").touch()

    killer = threading.Thread(target=remove_when_at_work)
    killer.start()
    monkeypatch.setattr(pipelines.embed, "EmbedActor", DoomedActor)
    again, undisturbed = embed_again(workspace, "lost", num_actors=3)
    killer.join()
    assert (folder / "_died").exists()
    assert (folder / f"_on-{node.node_id}").exists()
    assert again == undisturbed
    ids, _ = all_vectors(workspace, "lost")
    assert len(np.unique(ids)) == len(ids) == NUM_DOCS


def test_documents_are_added_and_deleted_by_tasks(workspace, tmp_path):
    """Last in this file, as it changes the workspace."""
    reporter, _ = quiet_reporter()
    place, config = Location.parse(workspace), in_place(workspace)
    more = write_rows(tmp_path / "more.jsonl", [("n1", "a zebra", "new")], columns=("id", "text", "title"))
    assert add_documents(config, place, str(more), reporter=reporter).counts["vectors"] == NUM_DOCS + 1
    assert delete_documents(config, place, ["n1", "d3"], reporter=reporter).counts["vectors"] == NUM_DOCS - 1
