"""What travels from data tasks to the training step, and what comes back from a forward pass.

Owns the batch type and its conversion to tensors. Knows nothing of any objective.
"""

from __future__ import annotations

from collections.abc import Mapping
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


def cut_batch(batch: Batch, bounds: NDArray[np.int64], *, lengths_of: Mapping[str, str]) -> list[Batch]:
    """Return the batches of the rows [bounds[i], bounds[i + 1]), as views.

    Args:
        batch: arrays with an element per row, or per token.
        bounds: int64[n + 1], ascending.
        lengths_of: for each array with an element per token the array with the lengths of its rows.
    """
    ends = dict.fromkeys(batch, bounds)
    for name, lengths in lengths_of.items():
        ends[name] = np.append(0, np.cumsum(batch[lengths]))[bounds]
    places = {name: ends[name].tolist() for name in batch}
    return [
        {name: values[places[name][i] : places[name][i + 1]] for name, values in batch.items()}
        for i in range(len(bounds) - 1)
    ]


def int64_tensor(values: NDArray[Any], device: torch.device) -> Tensor:
    """Copy an integer array (read-only ones too) to an int64 tensor."""
    return torch.from_numpy(np.array(values, dtype=np.int64)).to(device)
