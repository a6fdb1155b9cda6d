"""The configuration of systems that an evaluation compares instead of a trained encoder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from pipelines.collection_config import require
from tsdae_core.flow_config import FlowConfig
from tsdae_core.sent2vec_config import Sent2VecConfig
from tsdae_core.whitening_config import WhiteningConfig

ReadyKind = Literal["encoder", "bm25", "hybrid", "words", "words_idf", "run"]
FittedKind = Literal["whitening", "flow", "sent2vec"]
FITTED = get_args(FittedKind)
# How many texts of the corpus, a random sample, are used where no number is given.
MAX_TEXTS: dict[str, int] = {"whitening": 50_000, "flow": 50_000, "sent2vec": 1_000_000}
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
    whitening, flow, sent2vec: settings of the kind of that name.
    max_texts: of the corpus, for what is fitted; 0 takes `MAX_TEXTS`.
    """

    name: str
    kind: ReadyKind | FittedKind = "encoder"
    source: str = ""
    pooling: Literal["cls", "mean", "max"] | None = None
    whitening: WhiteningConfig = field(default_factory=WhiteningConfig)
    flow: FlowConfig = field(default_factory=FlowConfig)
    sent2vec: Sent2VecConfig = field(default_factory=Sent2VecConfig)
    max_texts: int = 0

    def __post_init__(self) -> None:
        require(bool(self.name), "a system needs a name")
        title = f"system '{self.name}' of kind {self.kind}"
        require(bool(self.source) or self.kind in _NEEDS_NO_SOURCE, f"{title} needs a source")
        require(not self.source or self.kind not in _NEEDS_NO_SOURCE, f"{title} has no source; leave it out")
        require(self.pooling is None or self.kind in _HAS_POOLING, f"{title} has no pooling")
        sections = {"whitening": self.whitening, "flow": self.flow, "sent2vec": self.sent2vec}
        for kind, section in sections.items():
            require(
                kind == self.kind or section == type(section)(),
                f"{title} has no settings of {kind}; leave the section out",
            )
        require(self.max_texts == 0 or self.kind in FITTED, f"{title} is not fitted; leave max_texts out")
        require(self.max_texts == 0 or self.max_texts >= 2, f"{title}: max_texts must be 0 or at least 2")

    @property
    def most_texts(self) -> int:
        """How many texts of the corpus it is fitted on at most; 0 where it is not fitted."""
        return self.max_texts or MAX_TEXTS.get(self.kind, 0)
