"""What comes back from a forward pass, and the tensors that go into it.

Owns the type of a loss before normalisation and the way from a batch's arrays to tensors. Knows nothing of
any objective.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class LossSums(NamedTuple):
    """A loss before normalisation: the sum over target tokens (scalar tensor) and what divides it.

    ``num_targets`` counts target tokens, or sentences where the objective is set to divide by them.
    """

    loss_sum: Tensor
    num_targets: int


def int64_tensor(values: NDArray[Any], device: torch.device) -> Tensor:
    """Copy an integer array (read-only ones too) to an int64 tensor."""
    return torch.from_numpy(np.array(values, dtype=np.int64)).to(device)
