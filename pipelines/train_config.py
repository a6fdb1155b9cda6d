"""The configuration of training; the paper's settings are its defaults."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from pipelines.collection_config import require
from tsdae_core.contrastive_tension import CtConfig
from tsdae_core.mlm import MlmConfig
from tsdae_core.objective import ObjectiveConfig
from tsdae_core.optim_config import OptimConfig
from tsdae_core.protected import ProtectedConfig
from tsdae_core.retromae import RetromaeConfig
from tsdae_core.simcse import SimcseConfig
from tsdae_core.tsdae import TsdaeConfig

_MAX_LANES = 64


@dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """Stopping without labels, off in the paper.

    metric: `retrieval` (the halves of held-out texts find each other, higher is better) or
    `validation_loss` (lower is better); also what `train.keep: best` goes by.
    patience: stop after this many validations in a row without a gain of more than min_delta; 0 never stops.
    """

    metric: Literal["retrieval", "validation_loss"] = "retrieval"
    patience: int = 0
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        require(self.patience >= 0, "patience must not be negative; 0 never stops early")
        require(self.min_delta >= 0, "min_delta must not be negative")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Training. Defaults are the paper's: TSDAE, delete 0.6, batch 8, constant 3e-5, 100,000 steps.

    batch_size: sentences per step over all workers together.
    num_lanes: fixed streams the corpus is cut into; the number of workers must divide it. 0 takes the
    greatest common divisor of batch_size and 64. Results do not depend on the number of workers.
    max_rows: train on at most so many rows of the corpus, a random sample; a smaller one is part of a larger
    one. 0 takes all.
    max_batch_tokens: a worker's share of a step is cut into micro-batches of at most this many tokens of
    text, whose gradients add up exactly; bounds memory.
    strategy: how several workers share the model: `ddp` gives each a copy, `fsdp2` a shard of every layer's
    weights, gradients and optimizer state.
    precision: `bfloat16` runs the matrix products in it (autocast); weights and optimizer stay float32.
    gradient_checkpointing: layers are computed again in the backward pass instead of kept.
    compile: `torch.compile` for what a layer does beside attention; needs a compiler, pays on GPUs only.
    max_failures: how often a lost worker, node or task may start the training again from its last
    checkpoint; -1 for ever. Errors that would come again (wrong settings, a loss that is not finite, a full
    disk) end it at once.
    validation_rows: about this many rows are held out by a keyed hash; noised once and for all.
    keep: which encoder is the result, that of the last step or of the best validation.
    """

    objective: Literal["tsdae", "mlm", "simcse", "ct", "retromae", "protected"] = "tsdae"
    tsdae: TsdaeConfig = field(default_factory=TsdaeConfig)
    mlm: MlmConfig = field(default_factory=MlmConfig)
    simcse: SimcseConfig = field(default_factory=SimcseConfig)
    ct: CtConfig = field(default_factory=CtConfig)
    retromae: RetromaeConfig = field(default_factory=RetromaeConfig)
    protected: ProtectedConfig = field(default_factory=ProtectedConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    batch_size: int = 8
    num_steps: int = 100_000
    num_lanes: int = 0
    max_rows: int = 0
    max_batch_tokens: int = 16_384
    num_workers: int = 1
    cpus_per_worker: float = 1.0
    gpus_per_worker: float = 0.0
    threads_per_worker: int = 1
    strategy: Literal["ddp", "fsdp2"] = "ddp"
    precision: Literal["float32", "bfloat16"] = "float32"
    gradient_checkpointing: bool = False
    compile: bool = False
    max_failures: int = 3
    validation_rows: int = 1_000
    validate_every: int = 1_500
    checkpoint_every: int = 1_500
    log_every: int = 100
    keep: Literal["last", "best"] = "last"
    early_stopping: EarlyStopping = field(default_factory=EarlyStopping)

    def __post_init__(self) -> None:
        for name in ("batch_size", "num_steps", "num_workers", "max_batch_tokens", "threads_per_worker"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1")
        for name in ("validate_every", "checkpoint_every", "log_every"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1")
        for name in ("validation_rows", "num_lanes", "max_rows", "cpus_per_worker", "gpus_per_worker"):
            require(getattr(self, name) >= 0, f"{name} must not be negative")
        require(self.max_failures >= -1, "max_failures must be at least -1 (no limit)")
        require(
            not (self.compile and self.strategy == "fsdp2"),
            "compile does not go with strategy fsdp2",
        )
        require(
            self.validation_rows > 0 or (self.keep == "last" and self.early_stopping.patience == 0),
            "keep=best and early_stopping need held-out rows; raise validation_rows",
        )
        require(
            self.batch_size % self.group_size == 0,
            f"batch_size ({self.batch_size}) must be a multiple of the {self.group_size} sentences of one "
            "anchor (ct.num_negatives + 1)",
        )
        among = "" if self.group_size == 1 else f" over the {self.group_size} sentences of one anchor"
        require(
            self.num_lanes == 0 or self.batch_size // self.group_size % self.num_lanes == 0,
            f"num_lanes ({self.num_lanes}) must divide batch_size ({self.batch_size}){among}; 0 chooses it",
        )
        require(
            self.strategy == "ddp" or self.objective in ("tsdae", "mlm"),
            f"strategy fsdp2 is for tsdae and mlm; use ddp for {self.objective}",
        )
        fitting = [str(n) for n in range(1, self.lanes + 1) if self.lanes % n == 0]
        require(
            self.lanes % self.num_workers == 0,
            f"num_workers ({self.num_workers}) must divide the {self.lanes} lanes of batch_size "
            f"{self.batch_size}: use one of {', '.join(fitting)}, another batch_size or num_lanes",
        )

    @property
    def loss_unit(self) -> str:
        """What a loss is a mean over: `token` (target tokens), `sentence` or `pair`."""
        units: dict[str, str] = {
            "tsdae": self.tsdae.loss_per,
            "protected": self.protected.tsdae.loss_per,
            "simcse": "sentence",
            "ct": "pair",
        }
        return units.get(self.objective, "token")

    @property
    def chosen(self) -> ObjectiveConfig:
        """The settings of the objective in force."""
        chosen: ObjectiveConfig = getattr(self, self.objective)
        return chosen

    @property
    def group_size(self) -> int:
        """Rows that belong together; a lane gives a step a multiple of it."""
        return self.ct.num_negatives + 1 if self.objective == "ct" else 1

    @property
    def lanes(self) -> int:
        """The number of lanes in force: as configured, or made from the batch size."""
        return self.num_lanes or math.gcd(self.batch_size // self.group_size, _MAX_LANES)
