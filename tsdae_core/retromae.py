"""RetroMAE (Xiao et al. 2022, arXiv 2205.12035): TSDAE's decoder made weak, with both sides masked.

The encoder sees a sentence with few tokens masked and predicts those (MLM); the decoder, of one layer, sees
the sentence with most tokens masked, in both directions, and TSDAE's bottleneck adds the sentence vector.
Owns settings and batch; how the two losses meet is `retromae_model`'s. The paper's basic decoding; its
enhanced decoding (a mask of its own for every position) is not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tsdae_core.batch import Batch
from tsdae_core.choices import BottleneckInit
from tsdae_core.hashing import fold_key
from tsdae_core.mlm import MlmConfig, MlmObjective
from tsdae_core.ragged import Int64s
from tsdae_core.tokens import TokenizedTexts
from tsdae_core.tsdae import Tie, TsdaeConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from tsdae_core.encoder import SentenceEncoder
    from tsdae_core.retromae_model import RetromaeModel


@dataclass(frozen=True, kw_only=True)
class RetromaeConfig:
    """Choices of RetroMAE; the encoder must pool by ``cls``.

    Attributes:
        encoder_mask_prob: share of the tokens masked for the encoder (the paper: 0.15 to 0.3).
        decoder_mask_prob: share of the tokens masked for the decoder (the paper: 0.5 to 0.7).
        num_decoder_layers: the paper's decoder has one.
        tie: as in TSDAE; ``untied`` gives the decoder weights of its own, which start as the encoder's first
            layers.
        bottleneck_init: as in TSDAE.

    Raises:
        ValueError: for a share outside (0, 1).
    """

    encoder_mask_prob: float = 0.3
    decoder_mask_prob: float = 0.5
    num_decoder_layers: int = 1
    tie: Tie = "untied"
    bottleneck_init: BottleneckInit = "random"

    def __post_init__(self) -> None:
        for name in ("encoder_mask_prob", "decoder_mask_prob"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must lie between 0 and 1")
        self.decoder()

    def decoder(self) -> TsdaeConfig:
        """Return what TSDAE's model builds the decoder from; it checks the other values."""
        return TsdaeConfig(
            tie=self.tie,
            num_decoder_layers=self.num_decoder_layers,
            bottleneck_init=self.bottleneck_init,
        )


class RetromaeObjective:
    """Batches and model of RetroMAE; holds arrays only, so it pickles into CPU tasks."""

    name = "retromae"
    group_size = 1

    def __init__(self, tokenizer: PreTrainedTokenizerFast, config: RetromaeConfig) -> None:
        self.config = config
        self.for_encoder = MlmObjective(tokenizer, _all_masked(config.encoder_mask_prob))
        self.for_decoder = MlmObjective(tokenizer, _all_masked(config.decoder_mask_prob))

    def make_batch(self, tokens: TokenizedTexts, row_ids: Int64s, *, seed: int, epoch: int) -> Batch:
        """Return a batch of MLM, and the same sentences with other tokens masked under ``decoder_...``."""
        batch = self.for_encoder.make_batch(tokens, row_ids, seed=seed, epoch=epoch)
        other_seed = fold_key("retromae-decoder", seed)
        other = self.for_decoder.make_batch(tokens, row_ids, seed=other_seed, epoch=epoch)
        return batch | {f"decoder_{name}": value for name, value in other.items() if name != "row_ids"}

    def num_targets(self, batch: Batch) -> int:
        """Return how many tokens are predicted, on both sides together."""
        return int(batch["target_ids"].shape[0]) + int(batch["decoder_target_ids"].shape[0])

    def build_model(self, encoder: SentenceEncoder, *, seed: int) -> RetromaeModel:
        """Put the encoder (not a copy) and the decoder into one module."""
        from tsdae_core.retromae_model import RetromaeModel

        return RetromaeModel(encoder, config=self.config, seed=seed)


def _all_masked(mask_prob: float) -> MlmConfig:
    return MlmConfig(mask_prob=mask_prob, mask_token_share=1.0, random_token_share=0.0)
