"""The TSDAE objective (arXiv 2104.06979): rebuild a sentence from the vector of its damaged copy.

Owns the settings and the batch layout; the model is `tsdae_model`'s.

Shapes: B sentences.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tsdae_core.batch import Batch, cut_batch
from tsdae_core.choices import BottleneckInit
from tsdae_core.hashing import fold_key, keyed_uniform
from tsdae_core.noise import NoiseConfig, apply_noise, noise_vocabulary
from tsdae_core.ragged import Int64s, Ragged, expand_spans
from tsdae_core.tokens import TokenizedTexts, special_frame

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from tsdae_core.encoder import SentenceEncoder
    from tsdae_core.tsdae_model import TsdaeModel

logger = logging.getLogger(__name__)

_LENGTHS_OF = {
    "source_ids": "source_lengths",
    "target_ids": "target_lengths",
    "decoder_ids": "target_lengths",
}

Tie = Literal["tied", "untied", "scratch"]
LossUnit = Literal["token", "sentence"]


@dataclass(frozen=True, kw_only=True)
class TsdaeConfig:
    """Choices of the TSDAE objective; pooling belongs to the encoder, dropout to its checkpoint.

    Attributes:
        noise: damage done to the encoder's input.
        tie: ``tied`` runs the encoder's own backbone as decoder, ``untied`` a copy of it, ``scratch`` a
            freshly initialised one.
        num_decoder_layers: None for as many as the encoder; fewer (the first ones) make a weaker decoder that
            leans more on the vector. A tied one then runs the encoder's first layers, without a copy.
        decoder_mask_ratio: share of the decoder's input tokens shown as the mask token, which weakens it too
            (RetroMAE, arXiv 2205.12035, masks its decoder's input). Never a special token.
        bottleneck_init: how the modules that add the sentence vector start: ``random``, as in the reference,
            or ``identity``, which adds the vector itself. From random weights the decoder must first learn to
            read the vector, and until then it pulls the encoder away from what it knew; with minutes of
            training instead of the paper's 100,000 steps that is the whole run.
        loss_per: what the summed loss of a step is divided by: its target ``token`` count, or its
            ``sentence`` count, which is the paper's sum over the tokens of a sentence.

    Raises:
        ValueError: for an unknown ``tie`` or ``loss_per``, or a number outside its range.
    """

    noise: NoiseConfig = field(default_factory=NoiseConfig)
    tie: Tie = "tied"
    num_decoder_layers: int | None = None
    decoder_mask_ratio: float = 0.0
    bottleneck_init: BottleneckInit = "random"
    loss_per: LossUnit = "token"

    def __post_init__(self) -> None:
        if self.tie not in get_args(Tie):
            raise ValueError(f"tie {self.tie!r} is unknown; choose one of {', '.join(get_args(Tie))}")
        if self.bottleneck_init not in get_args(BottleneckInit):
            raise ValueError(
                f"bottleneck_init {self.bottleneck_init!r} is unknown; choose one of "
                f"{', '.join(get_args(BottleneckInit))}"
            )
        if self.loss_per not in get_args(LossUnit):
            raise ValueError(
                f"loss_per {self.loss_per!r} is unknown; choose one of {', '.join(get_args(LossUnit))}"
            )
        if self.num_decoder_layers is not None and self.num_decoder_layers < 1:
            raise ValueError(f"num_decoder_layers={self.num_decoder_layers} must be at least 1")
        if not 0.0 <= self.decoder_mask_ratio < 1.0:
            raise ValueError(f"decoder_mask_ratio={self.decoder_mask_ratio} must lie in [0, 1)")


class TsdaeObjective:
    """Batches and model of TSDAE; holds arrays only, so it pickles into CPU tasks."""

    name = "tsdae"
    group_size = 1

    def __init__(self, tokenizer: PreTrainedTokenizerFast, config: TsdaeConfig) -> None:
        self.config = config
        self.frame = special_frame(tokenizer)
        self.vocab = noise_vocabulary(tokenizer)
        if config.decoder_mask_ratio > 0 and self.vocab.mask_id is None:
            raise ValueError("decoder_mask_ratio needs a tokenizer with a mask token; set it to 0")

    def make_batch(self, tokens: TokenizedTexts, row_ids: Int64s, *, seed: int, epoch: int) -> Batch:
        """Return ``row_ids`` [B], ``source_ids`` and ``target_ids`` (int32, framed), and lengths.

        With a decoder mask also ``decoder_ids``: ``target_ids`` as the decoder's input shows them.

        Args:
            tokens: B texts without special tokens.
            row_ids: int64[B], keys of the noise.
            seed: run seed.
            epoch: noise differs between epochs.

        Raises:
            ValueError: if a text is so empty that there is nothing to predict.
        """
        noisy = apply_noise(
            tokens, row_ids, seed=seed, epoch=epoch, config=self.config.noise, vocab=self.vocab
        )
        source, target = self.frame.wrap(noisy), self.frame.wrap(tokens.ids)
        if len(tokens) and int(target.lengths.min()) < 2:
            raise ValueError("a text has no token to predict; drop empty texts before training")
        batch: Batch = {
            "row_ids": np.asarray(row_ids, dtype=np.int64),
            "source_ids": source.values,
            "source_lengths": source.lengths,
            "target_ids": target.values,
            "target_lengths": target.lengths,
        }
        if self.config.decoder_mask_ratio > 0:
            batch["decoder_ids"] = self._masked(target, batch["row_ids"], seed=seed, epoch=epoch)
        return batch

    def make_batches(
        self, tokens: TokenizedTexts, row_ids: Int64s, bounds: Int64s, *, seed: int, epoch: int
    ) -> list[Batch]:
        """Return `make_batch` of the rows [bounds[i], bounds[i + 1]) for each i; made as one, then cut."""
        whole = self.make_batch(tokens, row_ids, seed=seed, epoch=epoch)
        return cut_batch(whole, bounds, lengths_of={k: v for k, v in _LENGTHS_OF.items() if k in whole})

    def _masked(self, target: Ragged, row_ids: Int64s, *, seed: int, epoch: int) -> NDArray[np.int32]:
        assert self.vocab.mask_id is not None
        lengths = target.lengths - len(self.frame)
        places = expand_spans(target.offsets[:-1] + len(self.frame.prefix), lengths)
        position = expand_spans(np.zeros_like(lengths), lengths)
        key = fold_key("decoder-mask", seed, epoch)
        hidden = keyed_uniform(key, np.repeat(row_ids, lengths), position) < self.config.decoder_mask_ratio
        if not self.frame.prefix:
            hidden &= position > 0  # nothing else tells the decoder where a sentence begins
        ids = target.values.astype(np.int32)
        ids[places[hidden]] = self.vocab.mask_id
        return ids

    def num_targets(self, batch: Batch) -> int:
        """Return what the summed loss is divided by: all tokens of a target but its first, or sentences."""
        return count_targets(batch["target_lengths"], self.config.loss_per)

    def build_model(self, encoder: SentenceEncoder, *, seed: int) -> TsdaeModel:
        """Put the encoder (not a copy) and the decoder's own modules into one trainable module."""
        from tsdae_core.tsdae_model import TsdaeModel

        if encoder.is_tuned:
            logger.warning(
                "the start model is a tuned sentence encoder, where TSDAE works badly; start from a plain "
                "checkpoint, train TSDAE on the target texts first, then NLI and STS"
            )
        return TsdaeModel(encoder, config=self.config, seed=seed)


def count_targets(target_lengths: Int64s, loss_per: LossUnit) -> int:
    """Return all tokens of the targets but the first of each, or the number of targets (`loss_per`)."""
    num_sentences = int(target_lengths.shape[0])
    return num_sentences if loss_per == "sentence" else int(target_lengths.sum()) - num_sentences
