"""The language-model head: from decoder states to logits over the vocabulary.

Owns its parameters and the loss over real targets. The output matrix is the backbone's token embedding,
passed in at every call and never copied, unless a checkpoint has one of its own. Where checkpoints keep their
heads is in head_files.py.

Shapes: T targets, D width, E width of the output matrix, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from tsdae_core.backbone import backbone_config, norm_eps, word_embeddings
from tsdae_core.lm_loss import linear_cross_entropy_sum
from tsdae_core.token_table import TokenTable


class LmHead(nn.Module):
    """BERT's head (dense, activation, LayerNorm, output matrix, bias), or fewer of these parts.

    Attributes:
        dense: [E, D], or None where states meet the output matrix as they are; then there is no norm either.
        norm: LayerNorm of width E.
        activation: its name in transformers, between dense and norm.
        output: [V, E], an output matrix of its own; None where the token embeddings are it.
        bias: [V], or None.
        scale: factor on the states.
    """

    def __init__(
        self,
        *,
        dense: nn.Linear | None = None,
        norm: nn.LayerNorm | None = None,
        activation: str = "gelu",
        output: Tensor | None = None,
        bias: Tensor | None = None,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.dense, self.norm = dense, norm
        self.activation, self.scale = activation, scale
        self.output = None if output is None else nn.Parameter(output)
        self.bias = None if bias is None else nn.Parameter(bias)

    @classmethod
    def for_backbone(cls, backbone: nn.Module, *, seed: int, activation: str | None = None) -> LmHead:
        """Make a fresh head that fits the backbone, with all parts but an output matrix of its own.

        Args:
            backbone: what it is for.
            seed: its weights depend on this alone.
            activation: None for the one in the backbone's configuration.
        """
        config, table = backbone_config(backbone), word_embeddings(backbone)
        width = table.embedding_dim
        head = cls(
            dense=nn.Linear(
                int(config.hidden_size), width, bias=bool(getattr(config, "classifier_bias", True))
            ),
            norm=nn.LayerNorm(width, eps=norm_eps(config), bias=bool(getattr(config, "norm_bias", True))),
            activation=activation or _config_activation(config),
            bias=torch.zeros(table.num_embeddings),
        )
        assert head.dense is not None
        std = float(getattr(config, "initializer_range", 0.02))
        with torch.no_grad():
            head.dense.weight.normal_(0.0, std, generator=torch.Generator().manual_seed(seed))
            if head.dense.bias is not None:
                head.dense.bias.zero_()
        return head

    def forward(self, hidden_TD: Tensor) -> Tensor:
        """Return the states that meet the output matrix, [T, E]."""
        states_TE = hidden_TD if self.scale == 1.0 else hidden_TD * self.scale
        if self.dense is not None:
            states_TE = ACT2FN[self.activation](self.dense(states_TE))
        if self.norm is not None:
            states_TE = self.norm(states_TE)
        return states_TE

    def logits(self, hidden_TD: Tensor, *, embeddings_VE: Tensor) -> Tensor:
        """Return the logits [T, V]; for a few states only, see `loss_sum`."""
        logits_TV: Tensor = self(hidden_TD) @ self._output(embeddings_VE).t()
        return logits_TV if self.bias is None else logits_TV + self.bias

    def loss_sum(self, hidden_TD: Tensor, targets_T: Tensor, *, table: TokenTable) -> Tensor:
        """Return the cross-entropy summed over T targets (int64 ids), a scalar; logits are never kept.

        ``table`` has the token embeddings; its lookups in this step share their gradient.
        """
        output_VE = self._output(table.weight)
        bias_V = output_VE.new_zeros(output_VE.shape[0]) if self.bias is None else self.bias
        shared = table if self.output is None else None
        return linear_cross_entropy_sum(self(hidden_TD), output_VE, bias_V, targets_T, table=shared)

    def extend(self, size: int, pieces: Mapping[int, Sequence[int]]) -> None:
        """Make room for ``size`` tokens; a new one starts as the mean of the tokens that ``pieces`` names."""
        for name in ("output", "bias"):
            old = getattr(self, name)
            if old is None:
                continue
            rows = old.new_zeros(size, *old.shape[1:])
            rows[: old.shape[0]] = old.detach()
            for place, ids in pieces.items():
                rows[place] = old.detach()[list(ids)].mean(0)
            setattr(self, name, nn.Parameter(rows))

    def _output(self, embeddings_VE: Tensor) -> Tensor:
        return embeddings_VE if self.output is None else self.output


def _config_activation(config: Any) -> str:
    for name in ("hidden_act", "activation", "hidden_activation"):
        value = getattr(config, name, None)
        if isinstance(value, str):
            return value
    return "gelu"
