"""The language-model head: the checkpoint's own pretrained one where it exists, tied to the embeddings.

Owns the head's parameters, where each family of checkpoints keeps them, and the loss over real targets.
The output matrix is the backbone's token embedding, passed in at every call, so it is never copied.

Shapes: T targets, D width, E embedding width, V vocabulary.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM
from transformers.activations import ACT2FN
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from tsdae_core.backbone import backbone_config, backbone_of, family_named, norm_eps, word_embeddings
from tsdae_core.lm_loss import linear_cross_entropy_sum

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HeadNames:
    """Where a family's MaskedLM class keeps its head, and its activation (None: the one in the config)."""

    dense: str
    norm: str
    bias: str
    activation: str | None = None


_BERT_HEAD = HeadNames(
    "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"
)
_ROBERTA_HEAD = HeadNames("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "gelu")

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
}


_HALF_CLASSES = {"t5": "T5EncoderModel", "bart": "BartModel"}


class LmHead(nn.Module):
    """Dense, activation, LayerNorm, and a bias per vocabulary entry."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        config = backbone_config(backbone)
        table = word_embeddings(backbone)
        names = HEAD_NAMES.get(str(config.model_type))
        self.dense = nn.Linear(
            int(config.hidden_size), table.embedding_dim, bias=bool(getattr(config, "classifier_bias", True))
        )
        activation = names.activation if names is not None else None
        self.activation = ACT2FN[activation or _config_activation(config)]
        norm_bias = bool(getattr(config, "norm_bias", True))
        self.norm = nn.LayerNorm(table.embedding_dim, eps=norm_eps(config), bias=norm_bias)
        self.bias = nn.Parameter(torch.zeros(table.num_embeddings))

    @classmethod
    def for_backbone(cls, backbone: nn.Module, *, seed: int) -> LmHead:
        """Make a fresh head that fits the backbone; its weights depend on ``seed`` alone."""
        head = cls(backbone)
        std = float(getattr(backbone_config(backbone), "initializer_range", 0.02))
        with torch.no_grad():
            head.dense.weight.normal_(0.0, std, generator=torch.Generator().manual_seed(seed))
            if head.dense.bias is not None:
                head.dense.bias.zero_()
        return head

    def forward(self, hidden_TD: Tensor) -> Tensor:
        """Return the states that meet the output matrix, [T, E]."""
        states: Tensor = self.norm(self.activation(self.dense(hidden_TD)))
        return states

    def loss_sum(self, hidden_TD: Tensor, targets_T: Tensor, *, embeddings_VE: Tensor) -> Tensor:
        """Return the cross-entropy summed over T targets (int64 ids), a scalar; logits are never kept."""
        return linear_cross_entropy_sum(self(hidden_TD), embeddings_VE, self.bias, targets_T)


def load_pretrained(path: str) -> tuple[nn.Module, LmHead | None]:
    """Load a backbone in fp32 without pooler, and its pretrained LM head or None.

    Args:
        path: a folder with config.json and weights.

    Raises:
        OSError: from transformers, if the folder holds no model.
        ValueError: for an unsupported backbone or an incomplete checkpoint.
    """
    model_type = str(AutoConfig.from_pretrained(path).model_type)
    kind = family_named(model_type).kind
    names = HEAD_NAMES.get(model_type)
    loader = AutoModelForMaskedLM if kind == "encoder" else AutoModel
    model, info = loader.from_pretrained(path, dtype=torch.float32, output_loading_info=True)
    prefix = {"encoder": f"{model.base_model_prefix}.", "half": "encoder.", "body": ""}[kind]
    backbone: nn.Module = model.base_model if kind == "encoder" else backbone_of(model, model_type)
    lost = [key for key in info["missing_keys"] if key.startswith(prefix)]
    if lost:
        raise ValueError(
            f"{path} lacks backbone weights, for instance {sorted(lost)[0]}; is the checkpoint complete?"
        )
    state = model.state_dict()
    dense = None if names is None else f"{names.dense}.weight"
    if names is None or dense not in state or dense in info["missing_keys"]:
        logger.info("%s has no language-model head; training starts a fresh one", path)
        return backbone, None
    head = LmHead.for_backbone(backbone, seed=0)
    with torch.no_grad():
        head.dense.load_state_dict(model.get_submodule(names.dense).state_dict())
        head.norm.load_state_dict(model.get_submodule(names.norm).state_dict())
        head.bias.copy_(state[names.bias])
    return backbone, head


def masked_lm_state(backbone: nn.Module, head: LmHead | None) -> tuple[dict[str, Tensor], str]:
    """Return the weights under the names of the family's own class, and that class name.

    With a head these are the names of its MaskedLM class, otherwise those of the bare backbone. A family
    whose class has no such head (EuroBERT, RemBERT) is stored without, which is logged.
    """
    config = backbone_config(backbone)
    state: dict[str, Tensor] = dict(backbone.state_dict())
    kind = family_named(str(config.model_type)).kind
    names = HEAD_NAMES.get(str(config.model_type))
    if head is None or names is None:
        if head is not None:
            logger.warning(
                "%s checkpoints cannot hold our language-model head; it is left out", config.model_type
            )
        if kind == "half":
            # As its whole model stores it; the table that both halves share is stored once.
            table = state.pop("embed_tokens.weight")
            state = {f"encoder.{name}": value for name, value in state.items()} | {"shared.weight": table}
            return state, _HALF_CLASSES[str(config.model_type)]
        return state, type(backbone).__name__
    prefix = str(backbone.base_model_prefix)
    state = {f"{prefix}.{name}": value for name, value in state.items()}
    for part, name in ((head.dense, names.dense), (head.norm, names.norm)):
        state |= {f"{name}.{key}": value for key, value in part.state_dict().items()}
    state[names.bias] = head.bias.detach()
    return state, str(MODEL_FOR_MASKED_LM_MAPPING_NAMES[config.model_type])


def _config_activation(config: Any) -> str:
    for name in ("hidden_act", "activation", "hidden_activation"):
        value = getattr(config, name, None)
        if isinstance(value, str):
            return value
    return "gelu"
