"""The model of unsupervised SimCSE: every sentence twice under different dropout.

Shapes: n rows, S width.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from tsdae_core.batch import Batch
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.hashing import fold_key
from tsdae_core.in_batch import InBatchModel, gather_rows
from tsdae_core.ranking import ranking_loss_sum
from tsdae_core.simcse import SimcseConfig


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
        both = self.encoder.embed(
            np.concatenate([ids, ids]),
            np.concatenate([lengths, lengths]),
            views=np.repeat(np.arange(2), lengths.shape[0]),
        )
        pairs: Tensor = self.head(both).unflatten(0, (2, -1)).transpose(0, 1)
        return pairs[: batch["row_ids"].shape[0]]

    def in_batch_loss(self, vectors_nKS: Tensor, batches: Sequence[Batch]) -> Tensor:  # noqa: ARG002
        """Return the ranking loss of first vectors against all second ones."""
        everyone, first_row = gather_rows(vectors_nKS, is_training=self.training)
        return ranking_loss_sum(vectors_nKS, everyone, first_row=first_row, temperature=self.temperature)
