"""Summed cross-entropy of a tied output layer, fused so that full [T, V] logits never exist.

Owns the arithmetic only: blocks of rows, the transposed product ``W @ x.T`` (faster than ``x @ W.T`` for a
tall vocabulary on CPUs), gradients formed while the exponentials of a block are at hand, so that nothing is
computed twice, and passes over a block in strips that stay in a CPU's cache.

Shapes: T targets, D width, V vocabulary, C targets of one block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tsdae_core.token_table import TokenTable

# Numbers of one logits block: 32 MiB in fp32, which bounds the memory and stays near the last-level cache.
_BLOCK_SIZE = 1 << 23
_MIN_ROWS = 128
# Numbers of a strip of a block: 256 KiB in fp32, less than a core's own cache.
_STRIP_SIZE = 1 << 16


def linear_cross_entropy_sum(
    hidden_TD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor,
    targets_T: Tensor,
    *,
    table: TokenTable | None = None,
) -> Tensor:
    """Return the sum over targets of ``-log softmax(hidden @ weight.T + bias)[target]``, a scalar.

    Args:
        hidden_TD: float [T, D].
        weight_VD: float [V, D], the shared token embeddings.
        bias_V: float [V].
        targets_T: int64 [T], ids in [0, V).
        table: whose weight ``weight_VD`` is, where it comes from one.

    Under autocast the loss is still computed in the precision of the weights. The backward pass can run once.
    """
    with torch.autocast(hidden_TD.device.type, enabled=False):
        total: Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
            hidden_TD.to(weight_VD.dtype), weight_VD, bias_V, targets_T, table
        )
    return total


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_TD: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor,
        targets_T: Tensor,
        table: TokenTable | None,
    ) -> Tensor:
        num_targets, num_rows = hidden_TD.shape[0], max(_MIN_ROWS, _BLOCK_SIZE // weight_VD.shape[0])
        total = hidden_TD.new_zeros((), dtype=torch.float64)
        grads = None
        if any(ctx.needs_input_grad[:3]):
            grads = (torch.empty_like(hidden_TD), torch.empty_like(weight_VD), torch.zeros_like(bias_V))
            if num_targets == 0:
                grads[1].zero_()
        buffer = hidden_TD.new_empty(weight_VD.shape[0] * min(num_rows, num_targets))
        for begin in range(0, num_targets, num_rows):
            rows_CD, targets_C = hidden_TD[begin : begin + num_rows], targets_T[begin : begin + num_rows]
            logits_VC = buffer[: weight_VD.shape[0] * rows_CD.shape[0]].view(-1, rows_CD.shape[0])
            torch.addmm(bias_V[:, None], weight_VD, rows_CD.t(), out=logits_VC)
            loss, sums_C = _exponentials(logits_VC, targets_C)
            total += loss
            if grads is not None:
                grad_hidden, grad_weight, grad_bias = grads
                # Probabilities are exponentials / sums; the division is done where there is less to divide.
                logits_VC[targets_C, torch.arange(rows_CD.shape[0], device=targets_C.device)] -= sums_C
                shares_C = sums_C.reciprocal()
                scaled_CD = rows_CD * shares_C[:, None]
                if begin:
                    grad_weight.addmm_(logits_VC, scaled_CD)
                else:
                    torch.mm(logits_VC, scaled_CD, out=grad_weight)
                part_CD = grad_hidden[begin : begin + num_rows]
                torch.mm(logits_VC.t(), weight_VD, out=part_CD)
                part_CD.mul_(shares_C[:, None])
                grad_bias.addmv_(logits_VC, shares_C)
        ctx.grads, ctx.table = grads, table
        return total.to(hidden_TD.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.grads is None:
            raise RuntimeError("the backward pass of this loss ran before; compute the loss again")
        hidden, weight, bias = (grad.mul_(grads[0]) for grad in ctx.grads)
        ctx.grads = None  # the last reference: autograd then keeps the gradient instead of copying it
        if ctx.table is None or not ctx.needs_input_grad[1]:
            return hidden, weight, bias, None, None
        ctx.table.add_dense(weight)
        return hidden, None, bias, None, None


def _exponentials(logits_VC: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor]:
    """Turn logits into exp(logit - the column's largest), in place.

    Returns:
        The block's summed loss in float64, and the sums of the columns.
    """
    num_rows = _STRIP_SIZE // logits_VC.shape[1] if logits_VC.device.type == "cpu" else logits_VC.shape[0]
    strips = torch.split(logits_VC, max(1, num_rows))
    target_logits_C = logits_VC.gather(0, targets_C[None])[0]
    peaks = strips[0].clone()
    for strip in strips[1:]:
        head = peaks[: strip.shape[0]]
        torch.maximum(head, strip, out=head)
    peak_C = peaks.amax(0)
    sums_C = torch.zeros_like(peak_C)
    for strip in strips:
        sums_C += strip.sub_(peak_C).exp_().sum(0)
    return (sums_C.log() + peak_C - target_logits_C).sum(dtype=torch.float64), sums_C
