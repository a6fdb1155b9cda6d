"""The parts of a BERT-shaped layer as the packed path calls them, and the sharing of their gradients.

Owns how the weights of a layer are used in one step: query, key and value side by side, and one gradient for
all passes through a matrix (`JointGradient`). The weights stay in the Hugging Face modules, whose own forward
is called where there is more to them than their weights. Knows nothing of layouts, attention or masks.

Shapes: T packed tokens, D width, I inner width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tsdae_core.joint_gradient import JointGradient, is_plain

Rows = Callable[[Tensor], Tensor]
RowsAndResidual = Callable[[Tensor, Tensor], Tensor]
# From a weight [O, I] and a bias [O] to what applies them to rows.
MakeLinear = Callable[[Tensor, Tensor | None], Rows]


@dataclass(frozen=True)
class LayerCalls:
    """What runs in a layer beside attention.

    Attributes:
        project: states [T, D] to query, key and value side by side, [T, 3D].
        attention_output: attention's output and the states before it to the states after the block, [T, D].
        intermediate: states to the inner states [T, I].
        output: inner states and the states before them to the layer's output, [T, D].
    """

    project: Rows
    attention_output: RowsAndResidual
    intermediate: Rows
    output: RowsAndResidual


def _joint_linear(weight_OI: Tensor, bias_O: Tensor | None) -> Rows:
    joint = JointGradient(weight_OI)
    return lambda rows: joint.linear(rows, bias_O)


def layer_calls(layer: nn.Module, *, make_linear: MakeLinear = _joint_linear) -> LayerCalls:
    """Return the calls of a layer, for one step."""
    return LayerCalls(
        _fused_projection(layer.get_submodule("attention.self"), make_linear),
        _output_block(layer.get_submodule("attention.output"), make_linear),
        _inner_block(layer.get_submodule("intermediate"), make_linear),
        _output_block(layer.get_submodule("output"), make_linear),
    )


def _fused_projection(attention: nn.Module, make_linear: MakeLinear) -> Rows:
    parts = [attention.get_submodule(name) for name in ("query", "key", "value")]
    weight_ED = torch.cat([_tensor(part.weight) for part in parts])
    return make_linear(weight_ED, torch.cat([_tensor(part.bias) for part in parts]))


def _output_block(module: nn.Module, make_linear: MakeLinear) -> RowsAndResidual:
    linear = _linear(module, make_linear)
    if linear is None:
        return module
    dropout, norm = module.get_submodule("dropout"), module.get_submodule("LayerNorm")

    def call(rows: Tensor, residual_TD: Tensor) -> Tensor:
        out: Tensor = norm(dropout(linear(rows)) + residual_TD)
        return out

    return call


def _inner_block(module: nn.Module, make_linear: MakeLinear) -> Rows:
    linear, activation = _linear(module, make_linear), getattr(module, "intermediate_act_fn")  # noqa: B009
    if linear is None:
        return module

    def call(rows_TD: Tensor) -> Tensor:
        inner_TI: Tensor = activation(linear(rows_TD))
        return inner_TI

    return call


def _linear(module: nn.Module, make_linear: MakeLinear) -> Rows | None:
    """Return a block's linear part, or None where the block or that part is to be called itself."""
    dense = module.get_submodule("dense")
    if type(dense) is not nn.Linear or not (is_plain(module) and is_plain(dense)):
        return None
    return make_linear(dense.weight, dense.bias)


def _tensor(value: Tensor | nn.Module) -> Tensor:
    assert isinstance(value, Tensor)
    return value
