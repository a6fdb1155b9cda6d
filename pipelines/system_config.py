"""The configuration of systems that an evaluation compares instead of a trained encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from pipelines.collection_config import require

ReadyKind = Literal["encoder", "bm25", "hybrid", "words", "words_idf", "run"]
FittedKind = Literal["whitening", "flow", "sent2vec"]
FITTED = get_args(FittedKind)
_NEEDS_NO_SOURCE = ("bm25", "sent2vec")
_HAS_POOLING = ("encoder", "hybrid", "whitening", "flow")


@dataclass(frozen=True, kw_only=True)
class SystemConfig:
    """A row of a table that needs no training of a Transformer.

    kind: encoder; bm25; hybrid (the encoder `source` and BM25, fused); words and words_idf (averaged word
    vectors, without stop words); run (a TREC file);
    or fitted on the corpus: whitening and flow behind the encoder `source`, and sent2vec.
    source: a folder, file, hub name, or `module:function` for an encoder.
    pooling: of a plain checkpoint; None takes what its folder says, else cls.
    """

    name: str
    kind: ReadyKind | FittedKind = "encoder"
    source: str = ""
    pooling: Literal["cls", "mean", "max"] | None = None

    def __post_init__(self) -> None:
        require(bool(self.name), "a system needs a name")
        require(
            bool(self.source) or self.kind in _NEEDS_NO_SOURCE,
            f"system '{self.name}' of kind {self.kind} needs a source",
        )
        require(
            not self.source or self.kind not in _NEEDS_NO_SOURCE,
            f"system '{self.name}' of kind {self.kind} has no source; leave it out",
        )
        require(
            self.pooling is None or self.kind in _HAS_POOLING,
            f"system '{self.name}' of kind {self.kind} has no pooling",
        )
