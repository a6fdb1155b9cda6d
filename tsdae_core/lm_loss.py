"""Summed cross-entropy of a tied output layer, fused so that full [T, V] logits never exist.

Owns the arithmetic only: blocks of rows, the transposed product ``W @ x.T`` (faster than ``x @ W.T`` for a
tall vocabulary on CPUs), gradients formed while the probabilities of a block are at hand, so that nothing is
computed twice.

Shapes: T targets, D width, V vocabulary, C targets of one block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Numbers of one logits block: 32 MiB in fp32, which bounds the memory and stays near the last-level cache.
_BLOCK_SIZE = 1 << 23
_MIN_ROWS = 128


def linear_cross_entropy_sum(
    hidden_TD: Tensor, weight_VD: Tensor, bias_V: Tensor, targets_T: Tensor
) -> Tensor:
    """Return the sum over targets of ``-log softmax(hidden @ weight.T + bias)[target]``, a scalar.

    Args:
        hidden_TD: float [T, D].
        weight_VD: float [V, D], the shared token embeddings.
        bias_V: float [V].
        targets_T: int64 [T], ids in [0, V).

    Under autocast the loss is still computed in the precision of the weights.
    """
    with torch.autocast(hidden_TD.device.type, enabled=False):
        return _sum(hidden_TD.to(weight_VD.dtype), weight_VD, bias_V, targets_T)


def _sum(hidden_TD: Tensor, weight_VD: Tensor, bias_V: Tensor, targets_T: Tensor) -> Tensor:
    total: Tensor = _LinearCrossEntropy.apply(hidden_TD, weight_VD, bias_V, targets_T)  # type: ignore[no-untyped-call]
    return total


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_TD: Tensor, weight_VD: Tensor, bias_V: Tensor, targets_T: Tensor) -> Tensor:
        wants_grad = any(ctx.needs_input_grad[:3])
        num_rows = max(_MIN_ROWS, _BLOCK_SIZE // weight_VD.shape[0])
        grad_hidden = torch.empty_like(hidden_TD) if wants_grad else None
        grad_weight = torch.zeros_like(weight_VD) if wants_grad else None
        grad_bias = torch.zeros_like(bias_V) if wants_grad else None
        total = hidden_TD.new_zeros((), dtype=torch.float64)
        for begin in range(0, hidden_TD.shape[0], num_rows):
            rows_CD, targets_C = hidden_TD[begin : begin + num_rows], targets_T[begin : begin + num_rows]
            logits_VC = torch.addmm(bias_V[:, None], weight_VD, rows_CD.t())
            total += _block_loss(logits_VC, targets_C)
            if grad_hidden is None or grad_weight is None or grad_bias is None:
                continue
            logits_VC[targets_C, torch.arange(targets_C.shape[0], device=targets_C.device)] -= 1.0
            torch.mm(logits_VC.t(), weight_VD, out=grad_hidden[begin : begin + num_rows])
            grad_weight.addmm_(logits_VC, rows_CD)
            grad_bias += logits_VC.sum(1)
        ctx.grads = (grad_hidden, grad_weight, grad_bias)
        return total.to(hidden_TD.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        hidden, weight, bias = (None if grad is None else grad * grads[0] for grad in ctx.grads)
        return hidden, weight, bias, None


def _block_loss(logits_VC: Tensor, targets_C: Tensor) -> Tensor:
    """Turn logits into probabilities in place and return the block's summed loss in float64."""
    target_logits_C = logits_VC.gather(0, targets_C[None])[0]
    peak_C = logits_VC.amax(0)
    sums_C = logits_VC.sub_(peak_C).exp_().sum(0)
    logits_VC.div_(sums_C)
    return (sums_C.log() + peak_C - target_logits_C).sum(dtype=torch.float64)
