"""A cluster of real local nodes, and a training on it that nothing disturbs, for all files of this folder."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.config import RunConfig
from tests.faults.training import (
    Outcome,
    base_config,
    quiet_stages,
    train_comparing_ranks,
    write_corpus,
)


@dataclasses.dataclass
class Nodes:
    """The head without CPUs, on which the driver is, and two nodes that do the work."""

    cluster: Any
    workers: list[Any]

    def add(self) -> None:
        """One more node of 4 CPUs."""
        self.workers.append(self.cluster.add_node(num_cpus=4))


@pytest.fixture(scope="package")
def nodes() -> Iterator[Nodes]:
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    made = Nodes(cluster, [])
    made.add()
    made.add()
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    yield made
    ray.shutdown()
    cluster.shutdown()


@dataclasses.dataclass(frozen=True)
class Undisturbed:
    """A finished training by two workers; `ranks` has a digest of each one's model at the end."""

    config: RunConfig
    outcome: Outcome
    told: str
    ranks: list[str]


@pytest.fixture(scope="package")
def undisturbed(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder: Path = tmp_path_factory.mktemp("undisturbed")
    write_corpus(folder)
    config = base_config(folder)
    quiet_stages(["prepare"], config)
    told, ranks = train_comparing_ranks(config)
    return Undisturbed(config, Outcome.of(config), told, ranks)
