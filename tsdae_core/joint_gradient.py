"""The gradient of a weight that one step uses several times, formed in one matrix.

Autograd makes a matrix for every use and adds them up afterwards, which for batches of a few sentences takes
as long as the products do. Here every use adds its product to what the others have left. Owns the sum, and
memory for it that outlives the step where the matrix is large. Knows nothing of layers or losses. Equal to
autograd's sum up to rounding.

Shapes: T tokens, I width of the inputs, O width of the outputs; the weight is [O, I].
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

# From 32 MiB on the C library asks the system for memory anew every time, and every page costs a fault.
_LARGE_BYTES = 1 << 25
_MEMORY: MutableMapping[Tensor, Tensor | None] = WeakTensorKeyDictionary()


class JointGradient:
    """A weight, during one forward and backward pass."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight
        self._joined: Tensor | None = None
        self._grad: Tensor | None = None

    @property
    def weight(self) -> Tensor:
        """The weight. Whoever uses it and knows of this object hands its part of the gradient to `add`."""
        if not (torch.is_grad_enabled() and self._weight.requires_grad):
            return self._weight
        if self._joined is None:
            joined: Tensor = _Join.apply(self._weight, self)  # type: ignore[no-untyped-call]
            self._joined = joined
        return self._joined

    def linear(self, rows_TI: Tensor, bias_O: Tensor | None) -> Tensor:
        """Return ``rows @ weight.T + bias``, [T, O]."""
        weight = self.weight
        if weight is self._weight or torch.is_autocast_enabled(rows_TI.device.type):
            return F.linear(rows_TI, self._weight, bias_O)
        out: Tensor = _Linear.apply(rows_TI, weight, bias_O, self)  # type: ignore[no-untyped-call]
        return out

    def add(self, grad_OI: Tensor) -> None:
        """Add a gradient of the whole weight, which is this object's from then on."""
        self._grad = grad_OI if self._grad is None else self._grad.add_(grad_OI)

    def add_product(self, left_OT: Tensor, right_TI: Tensor) -> None:
        """Add the product of two matrices to the gradient."""
        if self._grad is None:
            self._grad = self.memory()
            torch.mm(left_OT, right_TI, out=self._grad)
        else:
            self._grad.addmm_(left_OT, right_TI)

    def add_nothing(self) -> None:
        """Make the gradient zero where nobody has added to it, so that there is one."""
        if self._grad is None:
            self._grad = torch.zeros_like(self._weight)

    def memory(self) -> Tensor:
        """Return memory to form a gradient in, from `reuse_gradients` where it has some."""
        return _memory_like(self._weight)

    def take(self) -> Tensor | None:
        """Return what was added, and forget it: with one reference autograd keeps it instead of copying."""
        grad, self._grad = self._grad, None
        return grad


def is_plain(module: nn.Module) -> bool:
    """Tell whether calling a module is running its forward: nothing hangs on it, nobody compiled it."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    return not any(hooks) and not module._backward_pre_hooks and module._compiled_call_impl is None


def reuse_gradients(params: Iterable[nn.Parameter]) -> None:
    """Set gradients to None as `zero_grad` does; large ones lend their memory to the next of the same weight.

    Whoever still holds such a gradient sees the next one in it.
    """
    for param in params:
        if param in _MEMORY:
            _MEMORY[param] = param.grad
        param.grad = None


def _memory_like(weight_OI: Tensor) -> Tensor:
    if weight_OI.device.type != "cpu" or weight_OI.nbytes < _LARGE_BYTES or not weight_OI.is_leaf:
        return torch.empty_like(weight_OI)
    memory = _MEMORY.get(weight_OI)
    _MEMORY[weight_OI] = None  # the step's first gradient has it
    if memory is None or memory.dtype != weight_OI.dtype:
        return torch.empty_like(weight_OI)
    return memory


class _Join(torch.autograd.Function):
    """The weight as its users see it; its backward runs once, after theirs."""

    @staticmethod
    def forward(ctx: Any, weight_OI: Tensor, joint: JointGradient) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.joint = joint
        return weight_OI.view_as(weight_OI)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None]:
        if grads[0] is not None:
            ctx.joint.add(grads[0].clone())
        return ctx.joint.take(), None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, joint: JointGradient
    ) -> Tensor:
        ctx.save_for_backward(rows_TI, weight_OI)
        ctx.joint = joint
        return F.linear(rows_TI, weight_OI, bias_O)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        rows_TI, weight_OI = ctx.saved_tensors
        ctx.joint.add_product(grads[0].t(), rows_TI)
        rows = grads[0] @ weight_OI if ctx.needs_input_grad[0] else None
        bias = grads[0].sum(0) if ctx.needs_input_grad[2] else None
        return rows, None, bias, None
