"""The token embeddings in one step: rows looked up by the passes, and the output matrix of the LM head.

Owns the lookups. Autograd would make a dense [V, D] gradient for each; here they add their few rows to the
gradient that the LM head makes anyway. Equal up to rounding.

Shapes: T tokens, V vocabulary, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tsdae_core.joint_gradient import JointGradient, is_plain


class TokenTable(JointGradient):
    """A matrix of token embeddings, during one forward and backward pass."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__(embedding.weight)
        self._embedding = embedding
        self._pad_id = embedding.padding_idx

    def rows(self, ids_T: Tensor) -> Tensor:
        """Return the rows of the ids, [T, D]; an embedding that does more than to look up is called."""
        module = self._embedding
        if type(module) is not nn.Embedding or module.max_norm is not None or not is_plain(module):
            called: Tensor = module(ids_T[None])[0]
            return called
        rows: Tensor = _Rows.apply(self.weight, ids_T, self)  # type: ignore[no-untyped-call]
        return rows

    def add_rows(self, grad_TD: Tensor, ids_T: Tensor) -> None:
        """Add the gradient of rows that were looked up; the padding's row has none."""
        if self._grad is None:
            pad_id = -1 if self._pad_id is None else self._pad_id
            num_rows = self._weight.shape[0]
            self._grad = torch.ops.aten.embedding_dense_backward(grad_TD, ids_T, num_rows, pad_id, False)
            return
        if self._pad_id is not None:
            grad_TD = grad_TD.masked_fill((ids_T == self._pad_id)[:, None], 0.0)
        # In the same order on every run, also on GPUs, where `index_add_` has none.
        self._grad.index_put_((ids_T,), grad_TD.to(self._grad.dtype), accumulate=True)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight_VD: Tensor, ids_T: Tensor, table: TokenTable) -> Tensor:
        ctx.save_for_backward(ids_T)
        ctx.table = table
        return weight_VD.index_select(0, ids_T)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None]:
        (ids_T,) = ctx.saved_tensors
        ctx.table.add_rows(grads[0], ids_T)
        return None, None, None
