"""The Transformer under the encoder: the families that are supported and where their parts are.

Owns which parts of a Hugging Face model we touch, per family. Knows nothing of masks, pooling, decoders or
losses; the two ways to run a backbone are in packed.py and padded.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn
from transformers import AutoModel

# Called as add_vector(layer_index, states [rows, width]) after each self-attention block; returns new states.
AddVector = Callable[[int, Tensor], Tensor]

_RECOMPUTE = "tsdae_recomputes_layers"


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
        mask_dims: 4 when the backbone takes the causal mask as it is; 3 for DeBERTa, which multiplies its
            embeddings by the mask, so that embeddings and encoder are called one after the other.
        kind: ``encoder`` for a model of its own, ``half`` for the encoder half of an encoder-decoder (T5,
            BART), ``body`` for a decoder-only body, which can encode in both directions or in its own.
        autocast: False where the backbone's own code fails under bf16 autocast and so runs in fp32 there.
    """

    layers: str
    attention: str
    post_norm: bool = True
    positions: Literal["zero", "pad", "own"] = "zero"
    packed: bool = False
    mask_dims: int = 4
    kind: Literal["encoder", "half", "body"] = "encoder"
    autocast: bool = True


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
    "albert": Family("encoder.albert_layer_groups", "attention", positions="own"),
    "megatron-bert": Family("encoder.layer", "attention", post_norm=False),
    "rembert": Family("encoder.layer", "attention"),
    "roformer": Family("encoder.layer", "attention", positions="own"),
    "nomic_bert": Family("layers", "post_attention_layernorm", positions="own"),
    "jina_embeddings_v3": Family("layers", "post_attention_layernorm", positions="own"),
    "modernbert": Family("layers", "attn", post_norm=False, positions="own"),
    "eurobert": Family("layers", "self_attn", post_norm=False, positions="own"),
    "deberta": Family("encoder.layer", "attention", positions="own", mask_dims=3, autocast=False),
    "deberta-v2": Family("encoder.layer", "attention", positions="own", mask_dims=3),
    "t5": Family("block", "layer.0", post_norm=False, positions="own", kind="half"),
    "bart": Family("layers", "self_attn_layer_norm", positions="own", kind="half"),
    "llama": Family("layers", "self_attn", post_norm=False, kind="body"),
    "qwen3": Family("layers", "self_attn", post_norm=False, kind="body"),
}

# Why a family is refused, measured by changing a later token and looking at earlier decoder states.
REFUSED: dict[str, str] = {
    "convbert": "its convolutions see later tokens even under a causal mask",
    "nystromformer": "its attention approximation sees later tokens even under a causal mask",
    "fnet": "it mixes all tokens with a Fourier transform and takes no mask",
    "mobilebert": "it sees later tokens even under a causal mask",
    "longformer": "it does not take a 4-D attention mask",
    "xlm": "it does not take a 4-D attention mask",
}


def family_of(backbone: nn.Module) -> Family:
    """Return the family of a backbone.

    Raises:
        ValueError: if its model type is not in `FAMILIES`.
    """
    return family_named(str(backbone_config(backbone).model_type))


def family_named(model_type: str) -> Family:
    """Return the family of a ``model_type``, as in config.json.

    Raises:
        ValueError: if it is not supported, with the reason where one is known.
    """
    if model_type not in FAMILIES:
        reason = REFUSED.get(model_type, "nobody has checked it yet")
        raise ValueError(
            f"backbone type {model_type!r} is not supported: {reason}; choose one of {', '.join(FAMILIES)}"
        )
    return FAMILIES[model_type]


def backbone_config(backbone: nn.Module) -> Any:
    """Return the Hugging Face configuration (untyped there, so untyped here)."""
    return backbone.config


def new_backbone(config: Any) -> nn.Module:
    """Return a freshly initialised backbone without pooler; the weights come from torch's generator."""
    model: nn.Module = AutoModel.from_config(copy.deepcopy(config))
    return backbone_of(model, str(config.model_type))


