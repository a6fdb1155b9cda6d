"""Masked language modelling (Devlin et al. 2019), the domain-adaptation baseline of the TSDAE paper.

Owns which tokens are hidden (keyed like the noise) and the model with the loss on hidden tokens only.

Shapes: T tokens, M hidden tokens, D width.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from tsdae_core.backbone import word_embeddings
from tsdae_core.batch import Batch, LossSums, int64_tensor
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.hashing import fold_key, keyed_hash, keyed_uniform
from tsdae_core.lm_head import LmHead
from tsdae_core.noise import noise_vocabulary
from tsdae_core.objective_model import ObjectiveModel
from tsdae_core.packed import fuse_projections, plan_packing, run_packed
from tsdae_core.padded import run_padded
from tsdae_core.ragged import Int64s, expand_spans
from tsdae_core.tokens import TokenizedTexts, special_frame


@dataclass(frozen=True, kw_only=True)
class MlmConfig:
    """Shares in [0, 1]: tokens hidden, and of those shown as the mask token or as a random token.

    Attributes:
        mask_prob: share of the tokens to predict, drawn anew in every epoch.
        mask_token_share: of those, shown as the mask token.
        random_token_share: of those, shown as a random token; the rest is shown as it is.
        whole_word: draw words instead of tokens; all pieces of a drawn word are predicted, each with its own
            choice of what is shown, as in BERT's whole-word models.

    Raises:
        ValueError: for shares outside [0, 1].
    """

    mask_prob: float = 0.15
    mask_token_share: float = 0.8
    random_token_share: float = 0.1
    whole_word: bool = False

    def __post_init__(self) -> None:
        shares = (self.mask_prob, self.mask_token_share, self.random_token_share)
        if min(shares) < 0 or self.mask_prob > 1 or self.mask_token_share + self.random_token_share > 1:
            raise ValueError(f"MLM shares {shares} must lie in [0, 1], the last two adding up to at most 1")


class MlmObjective:
    """Batches and model of MLM; holds arrays only, so it pickles into CPU tasks."""

    name = "mlm"
    group_size = 1

    def __init__(self, tokenizer: PreTrainedTokenizerFast, config: MlmConfig) -> None:
        self.config = config
        self.frame = special_frame(tokenizer)
        self.vocab = noise_vocabulary(tokenizer)
        if self.vocab.mask_id is None:
            raise ValueError("MLM needs a tokenizer with a mask token; use the tsdae objective instead")

    def make_batch(self, tokens: TokenizedTexts, row_ids: Int64s, *, seed: int, epoch: int) -> Batch:
        """Return ``row_ids``, ``input_ids`` (int32), ``lengths``, ``target_places`` and ``target_ids`` [M].

        ``target_places`` (int64) index ``input_ids``. Every non-empty text has at least one target.
        """
        framed = self.frame.wrap(tokens.ids)
        lengths = tokens.ids.lengths
        row = np.repeat(np.arange(len(tokens), dtype=np.int64), lengths)
        position = expand_spans(np.zeros_like(lengths), lengths)
        places = expand_spans(framed.offsets[:-1] + len(self.frame.prefix), lengths)
        keys = np.asarray(row_ids, dtype=np.int64)[row]
        unit = _word_positions(tokens, row) if self.config.whole_word else position
        uniform = keyed_uniform(fold_key("mlm-choice", seed, epoch), keys, unit)
        lowest = np.full(len(tokens), 2.0)
        np.minimum.at(lowest, row, uniform)
        chosen = (uniform < self.config.mask_prob) | (uniform == lowest[row])
        places = places[chosen]
        shown = keyed_uniform(fold_key("mlm-shown", seed, epoch), keys[chosen], position[chosen])
        pick = keyed_hash(fold_key("mlm-random", seed, epoch), keys[chosen], position[chosen])
        input_ids, targets = framed.values.copy(), framed.values[places]
        masked = shown < self.config.mask_token_share
        random = ~masked & (shown < self.config.mask_token_share + self.config.random_token_share)
        input_ids[places[masked]] = self.vocab.mask_id
        size = np.uint64(self.vocab.random_ids.shape[0])
        input_ids[places[random]] = self.vocab.random_ids[(pick[random] % size).astype(np.int64)]
        return {
            "row_ids": np.asarray(row_ids, dtype=np.int64),
            "input_ids": input_ids,
            "lengths": framed.lengths,
            "target_places": places,
            "target_ids": targets,
        }

    def num_targets(self, batch: Batch) -> int:
        """Return how many tokens are predicted."""
        return int(batch["target_ids"].shape[0])

    def build_model(self, encoder: SentenceEncoder, *, seed: int) -> MlmModel:
        """Put the encoder's backbone (not a copy) and the LM head into one trainable module."""
        return MlmModel(encoder, seed=seed)


def _word_positions(tokens: TokenizedTexts, row: Int64s) -> Int64s:
    """Return for each token the 0-based number of its word in its row, int64[T]."""
    word = np.cumsum(tokens.word_starts, dtype=np.int64)
    first = np.zeros(len(tokens), dtype=np.int64)
    filled = tokens.ids.lengths > 0
    first[filled] = word[tokens.ids.offsets[:-1][filled]]
    return word - first[row]


class MlmModel(ObjectiveModel):
    """Backbone and LM head; pooling and what follows it take no part."""

    def __init__(self, encoder: SentenceEncoder, *, seed: int) -> None:
        super().__init__()
        self.backbone = encoder.backbone
        self.use_packed, self.causal = encoder.use_packed, encoder.attention == "causal"
        head = copy.deepcopy(encoder.lm_head)
        self.lm_head = head or LmHead.for_backbone(self.backbone, seed=fold_key("lm_head", seed) >> 1)
        self.to(encoder.device, word_embeddings(self.backbone).weight.dtype)

    def forward(self, batch: Batch) -> LossSums:
        """Return the loss summed over hidden tokens, and their number."""
        table = word_embeddings(self.backbone)
        targets_M = int64_tensor(batch["target_ids"], table.weight.device)
        hidden_MD = states_at(
            self.backbone,
            batch["input_ids"],
            batch["lengths"],
            batch["target_places"],
            use_packed=self.use_packed,
            causal=self.causal,
        )
        return LossSums(
            self.lm_head.loss_sum(hidden_MD, targets_M, embeddings_VE=table.weight), int(targets_M.shape[0])
        )


def states_at(
    backbone: nn.Module,
    input_ids: NDArray[Any],
    lengths: Int64s,
    places: Int64s,
    *,
    use_packed: bool,
    causal: bool,
) -> Tensor:
    """Return the last hidden states [M, D] of the tokens at ``places`` (int64[M], into ``input_ids``)."""
    device = word_embeddings(backbone).weight.device
    lengths, places = np.asarray(lengths, dtype=np.int64), np.asarray(places)
    if not use_packed:
        ids_T, lengths_B = int64_tensor(input_ids, device), int64_tensor(lengths, device)
        hidden_TD = run_padded(backbone, ids_T, lengths_B, causal=causal)
        return hidden_TD.index_select(0, int64_tensor(places, device))
    plan = plan_packing(lengths, device=device)
    packed_place = np.empty_like(plan.token_order)
    packed_place[plan.token_order] = np.arange(plan.token_order.shape[0])
    return run_packed(
        backbone,
        int64_tensor(input_ids[plan.token_order], device),
        plan,
        causal=False,
        fused=fuse_projections(backbone),
        keep=torch.from_numpy(packed_place[places]).to(device),
    )
