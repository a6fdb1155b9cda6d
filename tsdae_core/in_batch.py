"""Losses that compare a sentence with the whole global batch: gathering over workers, and micro-batches.

Owns the gather with gradients, the model base class and the two-pass step (gradient caching, Gao et al. 2021,
arXiv 2101.06983) that lets a step's micro-batches see one another. So neither the number of workers nor the
cut into micro-batches changes a gradient. Knows nothing of any particular loss.

Shapes: n rows of this worker, N rows of all workers, K vectors per row, S width.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tsdae_core.batch import Batch
from tsdae_core.hashing import fold_key
from tsdae_core.keyed_dropout import keyed_dropout
from tsdae_core.loss_sums import LossSums
from tsdae_core.objective_model import ObjectiveModel


class InBatchModel(ObjectiveModel):
    """A model whose loss is a function of the vectors of the global batch.

    A batch whose ``row_ids`` are empty belongs to a worker without rows in this step: its texts are run, so
    that all workers meet, but they count as nobody's negatives.
    """

    @abstractmethod
    def vectors(self, batch: Batch) -> Tensor:
        """Return [n, K, S] with gradients; n is the number of ``row_ids``."""

    @abstractmethod
    def in_batch_loss(self, vectors_nKS: Tensor, batches: Sequence[Batch]) -> Tensor:
        """Return this worker's part of the summed loss; the vectors are those of all ``batches``."""

    def own_loss(self, batch: Batch) -> LossSums:
        """Return what needs no other row: by default nothing, with rows as the unit."""
        zero = torch.zeros((), device=next(self.parameters()).device)
        return LossSums(zero, int(batch["row_ids"].shape[0]))

    def forward(self, batch: Batch, vector_grads: Tensor | None = None) -> LossSums:
        """Return the loss with this batch as this worker's whole share of the step.

        With ``vector_grads`` [n, K, S], the in-batch loss is replaced by a term of value 0 whose gradient by
        the vectors they are: the second pass of `cached_vector_grads`.
        """
        vectors = self.vectors(batch)
        own = self.own_loss(batch)
        if vector_grads is None:
            return LossSums(own.loss_sum + self.in_batch_loss(vectors, [batch]), own.num_targets)
        surrogate = (vectors * vector_grads).sum()
        return LossSums(own.loss_sum + (surrogate - surrogate.detach()), own.num_targets)


def cached_vector_grads(
    model: InBatchModel, batches: Sequence[Batch], *, dropout_key: int | None = None
) -> tuple[list[Tensor], float]:
    """Return d loss / d vectors of every micro-batch [n, K, S], and this worker's summed in-batch loss.

    First pass without gradients, then the loss over all vectors; the caller runs every micro-batch again,
    each after `seed_micro_batch` and with the same key, so that both passes drop the same units.
    """
    base_seed = torch.initial_seed()
    parts = []
    with torch.no_grad():
        for index, batch in enumerate(batches):
            seed_micro_batch(base_seed, index)
            with keyed_dropout(dropout_key):
                parts.append(model.vectors(batch))
    whole = torch.cat(parts).requires_grad_()
    loss = model.in_batch_loss(whole, batches)
    (grads,) = torch.autograd.grad(loss, whole)
    sizes = [part.shape[0] for part in parts]
    return list(torch.split(grads, sizes)), float(loss.detach())


def group_loss(model: InBatchModel, batches: Sequence[Batch]) -> LossSums:
    """Return the loss of rows that see one another and nobody else, however they are cut into batches.

    For validation: without gradients, with the model in eval mode.
    """
    vectors = torch.cat([model.vectors(batch) for batch in batches])
    own = [model.own_loss(batch) for batch in batches]
    loss = model.in_batch_loss(vectors, batches) + sum(sums.loss_sum for sums in own)
    return LossSums(loss, sum(sums.num_targets for sums in own))


def seed_micro_batch(base_seed: int, index: int) -> None:
    """Key torch's generators by the step's seed and the place of the micro-batch."""
    torch.manual_seed(fold_key("micro-batch", base_seed, index) >> 1)


def any_worker_has_several(num_batches: int, *, device: torch.device) -> bool:
    """Tell whether any worker cuts its share of the step into several micro-batches.

    All workers must take the same path, or their collective calls would meet in another order.
    """
    if _world_size() == 1:
        return num_batches > 1
    largest = torch.tensor([num_batches], device=device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return int(largest) > 1


def gather_rows(rows: Tensor, *, is_training: bool) -> tuple[Tensor, int]:
    """Return the rows [N, ...] of all workers in rank order, and the place of this worker's first.

    The number of rows may differ between workers and may be 0. The gradient of a row is the sum over all
    workers' losses. Without ``is_training`` nothing is gathered: workers may then hold different numbers of
    batches.
    """
    if not is_training or _world_size() == 1:
        return rows, 0
    own = torch.tensor([rows.shape[0]], device=rows.device)
    sizes = [torch.zeros_like(own) for _ in range(_world_size())]
    dist.all_gather(sizes, own)
    counts = [int(size) for size in sizes]
    gathered: Tensor = _Gather.apply(rows, counts)  # type: ignore[no-untyped-call]
    return gathered, sum(counts[: dist.get_rank()])


class _Gather(torch.autograd.Function):
    """All-gather of different numbers of rows; backward sums the gradients of all workers."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: list[int]) -> Tensor:
        ctx.counts = counts
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: rows.shape[0]] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[0].contiguous().clone()
        dist.all_reduce(total)
        return torch.split(total, ctx.counts)[dist.get_rank()], None


def _world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
