"""The settings of the optimizer; the defaults of rate and schedule are the paper's (section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

Schedule = Literal["constant", "linear", "cosine", "piecewise"]
OptimizerName = Literal["adamw", "rmsprop"]


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """Optimizer settings.

    Attributes:
        optimizer: ``adamw``, or ``rmsprop`` (without momentum, smoothing 0.99) as contrastive tension uses.
        lr: peak learning rate.
        weight_decay: for matrices only, never for norms and biases.
        max_grad_norm: clip the norm over all trainable tensors to this.
        schedule: after warm-up stay (``constant``), fall to 0 at the last step (``linear``, ``cosine``), or
            follow ``boundaries`` and ``rates`` (``piecewise``).
        warmup_steps: linear rise from 0.
        boundaries: 0-based steps at which a piecewise rate changes, rising; before the first it is ``lr``.
        rates: the rate from each of the boundaries on.
        betas: decay rates of AdamW's two moments.
        eps: added to the root of the second moment.

    Raises:
        ValueError: for a value outside its range.
    """

    optimizer: OptimizerName = "adamw"
    lr: float = 3e-5
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    schedule: Schedule = "constant"
    warmup_steps: int = 0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    boundaries: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.optimizer not in get_args(OptimizerName):
            raise ValueError(f"optimizer {self.optimizer!r} is unknown; choose adamw or rmsprop")
        if self.schedule not in get_args(Schedule):
            raise ValueError(
                f"schedule {self.schedule!r} is unknown; choose one of {', '.join(get_args(Schedule))}"
            )
        for name in ("lr", "max_grad_norm", "eps"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} must be positive")
        if self.weight_decay < 0 or self.warmup_steps < 0:
            raise ValueError("weight_decay and warmup_steps must not be negative")
        if (self.schedule == "piecewise") != bool(self.boundaries) or len(self.boundaries) != len(self.rates):
            raise ValueError(
                "boundaries and rates belong to schedule 'piecewise', which needs one rate per boundary"
            )
        steps = (self.warmup_steps, *self.boundaries)
        if any(later <= earlier for earlier, later in pairwise(steps)) or min(self.rates, default=1.0) <= 0:
            raise ValueError(
                f"boundaries {self.boundaries} must rise from after the warm-up, "
                f"rates {self.rates} be positive"
            )
