"""A whole encoder that starts as latent semantic analysis (Deerwester et al. 1990), before any training.

From random weights, minutes of training make a sentence encoder worse before it gets better. Here it starts
as one: token embeddings are semantic factors of one length, attention averages, and the LM head reads
embeddings. Owns those initial weights. Knows nothing of objectives.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedTokenizerFast

from tsdae_core.backbone import layers_of, word_embeddings
from tsdae_core.lm_head import LmHead
from tsdae_core.tokens import special_frame, tokenize_texts

# Found by trial (docs/log.md): rows long enough to stand out from positions, which drown them otherwise.
_ROW_LENGTH = 1.6
_POSITION_SCALE = 0.2
_FEED_FORWARD_SCALE = 0.3
_HEAD_SCALE = 0.5


def start_as_lsa(backbone: nn.Module, factors: NDArray[np.float32]) -> None:
    """Set the weights of a BERT in place so that [CLS] is a repeated mean of the tokens' factors.

    Args:
        backbone: freshly initialised, BERT-shaped, its heads as wide as the model together.
        factors: float32[V, D], a row of zeros where nothing is known of a token.
    """
    norms = np.linalg.norm(factors, axis=1, keepdims=True)
    known = torch.from_numpy(np.flatnonzero(norms[:, 0] > 0))
    rows = torch.from_numpy((factors / np.maximum(norms, 1e-9) * _ROW_LENGTH).astype(np.float32))
    table = word_embeddings(backbone).weight
    with torch.no_grad():
        table.mul_(_ROW_LENGTH / table.norm(dim=1).mean())
        table[known] = rows[known]
        for name in ("position_embeddings", "token_type_embeddings"):
            _weight(backbone, f"embeddings.{name}").mul_(_POSITION_SCALE)
        for layer in layers_of(backbone):
            nn.init.eye_(_weight(layer, "attention.self.value"))
            nn.init.eye_(_weight(layer, "attention.output.dense"))
            _weight(layer, "output.dense").mul_(_FEED_FORWARD_SCALE)


def lsa_head(
    backbone: nn.Module, texts: Sequence[str], tokenizer: PreTrainedTokenizerFast, *, max_tokens: int
) -> LmHead:
    """Make an LM head that reads states as embeddings: dense is the identity, the bias the log frequency."""
    tokens = tokenize_texts(texts, tokenizer, max_tokens=max_tokens)
    seen = special_frame(tokenizer).wrap(tokens.ids).values
    counts = np.bincount(seen, minlength=word_embeddings(backbone).num_embeddings) + 1.0
    head = LmHead.for_backbone(backbone, seed=0)
    with torch.no_grad():
        nn.init.eye_(_weight(head, "dense"))
        _weight(head, "norm").fill_(_HEAD_SCALE)
        head.get_parameter("bias").copy_(torch.from_numpy(np.log(counts / counts.sum())))
    return head


def _weight(module: nn.Module, path: str) -> torch.Tensor:
    weight = module.get_submodule(path).weight
    assert isinstance(weight, torch.Tensor)
    return weight
