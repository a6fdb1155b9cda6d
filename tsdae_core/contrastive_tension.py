"""Contrastive tension (CT; Carlsson et al. 2021, ICLR), a rival in the TSDAE paper's tables.

Two encoders start identical and drift apart. Of every group of K + 1 sentences the first is the anchor: the
first encoder's vector of the anchor meets the second encoder's vectors of the anchor itself (label 1) and of
the K others (label 0), by dot product and binary cross-entropy. Owns settings, groups and batch; the model is
`contrastive_tension_model`'s. The stream's order is random, so its neighbours are the random negatives of the
paper.

Shapes: n rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tsdae_core.batch import Batch
from tsdae_core.examples import column_batch
from tsdae_core.ragged import Int64s
from tsdae_core.tokens import TokenizedTexts, special_frame

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from tsdae_core.contrastive_tension_model import CtModel
    from tsdae_core.encoder import SentenceEncoder


@dataclass(frozen=True, kw_only=True)
class CtConfig:
    """Choices of CT: ``num_negatives`` per anchor (the paper's K).

    Raises:
        ValueError: if it is less than 1.
    """

    num_negatives: int = 7

    def __post_init__(self) -> None:
        if self.num_negatives < 1:
            raise ValueError(f"num_negatives={self.num_negatives} must be at least 1; the paper uses 7")


class CtObjective:
    """Batches and model of CT; holds arrays only, so it pickles into CPU tasks."""

    name = "ct"

    def __init__(self, tokenizer: PreTrainedTokenizerFast, config: CtConfig) -> None:
        self.config = config
        self.frame = special_frame(tokenizer)
        self.group_size = config.num_negatives + 1

    def make_batch(self, tokens: TokenizedTexts, row_ids: Int64s, *, seed: int, epoch: int) -> Batch:  # noqa: ARG002
        """Return framed texts and ``anchors`` (int64[n]): the row of each row's anchor.

        A last group that is not full has fewer negatives.
        """
        batch = column_batch(tokens, row_ids, frame=self.frame)
        rows = np.arange(len(tokens), dtype=np.int64)
        return batch | {"anchors": rows - rows % self.group_size}

    def num_targets(self, batch: Batch) -> int:
        """Return the number of pairs, one per row."""
        return int(batch["anchors"].shape[0])

    def build_model(self, encoder: SentenceEncoder, *, seed: int) -> CtModel:  # noqa: ARG002
        """Put the encoder (not a copy) and the partner, which starts as its copy, into one module."""
        from tsdae_core.contrastive_tension_model import CtModel

        return CtModel(encoder)
