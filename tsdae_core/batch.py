"""What travels from data tasks to the training step: flat arrays by name. Knows nothing of any objective."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

# One-dimensional arrays, so that a batch can travel as Arrow columns.
Batch = dict[str, NDArray[Any]]


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
