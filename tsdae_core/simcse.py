"""Unsupervised SimCSE (Gao et al. 2021, arXiv 2104.08821), a rival in the TSDAE paper's tables.

A sentence is encoded twice under different dropout; the two vectors are each other's positive, the second
vectors of all other sentences of the global batch are the negatives. Owns settings and batch; the model is
`simcse_model`'s. Without dropout in the checkpoint there is nothing to learn from but the negatives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tsdae_core.batch import Batch
from tsdae_core.examples import column_batch
from tsdae_core.ragged import Int64s
from tsdae_core.tokens import TokenizedTexts, special_frame

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from tsdae_core.encoder import SentenceEncoder
    from tsdae_core.simcse_model import SimcseModel


@dataclass(frozen=True, kw_only=True)
class SimcseConfig:
    """Choices of unsupervised SimCSE.

    Attributes:
        temperature: divides the cosine.
        head: put a linear layer and tanh on the vector while training, as the authors do; the encoder is
            saved without it.

    Raises:
        ValueError: for a temperature that is not positive.
    """

    temperature: float = 0.05
    head: bool = True

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature={self.temperature} must be positive; the paper uses 0.05")


class SimcseObjective:
    """Batches and model of SimCSE; holds arrays only, so it pickles into CPU tasks."""

    name = "simcse"
    group_size = 1

    def __init__(self, tokenizer: PreTrainedTokenizerFast, config: SimcseConfig) -> None:
        self.config = config
        self.frame = special_frame(tokenizer)

    def make_batch(self, tokens: TokenizedTexts, row_ids: Int64s, *, seed: int, epoch: int) -> Batch:  # noqa: ARG002
        """Return the framed texts; `examples.column_batch` has the layout."""
        return column_batch(tokens, row_ids, frame=self.frame)

    def num_targets(self, batch: Batch) -> int:
        """Return the number of anchors."""
        return int(batch["row_ids"].shape[0])

    def build_model(self, encoder: SentenceEncoder, *, seed: int) -> SimcseModel:
        """Put the encoder (not a copy) and the training head into one module."""
        from tsdae_core.simcse_model import SimcseModel

        return SimcseModel(encoder, config=self.config, seed=seed)
