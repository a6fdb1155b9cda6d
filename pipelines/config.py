"""The configuration of a run: one frozen dataclass per section, defaults here and nowhere else.

Sections whose code lives in another room take that room's own config class (noise, optimiser, index).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from indexing.plan import IndexConfig
from pipelines.collection_config import CollectionConfig, require
from pipelines.embed_config import EmbedConfig as EmbedConfig
from pipelines.evaluate_config import EvaluateConfig
from pipelines.model_config import ModelConfig
from pipelines.phase_config import PhaseConfig
from pipelines.promote_config import PromoteConfig
from pipelines.service.config import ServeConfig
from pipelines.train_config import TrainConfig

# A core reads and noises more rows a second than four small models on GPUs train on (docs/scale.md); the
# second one keeps the stream going while the first is busy with something else.
_WORKERS_PER_INGEST_CPU = 4
_MIN_INGEST_CPUS = 2


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Which Ray cluster to use.

    address: None joins the cluster of the surrounding `ray job` or starts one on this machine;
    "auto", "host:port" or "ray://..." joins an existing one.
    num_cpus: logical CPUs of a cluster started here; None takes the cores of the machine, and at least
    what the train workers with their ingest, the embedding actors and the training of the index ask for.
    ingest_cpus: CPUs that a run must find beside its train workers, for reading and noise; 0 takes one for
    every four workers and at least two.
    """

    address: str | None = None
    num_cpus: int | None = None
    ingest_cpus: int = 0

    def __post_init__(self) -> None:
        require(self.num_cpus is None or self.num_cpus >= 1, "num_cpus must be at least 1")
        require(self.ingest_cpus >= 0, "ingest_cpus must not be negative")

    def ingest_cpus_for(self, num_workers: int) -> int:
        """CPUs for reading and noise beside so many train workers."""
        return self.ingest_cpus or max(_MIN_INGEST_CPUS, math.ceil(num_workers / _WORKERS_PER_INGEST_CPU))


@dataclass(frozen=True, kw_only=True)
class RegisterConfig:
    """Where the encoder goes in the MLflow registry."""

    name: str = "tsdae-encoder"
    alias: str = "candidate"


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """MLflow. uri None keeps a sqlite database in the workspace (one machine); a cluster needs a server.

    system_metrics_every_s: seconds between two readings of each training node's CPU, memory, disk, network
    and GPU; 0 reads none.
    """

    uri: str | None = None
    experiment: str = "tsdae"
    system_metrics_every_s: float = 10.0

    def __post_init__(self) -> None:
        require(self.system_metrics_every_s >= 0, "system_metrics_every_s must not be negative")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that a run depends on.

    phases: trainings one after the other, each from the encoder of the one before; then `train` is not to be
    set, and stands for the last of them.
    """

    workspace: str = "work/run"
    seed: int = 0
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    corpus: CollectionConfig = field(default_factory=CollectionConfig)
    documents: CollectionConfig | None = None
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    phases: tuple[PhaseConfig, ...] = ()
    embed: EmbedConfig = field(default_factory=EmbedConfig)
    index: IndexConfig = field(default_factory=IndexConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    register: RegisterConfig = field(default_factory=RegisterConfig)
    promote: PromoteConfig = field(default_factory=PromoteConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    serve: ServeConfig = field(default_factory=ServeConfig)

    def __post_init__(self) -> None:
        if not self.phases:
            return
        names = [phase.name for phase in self.phases]
        require(len(set(names)) == len(names), f"phases need different names, got {', '.join(names)}")
        last = self.phases[-1].train
        require(
            self.train in (TrainConfig(), last),
            "with phases, settings of training belong inside them (phases: [{name: ..., train: ...}])",
        )
        object.__setattr__(self, "train", last)

    def phase_alone(self, number: int) -> RunConfig:
        """The settings of a phase, counted from 0, as a training by itself that pools as the phase does."""
        named = [phase.pooling for phase in self.phases[: number + 1] if phase.pooling is not None]
        model = replace(self.model, pooling=named[-1]) if named else self.model
        return replace(self, model=model, train=self.phases[number].train, phases=())
