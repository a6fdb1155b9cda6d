"""Where checkpoints keep their backbone and language-model head: reading published ones, writing ours.

Owns the names of each family's classes. A head of BERT's shape is written under the names of the family's
MaskedLM class, so that other programs find it; any other one goes into a file of its own beside the model.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from tsdae_core.backbone import backbone_config, backbone_of, family_named, word_embeddings
from tsdae_core.lm_head import LmHead

logger = logging.getLogger(__name__)

HEAD_FILE = "lm_head.safetensors"


@dataclass(frozen=True)
class HeadNames:
    """Where a family's language-model class keeps its head.

    Attributes:
        dense: of the transform; None where states meet the output matrix as they are.
        norm: of the transform.
        bias: None where there is none.
        activation: of the transform; None for the one in the config.
        storable: False where the class cannot hold a head that is tied to the embeddings.
    """

    dense: str | None = None
    norm: str | None = None
    bias: str | None = None
    activation: str | None = None
    storable: bool = True


_BERT_HEAD = HeadNames(
    "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"
)
_ROBERTA_HEAD = HeadNames("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "gelu")
_MATRIX = HeadNames(storable=False)

HEAD_NAMES: dict[str, HeadNames] = {
    "bert": _BERT_HEAD,
    "ernie": _BERT_HEAD,
    "roberta": _ROBERTA_HEAD,
    "xlm-roberta": _ROBERTA_HEAD,
    "camembert": _ROBERTA_HEAD,
    "data2vec-text": _ROBERTA_HEAD,
    "mpnet": _ROBERTA_HEAD,
    "distilbert": HeadNames("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
    "megatron-bert": _BERT_HEAD,
    "roformer": _BERT_HEAD,
    "deberta": _BERT_HEAD,
    "deberta-v2": _BERT_HEAD,
    "jina_embeddings_v3": _ROBERTA_HEAD,
    "nomic_bert": HeadNames(
        "cls.predictions.transform.dense", "cls.predictions.transform.layer_norm", "cls.predictions.bias"
    ),
    "albert": HeadNames("predictions.dense", "predictions.LayerNorm", "predictions.bias"),
    "modernbert": HeadNames("head.dense", "head.norm", "decoder.bias"),
    "electra": HeadNames(
        "generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head.bias", "gelu"
    ),
    "rembert": HeadNames(
        "cls.predictions.dense",
        "cls.predictions.LayerNorm",
        "cls.predictions.decoder.bias",
        storable=False,
    ),
    "eurobert": HeadNames(bias="lm_head.bias", storable=False),
    "t5": _MATRIX,
    "bart": HeadNames(bias="final_logits_bias", storable=False),
    "llama": _MATRIX,
    "qwen3": _MATRIX,
}

_HALF_CLASSES = {"t5": "T5EncoderModel", "bart": "BartModel"}
_LM_CLASSES: dict[str, Any] = {
    "encoder": AutoModelForMaskedLM,
    "half": AutoModelForSeq2SeqLM,
    "body": AutoModelForCausalLM,
}


def load_pretrained(path: str) -> tuple[nn.Module, LmHead | None]:
    """Load a backbone in fp32 without pooler, and its language-model head or None (logged).

    Args:
        path: a folder with config.json and weights.

    Raises:
        OSError: from transformers, if the folder holds no model.
        ValueError: for an unsupported backbone or an incomplete checkpoint.
    """
    model_type = str(AutoConfig.from_pretrained(path).model_type)
    kind = family_named(model_type).kind
    ours = Path(path) / HEAD_FILE
    loader = AutoModel if ours.is_file() and kind != "encoder" else _LM_CLASSES[kind]
    model, info = loader.from_pretrained(path, dtype=torch.float32, output_loading_info=True)
    backbone = backbone_of(model, model_type)
    prefix = _prefix_in(model, backbone)
    lost = [key for key in info["missing_keys"] if key.startswith(prefix)]
    if lost:
        raise ValueError(
            f"{path} lacks backbone weights, for instance {sorted(lost)[0]}; is the checkpoint complete?"
        )
    head = _read_head(ours, backbone) if ours.is_file() else _own_head(model, backbone, info["missing_keys"])
    if head is None:
        logger.info("%s has no language-model head; training starts a fresh one", path)
    return backbone, head


def is_trained_for_language(path: str | Path, head: LmHead | None) -> bool:
    """Tell whether a folder was left by language-model training (ours too) and not by tuning on pairs.

    A head that is no more than the token embeddings proves nothing: every checkpoint has it.
    """
    return (Path(path) / HEAD_FILE).is_file() or (head is not None and head.dense is not None)


def masked_lm_state(backbone: nn.Module, head: LmHead | None) -> tuple[dict[str, Tensor], str]:
    """Return the weights under the names of the family's own class, and that class name.

    With a head that fits it is the MaskedLM class, otherwise that of the bare backbone.
    """
    config = backbone_config(backbone)
    model_type = str(config.model_type)
    state: dict[str, Tensor] = dict(backbone.state_dict())
    if head is None or not fits_class(backbone, head):
        if family_named(model_type).kind != "half":
            return state, type(backbone).__name__
        # As its whole model stores it; the table that both halves share is stored once.
        table = state.pop("embed_tokens.weight")
        state = {f"encoder.{name}": value for name, value in state.items()} | {"shared.weight": table}
        return state, _HALF_CLASSES[model_type]
    names = HEAD_NAMES[model_type]
    prefix = str(backbone.base_model_prefix)
    state = {f"{prefix}.{name}": value for name, value in state.items()}
    for part, name in ((head.dense, names.dense), (head.norm, names.norm)):
        assert part is not None
        state |= {f"{name}.{key}": value for key, value in part.state_dict().items()}
    assert head.bias is not None
    state[str(names.bias)] = head.bias.detach()
    return state, str(MODEL_FOR_MASKED_LM_MAPPING_NAMES[model_type])


def fits_class(backbone: nn.Module, head: LmHead) -> bool:
    """Tell whether the family's MaskedLM class can hold the head."""
    has_parts = head.dense is not None and head.norm is not None and head.bias is not None
    return has_parts and head.output is None and HEAD_NAMES[_model_type(backbone)].storable


