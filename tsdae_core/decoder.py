"""The bottleneck decoder: the backbone called causally, with the sentence vector added in every layer.

Follows section 3.1 of the TSDAE paper. There the decoder cross-attends to a single key, so its attention
weight is 1 and the block equals ``LN(h + W_o(W_v s + b_v) + b_o)``; its query and key projections never
matter. Owns those modules and both ways to run the decoder. Knows nothing of noise, pooling or losses.

Shapes: B sentences, T packed tokens, D width, S width of the sentence vector, H heads.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tsdae_core.backbone import backbone_config, family_of, first_layers, layers_of, norm_eps
from tsdae_core.choices import BottleneckInit
from tsdae_core.packed import FusedProjections, PackedPlan, run_packed
from tsdae_core.padded import run_padded


class BottleneckLayer(nn.Module):
    """What cross-attention over one key amounts to in one layer."""

    def __init__(self, backbone: nn.Module, vector_width: int) -> None:
        super().__init__()
        config = backbone_config(backbone)
        width = int(config.hidden_size)
        self.num_heads = int(config.num_attention_heads)
        self.attention_dropout = _dropout(config, "attention_probs_dropout_prob", "attention_dropout")
        self.value = nn.Linear(vector_width, width)
        self.output = nn.Linear(width, width)
        self.dropout = nn.Dropout(_dropout(config, "hidden_dropout_prob", "dropout", "dropout_rate"))
        self.norm: nn.Module = (
            nn.LayerNorm(width, eps=norm_eps(config)) if family_of(backbone).post_norm else nn.Identity()
        )

    def forward(self, hidden_TD: Tensor, vectors_BS: Tensor, row_T: Tensor) -> Tensor:
        """Add sentence ``row_T[t]``'s vector to the state of token t; returns [T, D]."""
        value_BD = self.value(vectors_BS)
        if self.training and self.attention_dropout > 0:
            # Dropout on an attention weight of 1 keeps or drops a whole head, per token.
            shape = (row_T.shape[0], self.num_heads, 1)
            kept_TH1 = F.dropout(hidden_TD.new_ones(shape), self.attention_dropout, training=True)
            context = value_BD.index_select(0, row_T).view(*shape[:2], -1) * kept_TH1
            added_TD = self.output(context.flatten(1))
        else:
            added_TD = self.output(value_BD).index_select(0, row_T)
        out: Tensor = self.norm(hidden_TD + self.dropout(added_TD))
        return out


def build_bottleneck(
    backbone: nn.Module,
    *,
    vector_width: int,
    seed: int,
    num_layers: int | None = None,
    init: BottleneckInit = "random",
) -> nn.ModuleList:
    """Make one `BottleneckLayer` per layer, or for the first ones; the weights depend on ``seed`` alone.

    Raises:
        ValueError: for ``identity`` when the sentence vector is not as wide as the backbone.
    """
    num_layers = num_layers or len(layers_of(backbone))
    layers = nn.ModuleList(BottleneckLayer(backbone, vector_width) for _ in range(num_layers))
    std = float(getattr(backbone_config(backbone), "initializer_range", 0.02))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in layers.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(0.0, std, generator=generator)
                module.bias.zero_()
                if init == "identity":
                    _make_identity(module)
    return layers


def _make_identity(module: nn.Linear) -> None:
    if module.in_features != module.out_features:
        raise ValueError(
            f"bottleneck_init=identity needs vectors of the backbone's width {module.out_features}, got "
            f"{module.in_features} (a Dense module after pooling?); use bottleneck_init=random"
        )
    nn.init.eye_(module.weight)


def decode_packed(
    backbone: nn.Module,
    bottleneck: nn.ModuleList,
    vectors_BS: Tensor,
    ids_T: Tensor,
    plan: PackedPlan,
    *,
    fused: FusedProjections,
    causal: bool = True,
) -> Tensor:
    """Return decoder states [T, D] in packed order, ``ids_T`` being in packed order too.

    As many layers run as the bottleneck has modules. Without ``causal`` a token sees later ones too.
    """

    def add_vector(index: int, hidden_TD: Tensor) -> Tensor:
        added: Tensor = bottleneck[index](hidden_TD, vectors_BS, plan.row_of_token)
        return added

    fused = fused.first(len(bottleneck))
    return run_packed(backbone, ids_T, plan, causal=causal, fused=fused, add_vector=add_vector)


def decode_padded(
    backbone: nn.Module,
    bottleneck: nn.ModuleList,
    vectors_BS: Tensor,
    ids_T: Tensor,
    lengths_B: Tensor,
    *,
    causal: bool = True,
) -> Tensor:
    """Return decoder states [T, D], through the backbone's own forward; otherwise as `decode_packed`."""
    row = torch.arange(lengths_B.shape[0], device=lengths_B.device).repeat_interleave(int(lengths_B.max()))

    def add_vector(index: int, hidden: Tensor) -> Tensor:
        added: Tensor = bottleneck[index](hidden, vectors_BS, row)
        return added

    with first_layers(backbone, len(bottleneck)):
        return run_padded(backbone, ids_T, lengths_B, causal=causal, add_vector=add_vector)


def _dropout(config: Any, *names: str) -> float:
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, (int, float)):
            return float(value)
    return 0.0
