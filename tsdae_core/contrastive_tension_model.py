"""The model of contrastive tension: two encoders that start identical and drift apart.

Shapes: n rows, G groups, S width.
"""

from __future__ import annotations

import copy

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from tsdae_core.batch import Batch
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.loss_sums import LossSums, int64_tensor
from tsdae_core.objective_model import ObjectiveModel
from tsdae_core.ragged import Ragged


class CtModel(ObjectiveModel):
    """Two encoders.

    Attributes:
        encoder: meets positives and negatives alike, and is the one that is kept.
        partner: meets anchors only, and is dropped after training.
    """

    def __init__(self, encoder: SentenceEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.partner = copy.deepcopy(encoder)

    def forward(self, batch: Batch) -> LossSums:
        """Return the binary cross-entropy summed over pairs, and their number."""
        texts = Ragged(batch["texts_ids"], batch["texts_lengths"])
        anchors, of_row = np.unique(batch["anchors"], return_inverse=True)
        chosen = texts.take(anchors)
        anchors_GS = self.partner.embed(chosen.values, chosen.lengths)
        others_nS = self.encoder.embed(texts.values, texts.lengths)
        group_n = int64_tensor(of_row, others_nS.device)
        dots_n: Tensor = (anchors_GS.index_select(0, group_n) * others_nS).sum(1)
        is_same = batch["anchors"] == np.arange(batch["anchors"].shape[0])
        labels_n = int64_tensor(is_same, others_nS.device).to(dots_n.dtype)
        loss = F.binary_cross_entropy_with_logits(dots_n, labels_n, reduction="sum")
        return LossSums(loss, int(labels_n.shape[0]))
