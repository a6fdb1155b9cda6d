"""The softmax ranking loss over a batch, shared by SimCSE and by supervised ranking.

Owns the arithmetic only: van den Oord et al. 2018 (InfoNCE), as multiple-negatives ranking in Henderson et
al. 2017. Knows nothing of batches, models or workers.

Shapes: n rows of this worker, N rows of all, K vectors per row, S width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def ranking_loss_sum(own_nKS: Tensor, all_NKS: Tensor, *, first_row: int, temperature: float) -> Tensor:
    """Return the cross-entropy of finding each anchor's positive among all candidates, summed over anchors.

    Args:
        own_nKS: anchor, positive and K - 2 hard negatives of this worker's rows.
        all_NKS: the same of all rows; every positive and every hard negative is a candidate.
        first_row: place of the first own row among all.
        temperature: divides the cosine.
    """
    anchors_nS = F.normalize(own_nKS[:, 0], dim=-1)
    candidates_CS = F.normalize(all_NKS[:, 1:].transpose(0, 1).flatten(0, 1), dim=-1)
    targets = torch.arange(own_nKS.shape[0], device=own_nKS.device) + first_row
    return F.cross_entropy(anchors_nS @ candidates_CS.T / temperature, targets, reduction="sum")
