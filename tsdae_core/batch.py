"""What travels from data tasks to the training step, and what comes back from a forward pass.

Owns the batch type and its conversion to tensors. Knows nothing of any objective.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Flat one-dimensional arrays by name, so that a batch can travel as Arrow columns.
Batch = dict[str, NDArray[Any]]


class LossSums(NamedTuple):
    """A loss before normalisation: the sum over target tokens (scalar tensor) and what divides it.

    ``num_targets`` counts target tokens, or sentences where the objective is set to divide by them.
    """

    loss_sum: Tensor
    num_targets: int


def int64_tensor(values: NDArray[Any], device: torch.device) -> Tensor:
    """Copy an integer array (read-only ones too) to an int64 tensor."""
    return torch.from_numpy(np.array(values, dtype=np.int64)).to(device)
