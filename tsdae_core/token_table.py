"""The token embeddings in one step: rows looked up by the passes, and the output matrix of the LM head.

Owns their joint gradient. Autograd would make a dense [V, D] gradient for each use and add them up; here the
lookups add their few rows to the gradient that the LM head has made anyway. Equal up to rounding.

Shapes: T tokens, V vocabulary, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class TokenTable:
    """A matrix of token embeddings, during one forward and backward pass."""

    def __init__(self, embedding: nn.Embedding) -> None:
        self._embedding = embedding
        self._weight: Tensor = embedding.weight
        self._pad_id = embedding.padding_idx
        self._joined: Tensor | None = None
        self._grad: Tensor | None = None

    @property
    def weight(self) -> Tensor:
        """The matrix [V, D]. Whoever uses it and knows of the table hands the gradient to `add_dense`."""
        if not (torch.is_grad_enabled() and self._weight.requires_grad):
            return self._weight
        if self._joined is None:
            joined: Tensor = _Join.apply(self._weight, self)  # type: ignore[no-untyped-call]
            self._joined = joined
        return self._joined

    def rows(self, ids_T: Tensor) -> Tensor:
        """Return the rows of the ids, [T, D]; an embedding that does more than to look up is called."""
        if not self._only_looks_up():
            called: Tensor = self._embedding(ids_T[None])[0]
            return called
        rows: Tensor = _Rows.apply(self.weight, ids_T, self)  # type: ignore[no-untyped-call]
        return rows

    def _only_looks_up(self) -> bool:
        module = self._embedding
        has_hooks = bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)
        return type(module) is nn.Embedding and module.max_norm is None and not has_hooks

    def add_dense(self, grad_VD: Tensor) -> None:
        """Add a gradient of the whole matrix, which is the table's from then on."""
        self._grad = grad_VD if self._grad is None else self._grad.add_(grad_VD)

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

    def take_grad(self) -> Tensor | None:
        """Return what was added, and forget it: with one reference autograd keeps it instead of copying."""
        grad, self._grad = self._grad, None
        return grad


class _Join(torch.autograd.Function):
    """The weight as the table's users see it; its backward runs once, after theirs."""

    @staticmethod
    def forward(ctx: Any, weight_VD: Tensor, table: TokenTable) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.table = table
        return weight_VD.view_as(weight_VD)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None]:
        if grads[0] is not None:
            ctx.table.add_dense(grads[0].clone())
        return ctx.table.take_grad(), None


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
