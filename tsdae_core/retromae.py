"""RetroMAE (Xiao et al. 2022, arXiv 2205.12035): a decoder so weak that the sentence vector has to help.

The encoder sees a sentence with few words masked and predicts those (MLM). A decoder of one layer rebuilds
the sentence from its vector: by enhanced decoding every token, each from the vector and a random selection of
the other tokens that is its own; by basic decoding the tokens that are masked in what the decoder sees.
Owns settings and batch; the models are `retromae_enhanced`'s and `retromae_model`'s.

Shapes: B sentences, T tokens, L tokens of one sentence, special ones included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tsdae_core.batch import Batch
from tsdae_core.choices import BottleneckInit
from tsdae_core.hashing import fold_key, keyed_uniform
from tsdae_core.mlm import MlmConfig, MlmObjective, units_of
from tsdae_core.ragged import Int64s, Ragged, expand_spans
from tsdae_core.tokens import TokenizedTexts
from tsdae_core.tsdae import Tie, TsdaeConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from tsdae_core.encoder import SentenceEncoder
    from tsdae_core.objective_model import ObjectiveModel

Decoding = Literal["enhanced", "basic"]
_SPECIAL = -1


@dataclass(frozen=True, kw_only=True)
class RetromaeConfig:
    """Choices of RetroMAE; the encoder must pool by ``cls``.

    Attributes:
        decoding: ``enhanced`` (two streams, a mask of its own for every position, every token predicted) or
            ``basic``, both of the paper.
        encoder_mask_prob: share of the words masked for the encoder (the paper: 0.15 to 0.3).
        decoder_mask_prob: share of the words that the decoder does not see (the paper: 0.5 to 0.7).
        whole_word: mask words, on both sides, instead of tokens.
        mask_token_share: of the tokens masked for the encoder, those shown as the mask token.
        random_token_share: of these, those shown as a random token; the rest is shown as it is.
        num_decoder_layers: 1, the paper's, for enhanced decoding; basic decoding takes more.
        tie: ``tied`` decodes by the encoder's own first layer, ``untied`` by a copy of it, ``scratch`` by a
            fresh one. Basic decoding has TSDAE's decoder, whose own weights include the embeddings.
        bottleneck_init: of basic decoding, as in TSDAE.

    Raises:
        ValueError: for a share outside its range, or a setting that the chosen decoding does not have.
    """

    decoding: Decoding = "enhanced"
    encoder_mask_prob: float = 0.3
    decoder_mask_prob: float = 0.5
    whole_word: bool = True
    mask_token_share: float = 0.8
    random_token_share: float = 0.1
    num_decoder_layers: int = 1
    tie: Tie = "untied"
    bottleneck_init: BottleneckInit = "random"

    def __post_init__(self) -> None:
        if self.decoding not in get_args(Decoding):
            raise ValueError(
                f"decoding {self.decoding!r} is unknown; choose one of {', '.join(get_args(Decoding))}"
            )
        for name in ("encoder_mask_prob", "decoder_mask_prob"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must lie between 0 and 1")
        self.decoder()
        self.for_encoder()
        if self.decoding == "enhanced" and (self.num_decoder_layers, self.bottleneck_init) != (1, "random"):
            raise ValueError(
                "decoding enhanced has one layer and no bottleneck module; leave num_decoder_layers and "
                "bottleneck_init out, or use decoding basic"
            )

    def decoder(self) -> TsdaeConfig:
        """Return what TSDAE's model builds the basic decoder from; it checks the other values."""
        return TsdaeConfig(
            tie=self.tie,
            num_decoder_layers=self.num_decoder_layers,
            bottleneck_init=self.bottleneck_init,
        )

    def for_encoder(self) -> MlmConfig:
        """Return how the encoder's side is masked."""
        return MlmConfig(
            mask_prob=self.encoder_mask_prob,
            mask_token_share=self.mask_token_share,
            random_token_share=self.random_token_share,
            whole_word=self.whole_word,
        )

    def for_basic_decoder(self) -> MlmConfig:
        """Return how the basic decoder's side is masked: what it predicts it must not see."""
        return MlmConfig(
            mask_prob=self.decoder_mask_prob,
            mask_token_share=1.0,
            random_token_share=0.0,
            whole_word=self.whole_word,
        )


