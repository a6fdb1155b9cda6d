"""The configuration of the encoder that training starts from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pipelines.collection_config import require
from tsdae_core.choices import Attention
from tsdae_core.scratch_config import ScratchConfig
from tsdae_core.tokens import WordUnit


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The encoder that training starts from.

    start: "small" (the encoder that ships with the project), "scratch" (built here, tokenizer trained on
    the corpus), a checkpoint or sentence-transformers folder or its URL, or a hub name.
    pooling: how token states become the sentence vector; cls is the paper's for TSDAE. A recipe that leaves
    it out gets its objective's (`objective_defaults`).
    max_tokens: texts are cut to this many tokens, special ones included.
    attention: how a decoder-only start (LLaMA, Qwen3) encodes: bidirectional or causal; null for what its
    folder says, bidirectional if nothing. Other starts are always bidirectional.
    word_unit: what noise hits as a whole: `word` of the tokenizer (pieces in scripts without spaces),
    `whitespace` or `piece`.
    add_tokens_file: words, one a line, that become tokens of their own.
    mine_tokens: this many more, those of the corpus that shorten it most; 0 for none.
    mine_min_count: rarer words (in a sample of the corpus) are not mined.
    """

    start: str = "small"
    pooling: Literal["cls", "mean", "max"] = "cls"
    max_tokens: int = 75
    attention: Attention | None = None
    word_unit: WordUnit = "word"
    add_tokens_file: str | None = None
    mine_tokens: int = 0
    mine_min_count: int = 20
    scratch: ScratchConfig = field(default_factory=ScratchConfig)

    def __post_init__(self) -> None:
        require(self.max_tokens >= 4, "max_tokens must be at least 4")
        require(self.mine_tokens >= 0, "mine_tokens must not be negative")
        require(self.mine_min_count >= 1, "mine_min_count must be at least 1")
        require(bool(self.start), "start must name an encoder: small, scratch, a folder or a hub name")
        require(
            self.attention != "causal" or self.start not in ("small", "scratch"),
            f"attention causal is for decoder-only starts, which {self.start} is not; leave it out",
        )
