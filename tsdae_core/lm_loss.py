"""Summed cross-entropy of a tied output layer, fused so that full [T, V] logits never exist.

Owns the arithmetic only: blocks of rows, the transposed product ``W @ x.T`` (faster than ``x @ W.T`` for a
tall vocabulary on CPUs), gradients formed while the exponentials of a block are at hand, so that nothing is
computed twice, and passes over a block in strips that stay in a CPU's cache. The weight's gradient of the
last block waits for the backward pass: its product then carries the scale of the loss, and goes to where
other uses of the weight leave theirs.

Shapes: T targets, D width, V vocabulary, C targets of one block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tsdae_core.joint_gradient import JointGradient

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
    table: JointGradient | None = None,
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
    if table is None:
        table = JointGradient(weight_VD)
        weight_VD = table.weight
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
        table: JointGradient,
    ) -> Tensor:
        total = hidden_TD.new_zeros((), dtype=torch.float64)
        grads = None
        if any(ctx.needs_input_grad[:3]):
            grads = _Gradients(hidden_TD, bias_V, table if ctx.needs_input_grad[1] else None)
        num_rows = max(_MIN_ROWS, _BLOCK_SIZE // weight_VD.shape[0])
        buffer = hidden_TD.new_empty(weight_VD.shape[0] * min(num_rows, hidden_TD.shape[0]))
        for begin in range(0, hidden_TD.shape[0], num_rows):
            rows_CD, targets_C = hidden_TD[begin : begin + num_rows], targets_T[begin : begin + num_rows]
            if grads is not None:
                grads.form_waiting()  # before the buffer is used again
            logits_VC = buffer[: weight_VD.shape[0] * rows_CD.shape[0]].view(-1, rows_CD.shape[0])
            torch.mm(weight_VD, rows_CD.t(), out=logits_VC)
            loss, sums_C = _exponentials(logits_VC, bias_V, targets_C)
            total += loss
            if grads is not None:
                grads.add_block(begin, logits_VC, sums_C, rows_CD, targets_C, weight_VD)
        ctx.grads = grads
        return total.to(hidden_TD.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.grads is None:
            raise RuntimeError("the backward pass of this loss ran before; compute the loss again")
        formed, ctx.grads = ctx.grads, None
        formed.hand_weight(grads[0])
        return formed.hidden.mul_(grads[0]), None, formed.bias.mul_(grads[0]), None, None


class _Gradients:
    """Gradients of the unscaled sum.

    Attributes:
        hidden: [T, D].
        bias: [V].
    """

    def __init__(self, hidden_TD: Tensor, bias_V: Tensor, table: JointGradient | None) -> None:
        self.hidden, self.bias = torch.empty_like(hidden_TD), torch.zeros_like(bias_V)
        self._table = table
        self._weight: Tensor | None = None
        self._waiting: tuple[Tensor, Tensor] | None = None

    def add_block(
        self,
        begin: int,
        exponentials_VC: Tensor,
        sums_C: Tensor,
        rows_CD: Tensor,
        targets_C: Tensor,
        weight_VD: Tensor,
    ) -> None:
        """Add a block of rows from ``begin`` on; its exponentials are changed and must stay until used."""
        # Probabilities are exponentials / sums; the division is done where there is less to divide.
        exponentials_VC[targets_C, torch.arange(rows_CD.shape[0], device=targets_C.device)] -= sums_C
        shares_C = sums_C.reciprocal()
        part_CD = self.hidden[begin : begin + rows_CD.shape[0]]
        torch.mm(exponentials_VC.t(), weight_VD, out=part_CD)
        part_CD.mul_(shares_C[:, None])
        self.bias.addmv_(exponentials_VC, shares_C)
        if self._table is not None:
            self._waiting = (exponentials_VC, rows_CD * shares_C[:, None])

    def form_waiting(self) -> None:
        """Form the weight's gradient of the block before, which still waits."""
        if self._waiting is None or self._table is None:
            return
        if self._weight is None:
            self._weight = self._table.memory()
            torch.mm(*self._waiting, out=self._weight)
        else:
            self._weight.addmm_(*self._waiting)
        self._waiting = None

    def hand_weight(self, scale: Tensor) -> None:
        """Add the weight's gradient times ``scale`` to the table's."""
        if self._table is None:
            return
        if self._weight is not None:
            self._table.add(self._weight.mul_(scale))
        if self._waiting is not None:
            exponentials_VC, rows_CD = self._waiting
            self._table.add_product(exponentials_VC, rows_CD.mul_(scale))
        else:
            self._table.add_nothing()


def _exponentials(logits_VC: Tensor, bias_V: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor]:
    """Turn logits without bias into exp(logit - the column's largest), in place.

    Returns:
        The block's summed loss in float64, and the sums of the columns.
    """
    num_rows = _STRIP_SIZE // logits_VC.shape[1] if logits_VC.device.type == "cpu" else logits_VC.shape[0]
    strips = torch.split(logits_VC, max(1, num_rows))
    peaks = torch.full_like(strips[0], -torch.inf)
    for strip, bias in zip(strips, torch.split(bias_V[:, None], max(1, num_rows)), strict=True):
        head = peaks[: strip.shape[0]]
        torch.maximum(head, strip.add_(bias), out=head)
    target_logits_C = logits_VC.gather(0, targets_C[None])[0]
    peak_C = peaks.amax(0)
    sums_C = torch.zeros_like(peak_C)
    for strip in strips:
        sums_C += strip.sub_(peak_C).exp_().sum(0)
    return (sums_C.log() + peak_C - target_logits_C).sum(dtype=torch.float64), sums_C
