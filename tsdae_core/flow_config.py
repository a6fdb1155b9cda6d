"""The settings of a BERT-flow; apart from the flow, whose file imports torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class FlowConfig:
    """Size of the flow and its training; rate and decay are the TSDAE paper's for its BERT-flow row.

    Attributes:
        num_steps: Glow steps, each a scale and shift and a coupling.
        hidden_size: width of the two hidden layers of a coupling's network.
        lr: AdamW rate. At the paper's the map stays all but a standardisation unless the vectors are many;
            the authors of BERT-flow use 1e-3.
        weight_decay: AdamW decay.
        batch_size: vectors per update.
        num_epochs: passes over the vectors.

    Raises:
        ValueError: for a number outside its range.
    """

    num_steps: int = 6
    hidden_size: int = 256
    lr: float = 1e-6
    weight_decay: float = 0.01
    batch_size: int = 64
    num_epochs: int = 1

    def __post_init__(self) -> None:
        for name in ("num_steps", "hidden_size", "lr", "batch_size", "num_epochs"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} must be positive")
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay={self.weight_decay} must not be negative")