class RetromaeObjective:
    """Batches and model of RetroMAE; holds arrays only, so it pickles into CPU tasks."""

    name = "retromae"
    group_size = 1

    def __init__(self, tokenizer: PreTrainedTokenizerFast, config: RetromaeConfig) -> None:
        self.config = config
        self.for_encoder = MlmObjective(tokenizer, config.for_encoder())
        self.for_decoder = MlmObjective(tokenizer, config.for_basic_decoder())
        self.frame = self.for_encoder.frame
        if config.decoding == "enhanced" and not self.frame.prefix:
            raise ValueError(
                "decoding enhanced puts the sentence vector in the place of the token that begins a text, "
                "but this tokenizer adds none; use decoding basic"
            )

    def make_batch(self, tokens: TokenizedTexts, row_ids: Int64s, *, seed: int, epoch: int) -> Batch:
        """Return a batch of MLM, and under ``decoder_...`` what the decoder is given of the same sentences.

        By enhanced decoding those are the sentences as they are, all their tokens as targets, and
        ``decoder_seen``: for every sentence L x L bits, packed by `numpy.packbits` one after the other; row i
        has the tokens that the decoder sees when it predicts token i.
        """
        batch = self.for_encoder.make_batch(tokens, row_ids, seed=seed, epoch=epoch)
        if self.config.decoding == "enhanced":
            return batch | self._enhanced(tokens, batch["row_ids"], seed=seed, epoch=epoch)
        other_seed = fold_key("retromae-decoder", seed)
        other = self.for_decoder.make_batch(tokens, row_ids, seed=other_seed, epoch=epoch)
        return batch | {f"decoder_{name}": value for name, value in other.items() if name != "row_ids"}

    def _enhanced(self, tokens: TokenizedTexts, row_ids: Int64s, *, seed: int, epoch: int) -> Batch:
        framed = self.frame.wrap(tokens.ids)
        places = expand_spans(framed.offsets[:-1] + len(self.frame.prefix), tokens.ids.lengths)
        units = np.full(framed.values.shape[0], _SPECIAL, dtype=np.int64)
        units[places] = units_of(tokens, whole_word=self.config.whole_word)
        seen = _seen(
            Ragged(units, framed.lengths),
            row_ids,
            mask_prob=self.config.decoder_mask_prob,
            key=fold_key("retromae-seen", seed, epoch),
        )
        return {
            "decoder_input_ids": framed.values,
            "decoder_lengths": framed.lengths,
            "decoder_target_places": places,
            "decoder_target_ids": framed.values[places],
            "decoder_seen": seen,
        }

    def num_targets(self, batch: Batch) -> int:
        """Return how many tokens are predicted, on both sides together."""
        return int(batch["target_ids"].shape[0]) + int(batch["decoder_target_ids"].shape[0])

    def build_model(self, encoder: SentenceEncoder, *, seed: int) -> ObjectiveModel:
        """Put the encoder (not a copy) and the decoder into one module."""
        from tsdae_core.retromae_enhanced import EnhancedRetromaeModel
        from tsdae_core.retromae_model import RetromaeModel

        if encoder.pooling != "cls":
            raise ValueError(f"retromae needs pooling cls, the encoder pools by {encoder.pooling}")
        if self.config.decoding == "enhanced":
            return EnhancedRetromaeModel(encoder, tie=self.config.tie, seed=seed)
        return RetromaeModel(encoder, config=self.config, seed=seed)


def _seen(units: Ragged, row_ids: Int64s, *, mask_prob: float, key: int) -> NDArray[np.uint8]:
    """Return the bits of `RetromaeObjective.make_batch`.

    A token sees the first place, where the sentence vector stands, the special tokens, and of the other units
    those that it draws, never itself.
    """
    squares = [np.empty(0, dtype=np.bool_)]
    for number, row_id in enumerate(row_ids.tolist()):
        unit_L = units.row(number)
        position_L = np.arange(unit_L.shape[0])
        seen_LL = keyed_uniform(key, row_id, position_L[:, None], unit_L[None, :]) >= mask_prob
        seen_LL |= unit_L == _SPECIAL
        np.fill_diagonal(seen_LL, val=False)
        seen_LL[:, :1] = True
        squares.append(seen_LL.reshape(-1))
    return np.packbits(np.concatenate(squares))
