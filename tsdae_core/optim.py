"""The optimizer, its parameter groups, gradient clipping, the learning rate as a pure function of the step.

Knows nothing of objectives or data.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tsdae_core.optim_config import OptimConfig

# One fp32 vector_norm over tens of millions of numbers is off by 0.15 % (it adds up naively); sums of chunks,
# added up in float64, are not.
_NORM_CHUNK = 1 << 9
_SMALL_GRADIENT = 1 << 14


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


def clipped_step(
    optimizer: torch.optim.Optimizer, params: Iterable[nn.Parameter], *, max_norm: float
) -> float:
    """Step with gradients scaled so that their joint norm is at most ``max_norm``; return the norm before.

    Gradients that FSDP has cut into shards count whole, so that every rank scales alike. Afterwards the
    gradients are the scaled ones.

    Raises:
        NonFiniteGradientError: if the norm is not finite, so that a broken step never reaches the weights.
    """
    grads = [param.grad for param in params if param.grad is not None]
    norm = math.sqrt(_joint_squared_norm(grads)) if grads else 0.0
    if not math.isfinite(norm):
        raise NonFiniteGradientError("the gradient is not finite; lower the learning rate or check the data")
    if norm <= max_norm:
        optimizer.step()
    elif optimizer.defaults.get("fused") and not isinstance(grads[0], DTensor):
        # What torch's GradScaler does: the fused kernel divides in the pass that it makes anyway.
        divisor = torch.tensor((norm + 1e-6) / max_norm, dtype=torch.float32, device=grads[0].device)
        setattr(optimizer, "grad_scale", divisor)  # noqa: B010
        try:
            optimizer.step()
        finally:
            delattr(optimizer, "grad_scale")
    else:
        for grad in grads:
            grad.mul_(max_norm / (norm + 1e-6))
        optimizer.step()
    return norm


def _joint_squared_norm(grads: Sequence[Tensor]) -> float:
    sharded = [isinstance(grad, DTensor) for grad in grads]
    assert all(sharded) or not any(sharded), "some gradients are sharded and others are not"
    parts = [(grad.to_local() if isinstance(grad, DTensor) else grad).detach().reshape(-1) for grad in grads]
    large = [part for part in parts if part.shape[0] > _SMALL_GRADIENT]
    # Calls would take longer than the numbers of the many biases and norms, so these are joined.
    small = [part.float() for part in parts if part.shape[0] <= _SMALL_GRADIENT]
    joined = [torch.cat(small)] if small else []
    total = torch.stack([_squared_norm(part) for part in large + joined]).sum()
    if any(sharded):
        dist.all_reduce(total)
    return float(total)


def _squared_norm(flat: Tensor) -> Tensor:
    whole = flat.shape[0] - flat.shape[0] % _NORM_CHUNK
    chunks = torch.linalg.vector_norm(
        flat[:whole].view(whole // _NORM_CHUNK, _NORM_CHUNK), dim=1, dtype=torch.float32
    )
    rest = torch.linalg.vector_norm(flat[whole:], dtype=torch.float32)
    total: Tensor = chunks.double().square().sum() + rest.double().square()
    return total
