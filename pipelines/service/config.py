"""Settings of the HTTP service."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from indexing.fusion import FusionConfig
from pipelines.collection_config import require

_MODEL = re.compile(r"models:/[^/@]+@[^/@]+")


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """The service: where it listens, how much it takes at once, what it refuses.

    host: 127.0.0.1 answers this machine alone.
    num_replicas: copies of encoder and index, each in a process with `cpus_per_replica`; those of one machine
    share the index's pages.
    gpus_per_replica: GPUs that each of them reserves, or a share of one; with any, encoder and cross-encoder
    work on it, and the index stays on the CPUs.
    model: "models:/NAME@ALIAS" takes the encoder from the registry, and the index from the workspace that the
    version names, so that moving the alias switches both. None: the encoder of the workspace.
    poll_s: how often a replica looks for a new version of index or encoder.
    batch_size: searches that a replica encodes together, at most; those that come while it is busy.
    batch_wait_ms: how long an idle replica lets a first search wait for others.
    max_waiting: requests that may be at work or wait; more are answered 429 at once.
    timeout_s: a request that takes longer is answered 504.
    max_body_bytes, max_text_chars, max_texts, max_k: larger requests are refused.
    max_hits: so are searches whose queries times k come to more.
    cross_encoder: folder or hub name of a CrossEncoder for `rerank`; None: only the encoder re-ranks.
    rerank_depth: hits that a cross-encoder scores again when a search asks for it.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    num_replicas: int = 1
    cpus_per_replica: float = 1.0
    gpus_per_replica: float = 0.0
    model: str | None = None
    poll_s: float = 10.0
    batch_size: int = 32
    batch_wait_ms: float = 0.0
    max_waiting: int = 128
    timeout_s: float = 30.0
    max_body_bytes: int = 1 << 20
    max_text_chars: int = 10_000
    max_texts: int = 256
    max_k: int = 1_000
    max_hits: int = 20_000
    cross_encoder: str | None = None
    rerank_depth: int = 50
    fusion: FusionConfig = field(default_factory=FusionConfig)

    def __post_init__(self) -> None:
        require(0 <= self.port <= 65_535, "port must be between 0 and 65535")
        for name in ("num_replicas", "batch_size", "max_waiting", "max_body_bytes", "rerank_depth"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1")
        for name in ("max_text_chars", "max_texts", "max_k", "max_hits"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1")
        for name in ("cpus_per_replica", "poll_s", "timeout_s"):
            require(getattr(self, name) > 0, f"{name} must be positive")
        require(self.batch_wait_ms >= 0, "batch_wait_ms must not be negative")
        require(self.gpus_per_replica >= 0, "gpus_per_replica must not be negative")
        require(
            self.model is None or bool(_MODEL.fullmatch(self.model)),
            f"model must look like models:/NAME@ALIAS, got {self.model!r}",
        )

    @property
    def device(self) -> str:
        """Where PyTorch works in a replica."""
        return "cuda" if self.gpus_per_replica > 0 else "cpu"
