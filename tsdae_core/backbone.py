"""The Transformer under the encoder: loading it, and the general (padded) way to run it.

Owns which parts of a Hugging Face model we touch, per family, and the call with a bidirectional or a causal
4-D additive mask. Knows nothing of pooling, decoders or losses.

Shapes: B sentences, L padded length, T real tokens of all sentences, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Family:
    """Where the parts of a layer are in one family of backbones.

    Attributes:
        layers: dotted path from the backbone to its list of layers.
        attention: dotted path from a layer to the module whose output is the finished self-attention block.
        post_norm: True when that output is already added to the residual stream and normalised.
        positions: ``zero`` for 0, 1, 2 ..., ``pad`` for the RoBERTa rule (first position is pad id + 1),
            ``own`` when the backbone takes no position ids.
        packed: True when the layer has BERT's shape, so that the packed path applies.
    """

    layers: str
    attention: str
    post_norm: bool = True
    positions: Literal["zero", "pad", "own"] = "zero"
    packed: bool = False


_BERT = Family("encoder.layer", "attention", packed=True)
_ROBERTA = Family("encoder.layer", "attention", positions="pad", packed=True)

FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "electra": _BERT,
    "ernie": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "data2vec-text": _ROBERTA,
    "distilbert": Family("transformer.layer", "sa_layer_norm", positions="own"),
    "mpnet": Family("encoder.layer", "attention", positions="pad"),
}


def family_of(backbone: nn.Module) -> Family:
    """Return the family of a backbone.

    Raises:
        ValueError: if its model type is not in `FAMILIES`.
    """
    model_type = str(backbone_config(backbone).model_type)
    if model_type not in FAMILIES:
        raise ValueError(
            f"backbone type {model_type!r} is not supported yet; choose one of {', '.join(FAMILIES)}"
        )
    return FAMILIES[model_type]


def backbone_config(backbone: nn.Module) -> Any:
    """Return the Hugging Face configuration (untyped there, so untyped here)."""
    return backbone.config


def layers_of(backbone: nn.Module) -> list[nn.Module]:
    """Return the Transformer layers in order."""
    layers = backbone.get_submodule(family_of(backbone).layers)
    assert isinstance(layers, nn.ModuleList)
    return list(layers)


def word_embeddings(backbone: nn.Module) -> nn.Embedding:
    """Return the token embedding table, which the LM head shares."""
    table = backbone.get_input_embeddings()  # type: ignore[operator]
    assert isinstance(table, nn.Embedding)
    return table


def first_position(backbone: nn.Module) -> int:
    """Return the position id of a sentence's first token."""
    if family_of(backbone).positions != "pad":
        return 0
    return int(backbone_config(backbone).pad_token_id) + 1


def max_positions(backbone: nn.Module) -> int | None:
    """Return how many tokens the position table can number, or None if there is no table."""
    size = getattr(backbone_config(backbone), "max_position_embeddings", None)
    return None if size is None else int(size) - first_position(backbone)


def run_padded(backbone: nn.Module, ids_T: Tensor, lengths_B: Tensor, *, causal: bool) -> Tensor:
    """Run the backbone through its own forward and return the last hidden states of real tokens [T, D].

    Args:
        backbone: a Hugging Face encoder.
        ids_T: int64 token ids, sentence after sentence.
        lengths_B: int64 lengths, none of them zero.
        causal: hide later tokens of the same sentence from earlier ones.
    """
    real_BL = real_mask(lengths_B)
    ids_BL = ids_T.new_zeros(real_BL.shape)
    ids_BL[real_BL] = ids_T
    dtype = word_embeddings(backbone).weight.dtype
    inputs: dict[str, Tensor] = {
        "input_ids": ids_BL,
        "attention_mask": additive_mask(real_BL, causal=causal, dtype=dtype),
    }
    if family_of(backbone).positions != "own":
        positions_L = torch.arange(real_BL.shape[1], device=ids_T.device) + first_position(backbone)
        inputs["position_ids"] = positions_L.expand(real_BL.shape)
    hidden_BLD: Tensor = backbone(**inputs).last_hidden_state
    return hidden_BLD[real_BL]


def real_mask(lengths_B: Tensor) -> Tensor:
    """Return bool[B, L], True on real tokens of right-padded rows."""
    return torch.arange(int(lengths_B.max()), device=lengths_B.device) < lengths_B[:, None]


def additive_mask(real_BL: Tensor, *, causal: bool, dtype: torch.dtype) -> Tensor:
    """Return [B, 1, L, L] with 0 where a query may look at a key and the lowest number elsewhere."""
    length = real_BL.shape[1]
    seen = real_BL[:, None, None, :].expand(-1, 1, length, length)
    if causal:
        seen = seen & torch.ones(length, length, dtype=torch.bool, device=real_BL.device).tril()
    return torch.zeros(seen.shape, dtype=dtype, device=real_BL.device).masked_fill_(
        ~seen, torch.finfo(dtype).min
    )