def write_head(path: Path, head: LmHead) -> None:
    """Write a head into a file of its own."""
    about = {"activation": head.activation, "scale": head.scale, "eps": getattr(head.norm, "eps", 0.0)}
    tensors = {name: value.detach().cpu().contiguous() for name, value in head.state_dict().items()}
    if not tensors:
        tensors = {"nothing": torch.zeros(1)}  # the file says that the embeddings are the whole head
    save_file(tensors, path, metadata={"head": json.dumps(about, sort_keys=True)})


def _read_head(path: Path, backbone: nn.Module) -> LmHead:
    with safe_open(str(path), framework="pt") as file:
        about = json.loads(file.metadata()["head"])
        tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
    dense = norm = None
    if (weight := tensors.get("dense.weight")) is not None:
        dense = nn.Linear(weight.shape[1], weight.shape[0], bias="dense.bias" in tensors)
    if (weight := tensors.get("norm.weight")) is not None:
        norm = nn.LayerNorm(weight.shape[0], eps=about["eps"], bias="norm.bias" in tensors)
    head = LmHead(
        dense=dense,
        norm=norm,
        activation=about["activation"],
        output=tensors.get("output"),
        bias=tensors.get("bias"),
        scale=float(about["scale"]),
    )
    head.load_state_dict({name: value for name, value in tensors.items() if name != "nothing"})
    _check_size(head, backbone, str(path))
    return head


def _own_head(model: Any, backbone: nn.Module, missing: list[str]) -> LmHead | None:
    """Return the head of a published checkpoint, or None where it was not among its weights."""
    names, config = HEAD_NAMES[_model_type(backbone)], backbone_config(backbone)
    last = model.get_output_embeddings()
    output: Tensor = last.weight
    output_name = next((name for name, value in model.named_parameters() if value is output), None)
    is_tied = output.data_ptr() == word_embeddings(backbone).weight.data_ptr()
    needed = [f"{names.dense}.weight"] if names.dense is not None else []
    if not is_tied and names.dense is None:
        needed.append(str(output_name))
    if any(name in missing for name in needed):
        return None
    has_output = not is_tied and output_name not in missing
    bias = model.state_dict().get(names.bias) if last.bias is None else last.bias
    scale = config.d_model**-0.5 if getattr(config, "scale_decoder_outputs", False) else 1.0
    fresh = LmHead.for_backbone(backbone, seed=0, activation=names.activation)
    return LmHead(
        dense=None if names.dense is None else model.get_submodule(names.dense),
        norm=None if names.norm is None else model.get_submodule(names.norm),
        activation=fresh.activation,
        output=output.detach().clone() if has_output else None,
        bias=None if bias is None else bias.detach().reshape(-1).clone(),
        scale=scale,
    )


def _check_size(head: LmHead, backbone: nn.Module, path: str) -> None:
    num_tokens = word_embeddings(backbone).num_embeddings
    for rows in (head.output, head.bias):
        if rows is not None and rows.shape[0] != num_tokens:
            raise ValueError(f"{path} is for {rows.shape[0]} tokens, the backbone has {num_tokens}")


def _prefix_in(model: nn.Module, backbone: nn.Module) -> str:
    """Return what comes before the backbone's own names in the names of the whole model."""
    found = next(name for name, module in model.named_modules() if module is backbone)
    return f"{found}." if found else ""


def _model_type(backbone: nn.Module) -> str:
    return str(backbone_config(backbone).model_type)
