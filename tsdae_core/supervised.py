"""The supervised SBERT objectives (Reimers and Gurevych 2019, arXiv 1908.10084): NLI, STS, pairs, ranking.

And what learns from a cross-encoder: margins (Hofstätter et al. 2020, arXiv 2010.02666). Rows hold two or
more texts (`examples.LabelledTexts`). Owns their settings and batches; losses and models are
`supervised_models`'. Knows nothing of files or of stopping.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tsdae_core.batch import Batch
from tsdae_core.examples import LabelledTexts, column_batch
from tsdae_core.ragged import Int64s
from tsdae_core.tokens import special_frame

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from tsdae_core.encoder import SentenceEncoder
    from tsdae_core.supervised_models import MarginMseModel, NliModel, RankingModel, StsModel


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
class PairsConfig:
    """Regression of the cosine on labels in [0, 1]: 1 is equal meaning, 0 is different meaning."""


@dataclass(frozen=True, kw_only=True)
class RankingConfig:
    """Multiple-negatives ranking; ``temperature`` divides the cosine (0.05: a scale of 20)."""

    temperature: float = 0.05

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature={self.temperature} must be positive")


@dataclass(frozen=True, kw_only=True)
class MarginMseConfig:
    """Regression of a difference of dot products on a teacher's; nothing can be set."""


class _RowObjective(ABC):
    """What all share: framed texts column after column, rows as targets."""

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
        from tsdae_core.supervised_models import NliModel

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
        from tsdae_core.supervised_models import StsModel

        return StsModel(encoder, max_score=self.config.max_score)


class PairsObjective(_RowObjective):
    """Squared error of the cosine against 1 for equal meaning and 0 for different meaning."""

    name = "pairs"

    def __init__(self, tokenizer: PreTrainedTokenizerFast, config: PairsConfig) -> None:
        super().__init__(tokenizer)
        self.config = config

    def check(self, tokens: LabelledTexts) -> None:
        """Refuse anything but pairs with labels in [0, 1]."""
        labels = _labels_of_pairs(tokens, self.name)
        if not ((labels >= 0) & (labels <= 1)).all():
            raise ValueError(f"pairs need labels in [0, 1], got {labels.min()} to {labels.max()}")

    def build_model(self, encoder: SentenceEncoder, *, seed: int) -> StsModel:  # noqa: ARG002
        """Wrap the encoder (not a copy); there is nothing else to train."""
        from tsdae_core.supervised_models import StsModel

        return StsModel(encoder, max_score=1.0)


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
        from tsdae_core.supervised_models import RankingModel

        return RankingModel(encoder, temperature=self.config.temperature)


class MarginMseObjective(_RowObjective):
    """Squared error of (query . positive - query . negative) against the same difference of a teacher."""

    name = "margin_mse"

    def __init__(self, tokenizer: PreTrainedTokenizerFast, config: MarginMseConfig) -> None:
        super().__init__(tokenizer)
        self.config = config

    def check(self, tokens: LabelledTexts) -> None:
        """Refuse anything but query, positive and negative with a finite margin."""
        if len(tokens.columns) != 3 or tokens.labels is None:
            raise ValueError(
                f"margin_mse needs query, positive, negative and a margin per row, got {len(tokens.columns)} "
                f"texts and {'no label' if tokens.labels is None else 'a label'}"
            )
        if not np.isfinite(tokens.labels).all():
            raise ValueError("margin_mse needs finite margins; look at the teacher's scores")

    def build_model(self, encoder: SentenceEncoder, *, seed: int) -> MarginMseModel:  # noqa: ARG002
        """Wrap the encoder (not a copy); there is nothing else to train."""
        from tsdae_core.supervised_models import MarginMseModel

        return MarginMseModel(encoder)


def _labels_of_pairs(tokens: LabelledTexts, name: str) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    if len(tokens.columns) != 2 or tokens.labels is None:
        raise ValueError(
            f"{name} needs two texts and a label per row, got {len(tokens.columns)} texts and "
            f"{'no label' if tokens.labels is None else 'a label'}"
        )
    return tokens.labels
