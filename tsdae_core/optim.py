"""The optimizer, its parameter groups, gradient clipping, the learning rate as a pure function of the step.

Knows nothing of objectives or data. The defaults of rate and schedule are the paper's (section 4.2).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

Schedule = Literal["constant", "linear", "cosine", "piecewise"]
OptimizerName = Literal["adamw", "rmsprop"]

# One fp32 vector_norm over tens of millions of numbers is off by 0.15 % (it adds up naively); sums of chunks,
# added up in float64, are not.
_NORM_CHUNK = 1 << 9


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


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """Return the optimizer with two groups: decayed matrices, then norms, biases and other vectors."""
    params = [param for param in model.parameters() if param.requires_grad]
    groups = [
        {"params": [param for param in params if param.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [param for param in params if param.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if config.optimizer == "rmsprop":
        return torch.optim.RMSprop(groups, lr=config.lr, eps=config.eps)
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def learning_rate(step: int, total_steps: int, config: OptimConfig) -> float:
    """Return the rate of the 0-based ``step``: warm-up, then the schedule.

    Linear and cosine are 0 from ``total_steps`` on; the others do not look at it.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "piecewise":
        return (config.lr, *config.rates)[bisect_right(config.boundaries, step)]
    span = max(1, total_steps - config.warmup_steps)
    progress = min(1.0, (step - config.warmup_steps) / span)
    factor = 1.0 - progress if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.lr * factor


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate


class NonFiniteGradientError(ValueError):
    """The gradient holds nan or inf; the step was not taken."""


def clip_gradients(params: Iterable[nn.Parameter], *, max_norm: float) -> float:
    """Scale all gradients in place so that their joint norm is at most ``max_norm``; return the norm before.

    Gradients that FSDP has cut into shards count whole, so that every rank scales alike.

    Raises:
        NonFiniteGradientError: if the norm is not finite, so that a broken step never reaches the weights.
    """
    grads = [param.grad for param in params if param.grad is not None]
    norm = math.sqrt(_joint_squared_norm(grads)) if grads else 0.0
    if not math.isfinite(norm):
        raise NonFiniteGradientError("the gradient is not finite; lower the learning rate or check the data")
    if norm > max_norm:
        scale = max_norm / (norm + 1e-6)
        for grad in grads:
            grad.mul_(scale)
    return norm


def _joint_squared_norm(grads: Sequence[Tensor]) -> float:
    sharded = [isinstance(grad, DTensor) for grad in grads]
    assert all(sharded) or not any(sharded), "some gradients are sharded and others are not"
    parts = [grad.to_local() if isinstance(grad, DTensor) else grad for grad in grads]
    total = torch.stack([_squared_norm(part) for part in parts]).sum()
    if any(sharded):
        dist.all_reduce(total)
    return float(total)


def _squared_norm(grad: Tensor) -> Tensor:
    flat = grad.detach().reshape(-1)
    whole = flat.shape[0] - flat.shape[0] % _NORM_CHUNK
    chunks = torch.linalg.vector_norm(
        flat[:whole].view(whole // _NORM_CHUNK, _NORM_CHUNK), dim=1, dtype=torch.float32
    )
    rest = torch.linalg.vector_norm(flat[whole:], dtype=torch.float32)
    total: Tensor = chunks.double().square().sum() + rest.double().square()
    return total
