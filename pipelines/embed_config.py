"""The configuration of embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from indexing.vectors import VectorForm
from pipelines.collection_config import require
from tsdae_core.choices import EncodePrecision


@dataclass(frozen=True, kw_only=True)
class EmbedConfig:
    """Embedding the documents; what holds for their vectors holds for those of queries, too.

    dtype: the stored type.
    dim: keep the first so many numbers of every vector (for encoders trained that way); None keeps all.
    normalize: scale vectors to length 1, after the cut.
    precision: `int8` multiplies in 8-bit integers on CPUs: faster, vectors less exact; queries stay float32.
    batch_tokens: bounds one forward pass.
    """

    dtype: Literal["float16", "float32"] = "float32"
    dim: int | None = None
    normalize: bool = False
    precision: EncodePrecision = "float32"
    batch_tokens: int = 8_192
    num_actors: int = 1
    cpus_per_actor: float = 1.0
    gpus_per_actor: float = 0.0
    threads_per_actor: int = 1

    def __post_init__(self) -> None:
        for name in ("num_actors", "batch_tokens", "threads_per_actor"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1")
        for name in ("cpus_per_actor", "gpus_per_actor"):
            require(getattr(self, name) >= 0, f"{name} must not be negative")
        require(self.dim is None or self.dim >= 1, "dim must be at least 1")
        require(
            self.precision != "int8" or self.gpus_per_actor == 0,
            "precision int8 is for CPUs; set gpus_per_actor to 0, or precision to float32",
        )

    @property
    def form(self) -> VectorForm:
        """What is kept of an encoder's vectors."""
        return VectorForm(dim=self.dim, normalize=self.normalize)
