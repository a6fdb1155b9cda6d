"""A cluster of real local nodes, and trainings that nothing disturbs, for all files of this folder."""

from __future__ import annotations

import dataclasses
import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipelines.config import RunConfig
from pipelines.prepare import prepare
from pipelines.progress import Reporter
from pipelines.start import resolve_start
from pipelines.storage import Location
from pipelines.token_shards import tokenize
from tests.faults.linked import Linked, train_in_two
from tests.faults.training import base_config, copy_of, write_corpus
from tests.pipelines.shard_builders import run_shards_here
from tsdae_core.optim import OptimConfig


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
    with pytest.MonkeyPatch.context() as patch:
        # Ray Train looks at its workers every two seconds, and they wait for it after every checkpoint.
        patch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        yield made
        ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="package")
def base(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A workspace that is ready to train, made without Ray; its training is the one of `linked`."""
    folder: Path = tmp_path_factory.mktemp("base")
    write_corpus(folder)
    config = base_config(folder)
    workspace, reporter = Location.parse(config.workspace), Reporter(Console(file=io.StringIO()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.prepare.run_shards", run_shards_here)
        corpus = prepare("corpus", config.corpus, workspace, reporter=reporter)
    place = workspace / "corpus"
    start = resolve_start(config, workspace, corpus, place, reporter=reporter)
    tokenize(config, workspace, corpus, start, place, reporter=reporter, runner=run_shards_here)
    return config


@pytest.fixture(scope="package")
def linked(base: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Linked]:
    """What two workers give without Ray: undisturbed, with the model in shards, with weights that break."""
    breaking = OptimConfig(lr=1e-3, schedule="piecewise", boundaries=(15,), rates=(1e30,))
    changes: dict[str, dict[str, Any]] = {
        "undisturbed": {},
        "shards": {"strategy": "fsdp2", "max_batch_tokens": 30},
        "breaking": {"optim": breaking, "num_steps": 30},
    }
    folder: Path = tmp_path_factory.mktemp("linked")
    configs = {name: copy_of(base, folder / name, **settings) for name, settings in changes.items()}
    return train_in_two(configs, folder)


@pytest.fixture(scope="package")
def undisturbed(linked: dict[str, Linked]) -> Linked:
    """The base to its end, by two workers without Ray: what every training on Ray is held against."""
    return linked["undisturbed"]
