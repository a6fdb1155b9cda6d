"""The shape of an encoder that is built from nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

EmbeddingInit = Literal["random", "svd", "lsa"]


@dataclass(frozen=True, kw_only=True)
class ScratchConfig:
    """Shape of a from-scratch encoder.

    Attributes:
        num_layers: Transformer layers.
        hidden_size: width, a multiple of ``num_heads``.
        num_heads: attention heads.
        intermediate_size: width of the feed-forward block.
        vocab_size: upper bound on the trained vocabulary.
        max_tokens: positions, special tokens included.
        embedding_init: ``random``; ``svd`` of the corpus' term-sentence matrix; or ``lsa``, where besides the
            embeddings attention and LM head start so that the encoder averages them (see `lsa_start`).
        dropout: of states and of attention.

    Raises:
        ValueError: for sizes that do not fit together.
    """

    num_layers: int = 4
    hidden_size: int = 256
    num_heads: int = 4
    intermediate_size: int = 1024
    vocab_size: int = 8000
    max_tokens: int = 128
    embedding_init: EmbeddingInit = "random"
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.embedding_init not in get_args(EmbeddingInit):
            names = ", ".join(get_args(EmbeddingInit))
            raise ValueError(f"embedding_init {self.embedding_init!r} is unknown; choose one of {names}")
        for name in (
            "num_layers",
            "hidden_size",
            "num_heads",
            "intermediate_size",
            "vocab_size",
            "max_tokens",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not a multiple of num_heads={self.num_heads}"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout={self.dropout} must lie in [0, 1)")
