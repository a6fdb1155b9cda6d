"""Unsupervised SimCSE (Gao et al. 2021, arXiv 2104.08821), a rival in the TSDAE paper's tables.

A sentence is encoded twice under different dropout; the two vectors are each other's positive, the second
vectors of all other sentences of the global batch are the negatives. Owns its batch and model. Without
dropout in the checkpoint there is nothing to learn from but the negatives.

Shapes: n rows, S width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from tsdae_core.batch import Batch
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.examples import column_batch
from tsdae_core.hashing import fold_key
from tsdae_core.in_batch import InBatchModel, gather_rows
from tsdae_core.ragged import Int64s
from tsdae_core.ranking import ranking_loss_sum
from tsdae_core.tokens import TokenizedTexts, special_frame


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
        return SimcseModel(encoder, config=self.config, seed=seed)


class SimcseModel(InBatchModel):
    """Encoder and, while training, its head."""

    def __init__(self, encoder: SentenceEncoder, *, config: SimcseConfig, seed: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.temperature = config.temperature
        self.head: nn.Module = nn.Identity()
        if config.head:
            linear = nn.Linear(encoder.dim, encoder.dim)
            generator = torch.Generator().manual_seed(fold_key("simcse-head", seed) >> 1)
            with torch.no_grad():
                linear.weight.normal_(0.0, 0.02, generator=generator)
                linear.bias.zero_()
            self.head = nn.Sequential(linear, nn.Tanh())
        self.to(encoder.device)

    def vectors(self, batch: Batch) -> Tensor:
        """Return two vectors per row, [n, 2, S]; both passes run as one, which draws dropout per token."""
        ids, lengths = batch["texts_ids"], np.asarray(batch["texts_lengths"], dtype=np.int64)
        both = self.encoder.embed(np.concatenate([ids, ids]), np.concatenate([lengths, lengths]))
        pairs: Tensor = self.head(both).unflatten(0, (2, -1)).transpose(0, 1)
        return pairs[: batch["row_ids"].shape[0]]

    def in_batch_loss(self, vectors_nKS: Tensor, batches: Sequence[Batch]) -> Tensor:  # noqa: ARG002
        """Return the ranking loss of first vectors against all second ones."""
        everyone, first_row = gather_rows(vectors_nKS, is_training=self.training)
        return ranking_loss_sum(vectors_nKS, everyone, first_row=first_row, temperature=self.temperature)