def backbone_of(model: nn.Module, model_type: str) -> nn.Module:
    """Return what we run of a model, without head or pooler, of an encoder-decoder the encoder."""
    kind = family_named(model_type).kind
    if kind == "half":
        encoder: nn.Module = model.get_encoder()  # type: ignore[operator]
        return encoder
    backbone = model.base_model
    assert isinstance(backbone, nn.Module)
    if getattr(backbone, "pooler", None) is not None:
        setattr(backbone, "pooler", None)  # noqa: B010
    if kind == "body":
        backbone_config(backbone).use_cache = False
    return backbone


def norm_eps(config: Any) -> float:
    """Return the epsilon of the backbone's own norms."""
    for name in ("layer_norm_eps", "norm_eps", "rms_norm_eps", "layer_norm_epsilon"):
        value = getattr(config, name, None)
        if isinstance(value, float):
            return value
    return 1e-12


def layers_of(backbone: nn.Module) -> list[nn.Module]:
    """Return the Transformer layers in the order of their calls; a shared layer appears again and again."""
    layers = backbone.get_submodule(family_of(backbone).layers)
    assert isinstance(layers, nn.ModuleList)
    config = backbone_config(backbone)
    if config.model_type != "albert":
        return list(layers)
    # ALBERT calls a group of layers several times: list the layers as they are called.
    called = []
    for index in range(int(config.num_hidden_layers)):
        group = layers[index * len(layers) // int(config.num_hidden_layers)]
        called += list(group.get_submodule("albert_layers").children())
    return called


def keep_first_layers(backbone: nn.Module, num_layers: int) -> None:
    """Cut the backbone in place to its first layers.

    Raises:
        ValueError: if it has fewer layers.
    """
    check_num_layers(backbone, num_layers)
    config = backbone_config(backbone)
    if config.model_type != "albert":
        parent, _, name = family_of(backbone).layers.rpartition(".")
        setattr(backbone.get_submodule(parent), name, nn.ModuleList(layers_of(backbone)[:num_layers]))
    config.num_hidden_layers = num_layers


def check_num_layers(backbone: nn.Module, num_layers: int) -> None:
    """Check that the backbone can run its first ``num_layers`` layers alone.

    Raises:
        ValueError: if it has fewer, or its layers cannot be counted off.
    """
    total = len(layers_of(backbone))
    if not 1 <= num_layers <= total:
        raise ValueError(f"the decoder can have 1 to {total} layers, not {num_layers}")
    if num_layers < total and getattr(backbone_config(backbone), "num_hidden_groups", 1) > 1:
        raise ValueError("this ALBERT has several groups of layers; its decoder needs all of them")


@contextmanager
def first_layers(backbone: nn.Module, num_layers: int) -> Iterator[None]:
    """Let the backbone's own forward run its first layers only, for as long as the context lasts."""
    config, family = backbone_config(backbone), family_of(backbone)
    total = int(config.num_hidden_layers)
    if num_layers == total:
        yield
        return
    parent, _, name = family.layers.rpartition(".")
    owner, layers = backbone.get_submodule(parent), backbone.get_submodule(family.layers)
    keep_first_layers(backbone, num_layers)
    try:
        yield
    finally:
        setattr(owner, name, layers)
        config.num_hidden_layers = total


def window_reach(backbone: nn.Module) -> int | None:
    """Return how far from itself a token sees in layers with a sliding window; None without such layers."""
    config = backbone_config(backbone)
    if "sliding_attention" not in (getattr(config, "layer_types", None) or ()):
        return None
    # Decoder-only families count the tokens seen, the query's own included; ModernBERT counts the distance.
    return int(config.sliding_window) - int(family_of(backbone).kind == "body")


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


def recompute_layers(backbone: nn.Module) -> None:
    """Have every layer computed again in the backward pass, on the packed and the general path."""
    setattr(backbone, _RECOMPUTE, True)


def recomputes_layers(backbone: nn.Module) -> bool:
    """Tell whether `recompute_layers` was called for this backbone (or the one it is a copy of)."""
    return bool(getattr(backbone, _RECOMPUTE, False))
