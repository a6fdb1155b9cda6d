"""From token states to one sentence vector: pooling, then the modules a sentence-transformers folder adds.

Knows nothing of backbones, files or losses. Pooling choices follow section 5.3 of the TSDAE paper.

Shapes: B sentences, T packed tokens, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tsdae_core.choices import PoolingMode as PoolingMode


def pool(hidden_TD: Tensor, first_B: Tensor, row_T: Tensor, *, mode: PoolingMode) -> Tensor:
    """Return one vector per sentence, [B, D].

    Args:
        hidden_TD: states of the real tokens, special tokens included.
        first_B: int64 place of each sentence's first token, in the order of the result.
        row_T: int64 sentence of each token.
        mode: first token, mean, or maximum over the tokens of the sentence.
    """
    if mode == "cls":
        return hidden_TD.index_select(0, first_B)
    shape = (first_B.shape[0], hidden_TD.shape[1])
    if mode == "mean":
        counts_B = torch.bincount(row_T, minlength=shape[0]).to(hidden_TD.dtype)
        return hidden_TD.new_zeros(shape).index_add(0, row_T, hidden_TD) / counts_B[:, None]
    lowest = hidden_TD.new_full(shape, torch.finfo(hidden_TD.dtype).min)
    index = row_T[:, None].expand_as(hidden_TD)
    return lowest.scatter_reduce(0, index, hidden_TD, reduce="amax", include_self=False)


@dataclass(frozen=True)
class DenseConfig:
    """A Dense module of a sentence-transformers folder; ``activation`` names a class of ``torch.nn``."""

    in_features: int
    out_features: int
    bias: bool
    activation: str


class Dense(nn.Module):
    """Linear layer and activation after pooling (kept when a folder has one)."""

    def __init__(self, config: DenseConfig) -> None:
        super().__init__()
        activation = getattr(torch.nn, config.activation, None)
        if not (isinstance(activation, type) and issubclass(activation, nn.Module)):
            raise ValueError(f"Dense activation {config.activation!r} is not a class of torch.nn")
        self.config = config
        self.linear = nn.Linear(config.in_features, config.out_features, bias=config.bias)
        self.activation: nn.Module = activation()

    def forward(self, vectors_BD: Tensor) -> Tensor:
        """Return [B, out_features]."""
        out: Tensor = self.activation(self.linear(vectors_BD))
        return out


class Normalize(nn.Module):
    """Scale every vector to length 1."""

    def forward(self, vectors_BD: Tensor) -> Tensor:
        """Return [B, D] of unit length; a zero vector stays zero."""
        return F.normalize(vectors_BD, dim=-1)
