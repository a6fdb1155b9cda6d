"""What SimCSE and supervised ranking share: anchors look for their positives in the global batch.

Owns the way from vectors and texts of this worker to the loss over those of all. Knows no encoder.

Shapes: n rows of this worker, K vectors per row, S width.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tsdae_core.batch import Batch
from tsdae_core.in_batch import InBatchModel, gather_rows
from tsdae_core.ranking import ranking_loss_sum
from tsdae_core.text_keys import text_keys


class InBatchRankingModel(InBatchModel):
    """A model whose vectors are anchor, positive and hard negatives of every row.

    Rows of one text are their own positive: all their vectors are of it.

    Attributes:
        temperature: divides the cosine.
    """

    def __init__(self, *, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def in_batch_loss(self, vectors_nKS: Tensor, batches: Sequence[Batch]) -> Tensor:
        """Return the ranking loss of this worker's anchors among all candidates, without false negatives."""
        keys = np.concatenate([text_keys(batch) for batch in batches])
        keys_nK = torch.from_numpy(keys).to(vectors_nKS.device).expand(-1, vectors_nKS.shape[1])
        all_NKS, first_row = gather_rows(vectors_nKS, is_training=self.training)
        all_keys_NK, _ = gather_rows(keys_nK, is_training=self.training)
        return ranking_loss_sum(
            vectors_nKS,
            all_NKS,
            own_keys_nK=keys_nK,
            all_keys_NK=all_keys_NK,
            first_row=first_row,
            temperature=self.temperature,
        )
