"""The supervised SBERT objectives (Reimers and Gurevych 2019, arXiv 1908.10084): NLI, STS and ranking.

Rows hold two or more texts (`examples.LabelledTexts`). Owns the three losses, their batches and models. Each
is summed over rows and divided by the rows of the global batch. Knows nothing of files or of stopping.

Shapes: n rows, K texts per row, S width, C classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from tsdae_core.batch import Batch, LossSums, int64_tensor
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.examples import LabelledTexts, column_batch
from tsdae_core.hashing import fold_key
from tsdae_core.in_batch import InBatchModel, gather_rows
from tsdae_core.objective_model import ObjectiveModel
from tsdae_core.ragged import Int64s
from tsdae_core.ranking import ranking_loss_sum
from tsdae_core.tokens import special_frame


@dataclass(frozen=True, kw_only=True)
class NliConfig:
    """Softmax classification of sentence pairs; ``num_labels`` is 3 for NLI."""

    num_labels: int = 3

    def __post_init__(self) -> None:
        if self.num_labels < 2:
            raise ValueError(f"num_labels={self.num_labels} must be at least 2; NLI has 3")


@dataclass(frozen=True, kw_only=True)
class StsConfig:
    """Regression of the cosine on labels divided by ``max_score``; then they must lie in [-1, 1]."""

    max_score: float = 5.0

    def __post_init__(self) -> None:
        if not self.max_score > 0:
            raise ValueError(f"max_score={self.max_score} must be positive; the STS tasks use 5")


@dataclass(frozen=True, kw_only=True)
class RankingConfig:
    """Multiple-negatives ranking; ``temperature`` divides the cosine (0.05: a scale of 20)."""

    temperature: float = 0.05

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature={self.temperature} must be positive")


class _RowObjective(ABC):
    """What the three share: framed texts column after column, rows as targets."""

    group_size = 1

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.frame = special_frame(tokenizer)

    def make_batch(self, tokens: LabelledTexts, row_ids: Int64s, *, seed: int, epoch: int) -> Batch:  # noqa: ARG002
        """Return the framed texts and labels; `examples.column_batch` has the layout."""
        self.check(tokens)
        return column_batch(tokens, row_ids, frame=self.frame)

    @abstractmethod
    def check(self, tokens: LabelledTexts) -> None:
        """Refuse rows that the loss cannot use."""

    def num_targets(self, batch: Batch) -> int:
        """Return the number of rows."""
        return int(batch["row_ids"].shape[0])


class NliObjective(_RowObjective):
    """Classify pairs from (u, v, |u - v|)."""

    name = "nli"

    def __init__(self, tokenizer: PreTrainedTokenizerFast, config: NliConfig) -> None:
        super().__init__(tokenizer)
        self.config = config

    def check(self, tokens: LabelledTexts) -> None:
        """Refuse anything but pairs with class numbers."""
        labels = _labels_of_pairs(tokens, self.name)
        if not np.isin(labels, np.arange(self.config.num_labels)).all():
            raise ValueError(
                f"nli labels must be 0 to {self.config.num_labels - 1}, got "
                f"{sorted(set(labels.tolist()))[:9]}"
            )

    def build_model(self, encoder: SentenceEncoder, *, seed: int) -> NliModel:
        """Put the encoder (not a copy) and the classifier into one module."""
        return NliModel(encoder, num_labels=self.config.num_labels, seed=seed)


class StsObjective(_RowObjective):
    """Squared error of the cosine against the scaled score."""

    name = "sts"

    def __init__(self, tokenizer: PreTrainedTokenizerFast, config: StsConfig) -> None:
        super().__init__(tokenizer)
        self.config = config

    def check(self, tokens: LabelledTexts) -> None:
        """Refuse anything but pairs with scores in range."""
        labels = _labels_of_pairs(tokens, self.name)
        if (np.abs(labels) > self.config.max_score).any() or not np.isfinite(labels).all():
            raise ValueError(
                f"sts scores must lie within {self.config.max_score} of 0, got {labels.min()} to "
                f"{labels.max()}; set max_score"
            )

    def build_model(self, encoder: SentenceEncoder, *, seed: int) -> StsModel:  # noqa: ARG002
        """Wrap the encoder (not a copy); there is nothing else to train."""
        return StsModel(encoder, max_score=self.config.max_score)


class RankingObjective(_RowObjective):
    """Find each anchor's positive among the positives and hard negatives of the global batch."""

    name = "ranking"

    def __init__(self, tokenizer: PreTrainedTokenizerFast, config: RankingConfig) -> None:
        super().__init__(tokenizer)
        self.config = config

    def check(self, tokens: LabelledTexts) -> None:
        """Refuse rows without a positive."""
        if len(tokens.columns) < 2:
            raise ValueError("ranking needs an anchor and a positive per row, and may have hard negatives")

    def build_model(self, encoder: SentenceEncoder, *, seed: int) -> RankingModel:  # noqa: ARG002
        """Wrap the encoder (not a copy); there is nothing else to train."""
        return RankingModel(encoder, temperature=self.config.temperature)


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


class RankingModel(InBatchModel):
    """Encoder alone; the negatives come from the global batch."""

    def __init__(self, encoder: SentenceEncoder, *, temperature: float) -> None:
        super().__init__()
        self.encoder = encoder
        self.temperature = temperature

    def vectors(self, batch: Batch) -> Tensor:
        """Return anchor, positive and hard negatives of every row, [n, K, S]."""
        return _columns(self.encoder, batch)[: batch["row_ids"].shape[0]]

    def in_batch_loss(self, vectors_nKS: Tensor, batches: Sequence[Batch]) -> Tensor:  # noqa: ARG002
        """Return the ranking loss of this worker's anchors among all candidates."""
        everyone, first_row = gather_rows(vectors_nKS, is_training=self.training)
        return ranking_loss_sum(vectors_nKS, everyone, first_row=first_row, temperature=self.temperature)


def _columns(encoder: SentenceEncoder, batch: Batch) -> Tensor:
    """Return the vectors of all texts, [rows, K, S]; an idle batch has more texts than row ids."""
    lengths = np.asarray(batch["texts_lengths"], dtype=np.int64)
    vectors = encoder.embed(batch["texts_ids"], lengths)
    num_columns = int(batch["num_columns"][0])
    return vectors.view(num_columns, -1, vectors.shape[1]).transpose(0, 1)


def _labels_of_pairs(tokens: LabelledTexts, name: str) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    if len(tokens.columns) != 2 or tokens.labels is None:
        raise ValueError(
            f"{name} needs two texts and a label per row, got {len(tokens.columns)} texts and "
            f"{'no label' if tokens.labels is None else 'a label'}"
        )
    return tokens.labels
