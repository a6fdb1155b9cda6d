"""The configuration of training. Its defaults are the paper's settings of TSDAE.

A recipe of another objective gets that objective's when it is loaded, and so does what `config_io.config_of`
makes of plain values: see `objective_defaults`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from pipelines.collection_config import require
from pipelines.labels_config import SUPERVISED, LabelsConfig
from pipelines.stopping_config import EarlyStopping as EarlyStopping
from tsdae_core.contrastive_tension import CtConfig
from tsdae_core.mlm import MlmConfig
from tsdae_core.objective import ObjectiveConfig
from tsdae_core.optim_config import OptimConfig
from tsdae_core.protected import ProtectedConfig
from tsdae_core.retromae import RetromaeConfig
from tsdae_core.simcse import SimcseConfig
from tsdae_core.supervised import MarginMseConfig, NliConfig, PairsConfig, RankingConfig, StsConfig
from tsdae_core.tsdae import TsdaeConfig

_MAX_LANES = 64


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Training. Defaults are the paper's: TSDAE, delete 0.6, batch 8, constant 3e-5, 100,000 steps.

    They are these for every `objective`: a class cannot tell a value that was given from one that was not.
    `config_of({"objective": "mlm"}, TrainConfig)` is what a recipe with `train: {objective: mlm}` gets.

    labels: the labelled rows of a supervised objective, which are read instead of the corpus.
    batch_size: sentences (rows, with labels) per step over all workers together.
    num_epochs: passes after which the training ends where num_steps would go on; 0 for no such limit.
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
    compile: `torch.compile` for what a layer does beside attention; needs a compiler, pays on GPUs only. With
    it, dropout depends on the number of workers.
    max_failures: how often a lost worker, node or task may start the training again from its last
    checkpoint; -1 for ever. Errors that would come again (wrong settings, a loss that is not finite, a full
    disk) end it at once.
    validation_rows: about this many rows are held out by a keyed hash; noised once and for all.
    keep: which encoder is the result, that of the last step or of the best validation.
    """

    objective: Literal[
        "tsdae",
        "mlm",
        "simcse",
        "ct",
        "retromae",
        "protected",
        "nli",
        "sts",
        "ranking",
        "pairs",
        "margin_mse",
    ] = "tsdae"
    tsdae: TsdaeConfig = field(default_factory=TsdaeConfig)
    mlm: MlmConfig = field(default_factory=MlmConfig)
    simcse: SimcseConfig = field(default_factory=SimcseConfig)
    ct: CtConfig = field(default_factory=CtConfig)
    retromae: RetromaeConfig = field(default_factory=RetromaeConfig)
    protected: ProtectedConfig = field(default_factory=ProtectedConfig)
    nli: NliConfig = field(default_factory=NliConfig)
    sts: StsConfig = field(default_factory=StsConfig)
    ranking: RankingConfig = field(default_factory=RankingConfig)
    pairs: PairsConfig = field(default_factory=PairsConfig)
    margin_mse: MarginMseConfig = field(default_factory=MarginMseConfig)
    labels: LabelsConfig | None = None
    optim: OptimConfig = field(default_factory=OptimConfig)
    batch_size: int = 8
    num_steps: int = 100_000
    num_epochs: int = 0
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
        for name in ("validation_rows", "num_lanes", "num_epochs", "max_rows"):
            require(getattr(self, name) >= 0, f"{name} must not be negative")
        for name in ("cpus_per_worker", "gpus_per_worker"):
            require(getattr(self, name) >= 0, f"{name} must not be negative")
        require(self.max_failures >= -1, "max_failures must be at least -1 (no limit)")
        require(
            not (self.compile and self.strategy == "fsdp2"),
            "compile does not go with strategy fsdp2",
        )
        self._check_labels()
        stops = self.keep == "best" or self.early_stopping.patience > 0
        require(
            self.validation_rows > 0 or self.early_stopping.metric == "task" or not stops,
            "keep=best and early_stopping need held-out rows or a task; raise validation_rows, or set "
            "early_stopping.metric to task",
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

    def _check_labels(self) -> None:
        if self.objective not in SUPERVISED:
            require(self.labels is None, f"objective {self.objective} reads no labels; leave labels out")
            return
        require(
            self.labels is not None,
            f"objective {self.objective} needs labelled rows: add a section labels with their input",
        )
        assert self.labels is not None
        self.labels.check(self.objective)

    @property
    def loss_unit(self) -> str:
        """What a loss is a mean over: `token` (target tokens), `sentence`, `pair` or `anchor`."""
        units: dict[str, str] = {
            "tsdae": self.tsdae.loss_per,
            "protected": self.protected.tsdae.loss_per,
            "simcse": "sentence",
            "ct": "pair",
            "nli": "pair",
            "sts": "pair",
            "pairs": "pair",
            "ranking": "anchor",
            "margin_mse": "triplet",
        }
        return units.get(self.objective, "token")

    @property
    def loss_name(self) -> str:
        """The loss with its unit, as in names of metrics: nats_per_token, squared_error_per_pair ..."""
        measure = "squared_error" if self.objective in ("sts", "pairs", "margin_mse") else "nats"
        return f"{measure}_per_{self.loss_unit}"

    @property
    def in_words(self) -> str:
        """What a person looks for first: objective, optimizer and rate, batch, length."""
        rate = f"{self.optim.optimizer} {self.optim.lr:g} {self.optim.schedule}"
        epochs = "1 epoch" if self.num_epochs == 1 else f"{self.num_epochs} epochs"
        most = f"{epochs}, at most " if self.num_epochs else ""
        early = ", or stopped early" if self.early_stopping.patience else ""
        return (
            f"{self.objective}: {rate}, batches of {self.batch_size}, {most}{self.num_steps:,} steps{early}"
        )

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
