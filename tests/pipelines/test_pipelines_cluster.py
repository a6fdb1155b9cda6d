"""What a cluster that is not there, too small or closed looks like: one line each."""

from __future__ import annotations

import http.server
import threading

import pytest
import ray

from indexing.index_config import IndexConfig
from pipelines.cluster import check_cpus, connected
from pipelines.collection_config import CollectionConfig
from pipelines.config import ClusterConfig, RunConfig
from pipelines.embed_config import EmbedConfig
from pipelines.errors import InputError
from pipelines.phase_config import PhaseConfig
from pipelines.submit import submit
from pipelines.train_config import TrainConfig


def test_a_start_that_takes_too_long_is_one_line(monkeypatch):
    """What Ray raises then is an Exception and nothing more special (`ray/_private/node.py`)."""

    def slow(**_):
        raise Exception("The current node timed out during startup. This could happen because ...\nmore")

    monkeypatch.setattr(ray, "init", slow)
    with pytest.raises(InputError) as caught, connected(RunConfig()):
        pass
    assert str(caught.value).startswith(
        "Ray could not start on this machine: The current node timed out during startup."
    )
    assert "\n" not in str(caught.value)
    elsewhere = RunConfig(cluster=ClusterConfig(address="ray://head:10001"))
    unreachable = pytest.raises(InputError, match="cannot reach a Ray cluster at 'ray://head:10001'")
    with unreachable, connected(elsewhere):
        pass


def test_a_cluster_with_too_few_cpus_is_told_with_the_numbers(monkeypatch):
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0})
    with pytest.raises(InputError) as caught:
        check_cpus(RunConfig(train=TrainConfig(num_workers=8)))
    assert str(caught.value) == (
        "the Ray cluster has 4 CPUs and this run needs 10: 8 train workers x 1 and 2 for ingest; lower "
        "train.num_workers or train.cpus_per_worker, raise cluster.num_cpus, or use a larger cluster"
    )


def test_ingest_grows_with_the_workers_and_the_message_says_what_asks_for_the_most(monkeypatch):
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 32.0})
    many = TrainConfig(num_workers=32, batch_size=256)

    def told(config):
        with pytest.raises(InputError) as caught:
            check_cpus(config)
        return str(caught.value)

    assert "this run needs 40: 32 train workers x 1 and 8 for ingest; lower train" in told(
        RunConfig(train=many)
    )
    assert "this run needs 44: 32 train workers x 1 and 12 for ingest" in told(
        RunConfig(train=many, cluster=ClusterConfig(ingest_cpus=12))
    )
    phases = (PhaseConfig(name="a", train=many), PhaseConfig(name="b"))
    assert "needs 40: 32 train workers x 1 and 8 for ingest" in told(RunConfig(phases=phases))
    assert "needs 64: 64 embedding actors x 1; lower embed.num_actors or embed.cpus" in told(
        RunConfig(embed=EmbedConfig(num_actors=64))
    )
    assert "needs 48: the task that trains the index; lower index.train_cpus" in told(
        RunConfig(index=IndexConfig(train_cpus=48))
    )


def test_a_task_for_more_cpus_than_any_one_node_has_is_refused(monkeypatch):
    nodes = [{"Alive": alive, "Resources": {"CPU": cpus}} for alive, cpus in ((True, 8.0), (False, 16.0))]
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 32.0})
    monkeypatch.setattr(ray, "nodes", lambda: [*nodes, {"Alive": True, "Resources": {}}])
    check_cpus(RunConfig(index=IndexConfig(train_cpus=8)))
    with pytest.raises(InputError, match="train_cpus is 16 and the largest node of the Ray cluster has 8"):
        check_cpus(RunConfig(index=IndexConfig(train_cpus=16)))


def test_a_service_that_asks_for_more_gpus_than_there_are_is_refused(monkeypatch):
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0, "GPU": 1.0})
    check_cpus(RunConfig(), replicas_cpus=2, replicas_gpus=1)
    with pytest.raises(InputError, match=r"has 1 GPUs and the service needs 1\.5: lower serve\.num_replicas"):
        check_cpus(RunConfig(), replicas_cpus=3, replicas_gpus=1.5)


def test_a_job_server_that_asks_for_a_token_is_told(tmp_path):
    class Closed(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(401)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Closed)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = RunConfig(workspace="s3://bucket/work", corpus=CollectionConfig(input="s3://bucket/rows"))
    try:
        with pytest.raises(InputError, match="asks for a token: export RAY_AUTH_MODE=token"):
            submit(config, address=f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
