"""The models and losses of the supervised objectives: NLI, STS, ranking and margins of a teacher.

Each loss is summed over rows and divided by the rows of the global batch.

Shapes: n rows, K texts per row, S width, C classes.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tsdae_core.batch import Batch
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.hashing import fold_key
from tsdae_core.loss_sums import LossSums, int64_tensor
from tsdae_core.objective_model import ObjectiveModel
from tsdae_core.ranking_model import InBatchRankingModel


class NliModel(ObjectiveModel):
    """Encoder and classifier."""

    def __init__(self, encoder: SentenceEncoder, *, num_labels: int, seed: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.classifier = nn.Linear(3 * encoder.dim, num_labels)
        bound = (3 * encoder.dim) ** -0.5
        generator = torch.Generator().manual_seed(fold_key("nli-classifier", seed) >> 1)
        with torch.no_grad():
            for param in self.classifier.parameters():
                param.uniform_(-bound, bound, generator=generator)
        self.to(encoder.device)

    def forward(self, batch: Batch) -> LossSums:
        """Return the cross-entropy summed over pairs, and their number."""
        left_nS, right_nS = _columns(self.encoder, batch).unbind(1)
        logits_nC = self.classifier(torch.cat([left_nS, right_nS, (left_nS - right_nS).abs()], dim=1))
        labels_n = int64_tensor(batch["labels"], logits_nC.device)
        return LossSums(F.cross_entropy(logits_nC, labels_n, reduction="sum"), int(labels_n.shape[0]))


class StsModel(ObjectiveModel):
    """Encoder alone."""

    def __init__(self, encoder: SentenceEncoder, *, max_score: float) -> None:
        super().__init__()
        self.encoder = encoder
        self.max_score = max_score

    def forward(self, batch: Batch) -> LossSums:
        """Return the squared error summed over pairs, and their number."""
        left_nS, right_nS = _columns(self.encoder, batch).unbind(1)
        want_n = torch.from_numpy(np.array(batch["labels"], dtype=np.float32)).to(left_nS.device)
        cosine_n = F.cosine_similarity(left_nS, right_nS, dim=1)
        loss = F.mse_loss(cosine_n, want_n / self.max_score, reduction="sum")
        return LossSums(loss, int(want_n.shape[0]))


class MarginMseModel(ObjectiveModel):
    """Encoder alone, whose dot products are trained: vectors are not normalised."""

    def __init__(self, encoder: SentenceEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, batch: Batch) -> LossSums:
        """Return the squared error of the margins summed over rows, and their number."""
        query_nS, positive_nS, negative_nS = _columns(self.encoder, batch).unbind(1)
        want_n = torch.from_numpy(np.array(batch["labels"], dtype=np.float32)).to(query_nS.device)
        margin_n = (query_nS * positive_nS).sum(1) - (query_nS * negative_nS).sum(1)
        return LossSums(F.mse_loss(margin_n, want_n, reduction="sum"), int(want_n.shape[0]))


class RankingModel(InBatchRankingModel):
    """Encoder alone; the negatives come from the global batch."""

    def __init__(self, encoder: SentenceEncoder, *, temperature: float) -> None:
        super().__init__(temperature=temperature)
        self.encoder = encoder

    def vectors(self, batch: Batch) -> Tensor:
        """Return anchor, positive and hard negatives of every row, [n, K, S]."""
        return _columns(self.encoder, batch)[: batch["row_ids"].shape[0]]


def _columns(encoder: SentenceEncoder, batch: Batch) -> Tensor:
    """Return the vectors of all texts, [rows, K, S]; an idle batch has more texts than row ids."""
    lengths = np.asarray(batch["texts_lengths"], dtype=np.int64)
    vectors = encoder.embed(batch["texts_ids"], lengths)
    num_columns = int(batch["num_columns"][0])
    return vectors.view(num_columns, -1, vectors.shape[1]).transpose(0, 1)
