"""The settings of whitening; apart from its fit, whose file imports torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WhiteningConfig:
    """Choices of whitening.

    Attributes:
        num_dims: how many directions to keep, those of the largest variance; None keeps all that vary.

    Raises:
        ValueError: if it is less than 1.
    """

    num_dims: int | None = None

    def __post_init__(self) -> None:
        if self.num_dims is not None and self.num_dims < 1:
            raise ValueError(f"num_dims={self.num_dims} must be at least 1, or null for all")
