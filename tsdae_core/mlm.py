"""Masked language modelling (Devlin et al. 2019), the domain-adaptation baseline of the TSDAE paper.

Owns the settings and which tokens are hidden (keyed like the noise); the model is `mlm_model`'s.

Shapes: T tokens, M hidden tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tsdae_core.batch import Batch
from tsdae_core.hashing import fold_key, keyed_hash, keyed_uniform
from tsdae_core.noise import noise_vocabulary
from tsdae_core.ragged import Int64s, expand_spans
from tsdae_core.tokens import TokenizedTexts, special_frame

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from tsdae_core.encoder import SentenceEncoder
    from tsdae_core.mlm_model import MlmModel


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
        unit = units_of(tokens, whole_word=self.config.whole_word)
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
        from tsdae_core.mlm_model import MlmModel

        return MlmModel(encoder, seed=seed)


def units_of(tokens: TokenizedTexts, *, whole_word: bool) -> Int64s:
    """Return int64[T], each token's 0-based number in its row, or with ``whole_word`` that of its word."""
    lengths = tokens.ids.lengths
    if not whole_word:
        return expand_spans(np.zeros_like(lengths), lengths)
    word = np.cumsum(tokens.word_starts, dtype=np.int64)
    first = np.zeros(len(tokens), dtype=np.int64)
    filled = lengths > 0
    first[filled] = word[tokens.ids.offsets[:-1][filled]]
    return word - np.repeat(first, lengths)
