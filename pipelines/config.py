"""The configuration of a run: one frozen dataclass per section, defaults here and nowhere else.

Sections whose code lives in another room take that room's own config class (noise, optimiser, index).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from indexing.plan import IndexConfig
from pipelines.collection_config import CollectionConfig, require
from tsdae_core.mlm import MlmConfig
from tsdae_core.optim import OptimConfig
from tsdae_core.scratch import ScratchConfig
from tsdae_core.tsdae import TsdaeConfig

_MAX_LANES = 64


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Which Ray cluster to use.

    address: None joins the cluster of the surrounding `ray job` or starts one on this machine;
    "auto", "host:port" or "ray://..." joins an existing one.
    num_cpus: logical CPUs of a cluster started here; None takes the cores of the machine, and at least
    what the train workers, one embedding actor and two ingest tasks ask for.
    """

    address: str | None = None
    num_cpus: int | None = None

    def __post_init__(self) -> None:
        require(self.num_cpus is None or self.num_cpus >= 1, "num_cpus must be at least 1")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The encoder that training starts from.

    start: "small" (the encoder that ships with the project), "scratch" (built here, tokenizer trained on
    the corpus), a local checkpoint or sentence-transformers folder, or a hub name.
    pooling: how token states become the sentence vector; the paper uses cls.
    max_tokens: texts are cut to this many tokens, special ones included.
    """

    start: str = "small"
    pooling: Literal["cls", "mean", "max"] = "cls"
    max_tokens: int = 75
    scratch: ScratchConfig = field(default_factory=ScratchConfig)

    def __post_init__(self) -> None:
        require(self.max_tokens >= 4, "max_tokens must be at least 4")
        require(bool(self.start), "start must name an encoder: small, scratch, a folder or a hub name")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Training. Defaults are the paper's: TSDAE, delete 0.6, batch 8, constant 3e-5, 100,000 steps.

    batch_size: sentences per step over all workers together.
    num_lanes: fixed streams the corpus is cut into; the number of workers must divide it. 0 takes the
    greatest common divisor of batch_size and 64. Results do not depend on the number of workers.
    max_batch_tokens: a worker's share of a step is cut into micro-batches of at most this many tokens of
    text, whose gradients add up exactly; bounds memory.
    validation_rows: about this many rows are held out by a keyed hash; noised once and for all.
    """

    objective: Literal["tsdae", "mlm"] = "tsdae"
    tsdae: TsdaeConfig = field(default_factory=TsdaeConfig)
    mlm: MlmConfig = field(default_factory=MlmConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    batch_size: int = 8
    num_steps: int = 100_000
    num_lanes: int = 0
    max_batch_tokens: int = 16_384
    num_workers: int = 1
    cpus_per_worker: float = 1.0
    gpus_per_worker: float = 0.0
    threads_per_worker: int = 1
    max_failures: int = 3
    validation_rows: int = 1_000
    validate_every: int = 1_500
    checkpoint_every: int = 1_500
    log_every: int = 100

    def __post_init__(self) -> None:
        for name in ("batch_size", "num_steps", "num_workers", "max_batch_tokens", "threads_per_worker"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1")
        for name in ("validate_every", "checkpoint_every", "log_every"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1")
        for name in ("validation_rows", "num_lanes", "cpus_per_worker", "gpus_per_worker"):
            require(getattr(self, name) >= 0, f"{name} must not be negative")
        require(self.max_failures >= -1, "max_failures must be at least -1 (no limit)")
        require(
            self.num_lanes == 0 or self.batch_size % self.num_lanes == 0,
            f"num_lanes ({self.num_lanes}) must divide batch_size ({self.batch_size}); 0 chooses it",
        )
        fitting = [str(n) for n in range(1, self.lanes + 1) if self.lanes % n == 0]
        require(
            self.lanes % self.num_workers == 0,
            f"num_workers ({self.num_workers}) must divide the {self.lanes} lanes of batch_size "
            f"{self.batch_size}: use one of {', '.join(fitting)}, another batch_size or num_lanes",
        )

    @property
    def loss_unit(self) -> str:
        """What a loss is a mean over: `token` (target tokens) or `sentence`."""
        return self.tsdae.loss_per if self.objective == "tsdae" else "token"

    @property
    def lanes(self) -> int:
        """The number of lanes in force: as configured, or made from the batch size."""
        return self.num_lanes or math.gcd(self.batch_size, _MAX_LANES)


@dataclass(frozen=True, kw_only=True)
class EmbedConfig:
    """Embedding the documents. dtype is the stored one; batch_tokens bounds one forward pass."""

    dtype: Literal["float16", "float32"] = "float32"
    batch_tokens: int = 8_192
    num_actors: int = 1
    cpus_per_actor: float = 1.0
    gpus_per_actor: float = 0.0
    threads_per_actor: int = 1

    def __post_init__(self) -> None:
        for name in ("num_actors", "batch_tokens", "threads_per_actor"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1")
        for name in ("cpus_per_actor", "gpus_per_actor"):
            require(getattr(self, name) >= 0, f"{name} must not be negative")


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """A retrieval task in BEIR layout: queries.jsonl and a qrels file; its documents are the collection's."""

    name: str
    folder: str
    qrels: str = "qrels.tsv"


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Evaluation: tasks over the documents, how many hits are kept, how many examples are shown."""

    tasks: tuple[TaskConfig, ...] = ()
    top_k: int = 100
    num_examples: int = 3

    def __post_init__(self) -> None:
        require(self.top_k >= 1, "top_k must be at least 1")
        require(self.num_examples >= 0, "num_examples must not be negative")
        names = [task.name for task in self.tasks]
        require(len(set(names)) == len(names), f"tasks need different names, got {', '.join(names)}")


@dataclass(frozen=True, kw_only=True)
class RegisterConfig:
    """Where the encoder goes in the MLflow registry."""

    name: str = "tsdae-encoder"
    alias: str = "candidate"


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """MLflow. uri None keeps a sqlite database in the workspace (one machine); a cluster needs a server."""

    uri: str | None = None
    experiment: str = "tsdae"


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that a run depends on."""

    workspace: str = "work/run"
    seed: int = 0
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    corpus: CollectionConfig = field(default_factory=CollectionConfig)
    documents: CollectionConfig | None = None
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    embed: EmbedConfig = field(default_factory=EmbedConfig)
    index: IndexConfig = field(default_factory=IndexConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    register: RegisterConfig = field(default_factory=RegisterConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
