"""TSDAE's model beside a frozen copy of the start encoder, and the term that holds it to that copy.

Shapes: n rows of this worker, N rows of all, S width.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tsdae_core.batch import Batch
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.in_batch import InBatchModel, gather_rows
from tsdae_core.loss_sums import LossSums
from tsdae_core.protected import ProtectedConfig
from tsdae_core.tsdae_model import TsdaeModel


class ProtectedModel(InBatchModel):
    """TSDAE's model and the encoder as it was.

    Attributes:
        tsdae: trained.
        start: frozen. Not a submodule: a checkpoint need not hold it, a resumed run starts from it again.
    """

    def __init__(self, encoder: SentenceEncoder, *, config: ProtectedConfig, seed: int) -> None:
        super().__init__()
        self.config = config
        self._start = (copy.deepcopy(encoder).requires_grad_(False).eval(),)
        self.tsdae = TsdaeModel(encoder, config=config.tsdae, seed=seed)

    @property
    def start(self) -> SentenceEncoder:
        """The frozen copy, on the device of the trained encoder."""
        return self._start[0].to(self.tsdae.encoder.device)

    def own_loss(self, batch: Batch) -> LossSums:
        """Return the reconstruction loss."""
        sums: LossSums = self.tsdae(batch)
        return sums

    def vectors(self, batch: Batch) -> Tensor:
        """Return the vectors of the undamaged sentences now and at the start, [n, 2, S]."""
        ids, lengths = batch["target_ids"], np.asarray(batch["target_lengths"], dtype=np.int64)
        with torch.no_grad():
            before_nS = self.start.embed(ids, lengths)
        now_nS = self.tsdae.encoder.embed(ids, lengths)
        return torch.stack([now_nS, before_nS], dim=1)[: batch["row_ids"].shape[0]]

    def in_batch_loss(self, vectors_nKS: Tensor, batches: Sequence[Batch]) -> Tensor:
        """Return the protecting term, each sentence counted as often as TSDAE counts it.

        So the weight means the same for ``loss_per`` token and sentence and for any batch size.
        """
        own_nKS = F.normalize(vectors_nKS, dim=-1)
        penalty_n = torch.zeros_like(own_nKS[:, 0, 0])
        if self.config.keep != "similarity":
            penalty_n = penalty_n + 1 - (own_nKS[:, 0] * own_nKS[:, 1]).sum(-1)
        if self.config.keep != "vector":
            all_NKS, _ = gather_rows(own_nKS, is_training=self.training)
            now_nN, before_nN = (own_nKS[:, k] @ all_NKS[:, k].T for k in range(2))
            others = max(1, all_NKS.shape[0] - 1)  # a sentence's cosine with itself cannot change
            penalty_n = penalty_n + (now_nN - before_nN).square().sum(1) / others
        return self.config.weight * (penalty_n * self._counts(batches, penalty_n)).sum()

    def _counts(self, batches: Sequence[Batch], like: Tensor) -> Tensor:
        if self.config.tsdae.loss_per == "sentence":
            return torch.ones_like(like)
        lengths = [batch["target_lengths"][: batch["row_ids"].shape[0]] for batch in batches]
        return torch.from_numpy(np.concatenate(lengths).astype(np.float32) - 1).to(like)
