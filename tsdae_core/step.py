"""One training step, the same for every objective and any number of workers.

Owns how losses are normalised: by the number of targets of the GLOBAL batch (tokens, unless the objective
counts sentences), so that micro-batches and ranks weigh by them. Knows nothing of data loading, schedules or
checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tsdae_core.batch import Batch
from tsdae_core.hashing import fold_key
from tsdae_core.in_batch import InBatchModel, any_worker_has_several, cached_vector_grads, seed_micro_batch
from tsdae_core.joint_gradient import reuse_gradients
from tsdae_core.keyed_dropout import keyed_dropout
from tsdae_core.loss_sums import LossSums
from tsdae_core.optim import clipped_step


@dataclass(frozen=True)
class StepStats:
    """What a step measured on this rank.

    Attributes:
        loss_sum: summed loss of this rank's targets.
        num_targets: see `LossSums`.
        grad_norm: norm of the global gradient before clipping, equal on all ranks.
    """

    loss_sum: float
    num_targets: int
    grad_norm: float

    @property
    def loss(self) -> float:
        """Mean loss of this rank in nats per target token, or per sentence where the objective says so."""
        return self.loss_sum / max(1, self.num_targets)


def seed_step(seed: int, step: int, rank: int) -> None:
    """Key torch's generators by (seed, step, rank), so that a resumed run needs no stored dropout state."""
    torch.manual_seed(fold_key("step", seed, step, rank) >> 1)


def training_step(
    model: nn.Module,
    microbatches: Batch | Sequence[Batch],
    optimizer: torch.optim.Optimizer,
    *,
    global_num_targets: int,
    world_size: int = 1,
    max_grad_norm: float,
    weight: float | Sequence[float] = 1.0,
    autocast_dtype: torch.dtype | None = None,
    dropout_key: int | None = None,
) -> StepStats:
    """Accumulate the gradient of this rank's micro-batches, clip it and step the optimizer.

    Each summed loss is scaled by ``world_size / global_num_targets``: DDP averages over ranks, so the
    gradient is the one a single process would get for the whole global batch. Micro-batches of an
    `InBatchModel` see one another (gradient caching: every micro-batch runs forward twice).

    Args:
        model: in train mode; a DDP wrapper reduces gradients on the last micro-batch only.
        microbatches: one batch or several.
        optimizer: its learning rate already set.
        global_num_targets: sum of `Objective.num_targets` over all ranks and micro-batches of this step.
        world_size: number of ranks.
        max_grad_norm: see `clipped_step`.
        weight: factor on the loss, of all micro-batches or of each; 0 for rows that stand in where a rank has
            none and only has to meet the others.
        autocast_dtype: ``torch.bfloat16`` runs matrix products of the forward pass in it; weights, gradients,
            loss and optimizer stay fp32. float16 is refused, since it would need loss scaling.
        dropout_key: dropout is a function of it and the texts, however they are cut over ranks and
            micro-batches (`keyed_dropout`); None draws from torch's generator.

    Raises:
        ValueError: if there is nothing to train on, the gradient is not finite, or the dtype is refused.
    """
    parts: Sequence[Batch] = [microbatches] if isinstance(microbatches, dict) else microbatches
    if global_num_targets < 1 or not parts:
        raise ValueError("a training step needs at least one micro-batch and one target token")
    if autocast_dtype not in (None, torch.bfloat16):
        raise ValueError(f"autocast_dtype={autocast_dtype} is not supported; use torch.bfloat16 or None")
    reuse_gradients(model.parameters())
    weights = [weight] * len(parts) if isinstance(weight, int | float) else weight
    base_seed, num_targets = torch.initial_seed(), 0
    with _autocast(model, autocast_dtype):
        vector_grads, loss_sum = _vector_grads(model, parts, dropout_key)
    for index, (batch, factor) in enumerate(zip(parts, weights, strict=True)):
        with _reduction(model, is_last=index == len(parts) - 1):
            if vector_grads:
                seed_micro_batch(base_seed, index)
            with _autocast(model, autocast_dtype), keyed_dropout(dropout_key):
                sums: LossSums = model(batch, vector_grads[index]) if vector_grads else model(batch)
            (sums.loss_sum * (factor * world_size / global_num_targets)).backward()  # type: ignore[no-untyped-call]
        if factor:  # rows that only stand in are nobody's loss
            loss_sum += float(sums.loss_sum.detach())
            num_targets += int(sums.num_targets)
    grad_norm = clipped_step(optimizer, model.parameters(), max_norm=max_grad_norm)
    return StepStats(loss_sum, num_targets, grad_norm)


def _vector_grads(
    model: nn.Module, parts: Sequence[Batch], dropout_key: int | None
) -> tuple[list[Tensor], float]:
    """Return the gradients by the vectors of an in-batch loss over several micro-batches, and its sum."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    if not isinstance(inner, InBatchModel):
        return [], 0.0
    if not any_worker_has_several(len(parts), device=next(inner.parameters()).device):
        return [], 0.0
    return cached_vector_grads(inner, parts, dropout_key=dropout_key)


def _reduction(model: nn.Module, *, is_last: bool) -> AbstractContextManager[None]:
    if isinstance(model, DistributedDataParallel) and not is_last:
        context: AbstractContextManager[None] = model.no_sync()
        return context
    return nullcontext()


def _autocast(model: nn.Module, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    if dtype is None:
        return nullcontext()
    return torch.autocast(next(model.parameters()).device.type, dtype=dtype)
