"""TSDAE for an encoder that is tuned already: adapt it without losing what it knows.

Plain TSDAE pulls a tuned encoder away from its similarities. Here a frozen copy of the start encoder says how
similar the undamaged sentences of a batch were, and the trained one is held to it (relational distillation,
Park et al. 2019, arXiv 1904.05068, beside the TSDAE loss). Not in the TSDAE paper. Owns settings and batch;
the added term is `protected_model`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from tsdae_core.batch import Batch
from tsdae_core.ragged import Int64s
from tsdae_core.tokens import TokenizedTexts
from tsdae_core.tsdae import TsdaeConfig, TsdaeObjective

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from tsdae_core.encoder import SentenceEncoder
    from tsdae_core.protected_model import ProtectedModel

Keep = Literal["similarity", "vector", "both"]


@dataclass(frozen=True, kw_only=True)
class ProtectedConfig:
    """TSDAE and what protects the start.

    Attributes:
        tsdae: the objective that adapts.
        keep: ``similarity`` holds the cosines between the sentences of the global batch, so that vectors may
            turn together; ``vector`` holds every sentence's vector by its cosine with the start's; ``both``
            adds the two terms.
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
        from tsdae_core.protected_model import ProtectedModel

        return ProtectedModel(encoder, config=self.config, seed=seed)
