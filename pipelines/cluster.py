"""Joining or starting the Ray cluster of a run, and the checks that would otherwise show as a silent wait."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import ray

from pipelines.config import RunConfig
from pipelines.errors import InputError


@dataclass(frozen=True)
class _Demand:
    """CPUs that one stage asks for at once, what they are for, and the settings that lower them."""

    cpus: float
    what: str
    lower: str


def cpus_needed(config: RunConfig) -> int:
    """Logical CPUs below which some stage of the run would wait for ever."""
    return math.ceil(_largest_demand(config).cpus)


def _largest_demand(config: RunConfig) -> _Demand:
    demands = []
    for train in [phase.train for phase in config.phases] or [config.train]:
        ingest = config.cluster.ingest_cpus_for(train.num_workers)
        demands.append(
            _Demand(
                train.num_workers * train.cpus_per_worker + ingest,
                f"{train.num_workers} train workers x {train.cpus_per_worker:g} and {ingest} for ingest",
                "train.num_workers or train.cpus_per_worker",
            )
        )
        generate = train.labels.generate if train.labels is not None else None
        if generate is not None:
            demands.append(
                _Demand(
                    generate.num_actors * generate.cpus_per_actor,
                    f"{generate.num_actors} actors x {generate.cpus_per_actor:g} for pseudo-labels",
                    "num_actors or cpus_per_actor of labels.generate",
                )
            )
    embed = config.embed
    demands.append(
        _Demand(
            embed.num_actors * embed.cpus_per_actor,
            f"{embed.num_actors} embedding actors x {embed.cpus_per_actor:g}",
            "embed.num_actors or embed.cpus_per_actor",
        )
    )
    demands.append(_Demand(config.index.train_cpus, "the task that trains the index", "index.train_cpus"))
    return max(demands, key=lambda demand: demand.cpus)


@contextmanager
def connected(
    config: RunConfig, *, replicas_cpus: float | None = None, replicas_gpus: float = 0.0
) -> Iterator[None]:
    """Runs the body on the configured cluster; a cluster started here is stopped afterwards.

    replicas_cpus, replicas_gpus: of a service's replicas, where it is not the stages of the run that are to
    work.

    Raises:
        InputError: the address does not answer, or the cluster has too few CPUs or GPUs.
    """
    if ray.is_initialized():
        check_cpus(config, replicas_cpus=replicas_cpus, replicas_gpus=replicas_gpus)
        yield
        return
    _start(config, num_cpus=cpus_needed(config) if replicas_cpus is None else math.ceil(replicas_cpus))
    try:
        check_cpus(config, replicas_cpus=replicas_cpus, replicas_gpus=replicas_gpus)
        yield
    finally:
        ray.shutdown()


def _start(config: RunConfig, *, num_cpus: int) -> None:
    quiet = not logging.getLogger().isEnabledFor(logging.INFO)
    if quiet:
        # Ray's C++ side and Ray Data speak to the terminal by themselves, between the lines of our progress.
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        logging.getLogger("ray").setLevel(logging.ERROR)
        logging.getLogger("ray.data").setLevel(logging.ERROR)
    address = config.cluster.address or os.environ.get("RAY_ADDRESS")
    try:
        if address is None:
            os.environ.setdefault("RAY_AUTH_MODE", "disabled")
            # An actor that waits for notices of a cloud, and costs seconds at each start of train workers.
            os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
            num_cpus = config.cluster.num_cpus or max(os.cpu_count() or 1, num_cpus)
            with _silent_stderr() if quiet else nullcontext():
                ray.init(
                    num_cpus=num_cpus,
                    include_dashboard=False,
                    logging_level=logging.WARNING,
                    log_to_driver=False,
                )
        else:
            ray.init(address=address, logging_level=logging.WARNING, log_to_driver=False)
    except Exception as error:  # a start that takes too long raises nothing more special
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        if address is None:
            raise InputError(f"Ray could not start on this machine: {reason}") from error
        raise InputError(f"cannot reach a Ray cluster at '{address}': {reason}") from error


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Drops what the C++ side writes to standard error while it starts; exceptions come through."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("w") as sink:
            os.dup2(sink.fileno(), 2)
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def check_cpus(config: RunConfig, *, replicas_cpus: float | None = None, replicas_gpus: float = 0.0) -> None:
    """Refuses a cluster on which training or ingest, or the replicas of a service, could never be scheduled.

    Raises:
        InputError: with the numbers, and the settings that change them.
    """
    available = int(ray.cluster_resources().get("CPU", 0))
    if replicas_cpus is not None:
        if available < replicas_cpus:
            raise InputError(
                f"the Ray cluster has {available} CPUs and the service needs {replicas_cpus:g}: lower "
                "serve.num_replicas or serve.cpus_per_replica, or raise cluster.num_cpus"
            )
        gpus = float(ray.cluster_resources().get("GPU", 0))
        if gpus < replicas_gpus:
            raise InputError(
                f"the Ray cluster has {gpus:g} GPUs and the service needs {replicas_gpus:g}: lower "
                "serve.num_replicas or serve.gpus_per_replica, or add nodes with GPUs"
            )
        return
    demand = _largest_demand(config)
    needed = math.ceil(demand.cpus)
    if available < needed:
        raise InputError(
            f"the Ray cluster has {available} CPUs and this run needs {needed}: {demand.what}; "
            f"lower {demand.lower}, raise cluster.num_cpus, or use a larger cluster"
        )
    if config.index.train_cpus > 1:
        _check_largest_node(config.index.train_cpus)


def _check_largest_node(train_cpus: int) -> None:
    """A task runs on one node: together the nodes may have CPUs enough and it would still wait for ever."""
    largest = int(max(node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]))
    if largest < train_cpus:
        raise InputError(
            f"index.train_cpus is {train_cpus} and the largest node of the Ray cluster has {largest} CPUs: "
            "lower it, or add a node that has as many"
        )
