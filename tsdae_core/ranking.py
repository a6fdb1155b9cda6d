"""The softmax ranking loss over a batch, shared by SimCSE and by supervised ranking.

Owns the arithmetic, and which candidates are no negatives: van den Oord et al. 2018 (InfoNCE), as
multiple-negatives ranking in Henderson et al. 2017. Knows nothing of batches, models or workers.

Shapes: n rows of this worker, N rows of all, K vectors per row, S width, C = N (K - 1) candidates.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def ranking_loss_sum(
    own_nKS: Tensor,
    all_NKS: Tensor,
    *,
    own_keys_nK: Tensor,
    all_keys_NK: Tensor,
    first_row: int,
    temperature: float,
) -> Tensor:
    """Return the cross-entropy of finding each anchor's positive among all candidates, summed over anchors.

    Args:
        own_nKS: anchor, positive and K - 2 hard negatives of this worker's rows.
        all_NKS: the same of all rows; every positive and every hard negative is a candidate, but not for an
            anchor for which it would be a false negative.
        own_keys_nK: int64, equal for equal texts (`text_keys`).
        all_keys_NK: the same of all rows.
        first_row: place of the first own row among all.
        temperature: divides the cosine.
    """
    anchors_nS = F.normalize(own_nKS[:, 0], dim=-1)
    candidates_CS = F.normalize(all_NKS[:, 1:].transpose(0, 1).flatten(0, 1), dim=-1)
    targets = torch.arange(own_nKS.shape[0], device=own_nKS.device) + first_row
    left_out_nC = _false_negatives(own_keys_nK, all_keys_NK).scatter(1, targets[:, None], False)
    logits_nC = (anchors_nS @ candidates_CS.T / temperature).masked_fill(left_out_nC, -torch.inf)
    return F.cross_entropy(logits_nC, targets, reduction="sum")


def _false_negatives(own_keys_nK: Tensor, all_keys_NK: Tensor) -> Tensor:
    """Tell, bool[n, C], which candidates say what an anchor or its positive says, the positive itself too.

    That is the anchor's text, its positive's text, or the positive of another row with the same anchor.
    """
    candidates_C = all_keys_NK[:, 1:].T.flatten()
    is_equal_nC = (candidates_C == own_keys_nK[:, :1]) | (candidates_C == own_keys_nK[:, 1:2])
    shares_anchor_nN = own_keys_nK[:, :1] == all_keys_NK[:, 0]
    is_equal_nC[:, : all_keys_NK.shape[0]] |= shares_anchor_nN
    return is_equal_nC
