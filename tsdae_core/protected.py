"""TSDAE for an encoder that is tuned already: adapt it without losing what it knows.

Plain TSDAE pulls a tuned encoder away from its similarities. Here a frozen copy of the start encoder says how
similar the undamaged sentences of a batch were, and the trained one is held to it (relational distillation,
Park et al. 2019, arXiv 1904.05068, beside the TSDAE loss). Not in the TSDAE paper. Owns the added term.

Shapes: n rows of this worker, N rows of all, S width.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from tsdae_core.batch import Batch, LossSums
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.in_batch import InBatchModel, gather_rows
from tsdae_core.ragged import Int64s
from tsdae_core.tokens import TokenizedTexts
from tsdae_core.tsdae import TsdaeConfig, TsdaeModel, TsdaeObjective

Keep = Literal["similarity", "vector"]


@dataclass(frozen=True, kw_only=True)
class ProtectedConfig:
    """TSDAE and what protects the start.

    Attributes:
        tsdae: the objective that adapts.
        keep: ``similarity`` holds the cosines between the sentences of the global batch, so that vectors may
            turn together; ``vector`` holds every sentence's vector by its cosine with the start's.
        weight: factor of the protecting term; 0 is plain TSDAE. The term is the mean squared error of the
            cosines, or 1 - cosine, per sentence.

    Raises:
        ValueError: for an unknown ``keep`` or a negative weight.
    """

    tsdae: TsdaeConfig = field(default_factory=TsdaeConfig)
    keep: Keep = "similarity"
    weight: float = 100.0

    def __post_init__(self) -> None:
        if self.keep not in get_args(Keep):
            raise ValueError(f"keep {self.keep!r} is unknown; choose one of {', '.join(get_args(Keep))}")
        if self.weight < 0:
            raise ValueError(f"weight={self.weight} must not be negative")


class ProtectedObjective:
    """Batches of TSDAE, model with a frozen partner; holds arrays only, so it pickles into CPU tasks."""

    name = "protected"
    group_size = 1

    def __init__(self, tokenizer: PreTrainedTokenizerFast, config: ProtectedConfig) -> None:
        self.config = config
        self.tsdae = TsdaeObjective(tokenizer, config.tsdae)

    def make_batch(self, tokens: TokenizedTexts, row_ids: Int64s, *, seed: int, epoch: int) -> Batch:
        """Return a batch of TSDAE."""
        return self.tsdae.make_batch(tokens, row_ids, seed=seed, epoch=epoch)

    def make_batches(
        self, tokens: TokenizedTexts, row_ids: Int64s, bounds: Int64s, *, seed: int, epoch: int
    ) -> list[Batch]:
        """Return batches of TSDAE."""
        return self.tsdae.make_batches(tokens, row_ids, bounds, seed=seed, epoch=epoch)

    def num_targets(self, batch: Batch) -> int:
        """Return the targets of TSDAE."""
        return self.tsdae.num_targets(batch)

    def build_model(self, encoder: SentenceEncoder, *, seed: int) -> ProtectedModel:
        """Put the encoder (not a copy) and the decoder into one module, and keep a frozen copy beside it."""
        return ProtectedModel(encoder, config=self.config, seed=seed)


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
        if self.config.keep == "vector":
            penalty_n = 1 - (own_nKS[:, 0] * own_nKS[:, 1]).sum(-1)
        else:
            all_NKS, _ = gather_rows(own_nKS, is_training=self.training)
            now_nN, before_nN = (own_nKS[:, k] @ all_NKS[:, k].T for k in range(2))
            others = max(1, all_NKS.shape[0] - 1)  # a sentence's cosine with itself cannot change
            penalty_n = (now_nN - before_nN).square().sum(1) / others
        return self.config.weight * (penalty_n * self._counts(batches, penalty_n)).sum()

    def _counts(self, batches: Sequence[Batch], like: Tensor) -> Tensor:
        if self.config.tsdae.loss_per == "sentence":
            return torch.ones_like(like)
        lengths = [batch["target_lengths"][: batch["row_ids"].shape[0]] for batch in batches]
        return torch.from_numpy(np.concatenate(lengths).astype(np.float32) - 1).to(like)
