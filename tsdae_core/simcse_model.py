"""The model of unsupervised SimCSE: every sentence twice under different dropout.

Shapes: n rows, S width.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from tsdae_core.batch import Batch
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.hashing import fold_key
from tsdae_core.ranking_model import InBatchRankingModel
from tsdae_core.simcse import SimcseConfig


class SimcseModel(InBatchRankingModel):
    """Encoder and, while training, its head."""

    def __init__(self, encoder: SentenceEncoder, *, config: SimcseConfig, seed: int) -> None:
        super().__init__(temperature=config.temperature)
        self.encoder = encoder
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
