"""What fitting a flow changed: its likelihood beside that of the standardisation it started as.

Owns the two numbers and how far vectors moved, in numbers and in words. Knows nothing of texts.

Shapes: B vectors, D width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tsdae_core.flow import Flow

_BLOCK = 4_096
# Below it the cosines of the images are those of the standardised vectors for any use.
_MOVED = 0.01


@dataclass(frozen=True, kw_only=True)
class FlowFit:
    """A fitted flow on some vectors.

    Attributes:
        log_prob_before: mean log density, in nats per vector, under the standardisation alone.
        log_prob_after: under the flow.
        moved: how far the images are from the standardised vectors, as a share of those (root mean squares).
    """

    log_prob_before: float
    log_prob_after: float
    moved: float

    @property
    def is_standardisation(self) -> bool:
        """Whether the flow does next to nothing more than standardise."""
        return self.moved < _MOVED

    @property
    def in_words(self) -> str:
        """One line for a person."""
        return (
            f"log density {self.log_prob_before:,.3f} -> {self.log_prob_after:,.3f} nats per vector, vectors "
            f"moved {self.moved:.2%} away from plain standardisation"
        )


def fit_of(flow: Flow, vectors: NDArray[np.floating]) -> FlowFit:
    """Compare a flow with the standardisation that it started as, on float[n, d] vectors, n >= 1."""
    after, moved, length = 0.0, 0.0, 0.0
    rows = torch.from_numpy(np.asarray(vectors, dtype=np.float32))
    with torch.no_grad():
        log_std = float(flow.std.double().log().sum())
        for block_BD in torch.split(rows, _BLOCK):
            standard_BD = ((block_BD - flow.mean) / flow.std).double()
            latent_BD, log_det_B = flow.latent_and_log_det(block_BD)
            length += float(standard_BD.square().sum())
            moved += float((latent_BD.double() - standard_BD).square().sum())
            after += float((log_det_B.double() - 0.5 * latent_BD.double().square().sum(-1)).sum())
    count, width = rows.shape
    constant = 0.5 * width * math.log(2 * math.pi)
    return FlowFit(
        log_prob_before=-0.5 * length / count - log_std - constant,
        log_prob_after=after / count - constant,
        moved=math.sqrt(moved / length) if length else 0.0,
    )
