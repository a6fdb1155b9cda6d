"""Whitening (Su et al. 2021, arXiv 2103.15316): make the corpus's vectors uncorrelated with unit variance.

Owns the fit, from blocks of vectors in one pass. The result is a `Dense` module, so an encoder that ends with
it is an ordinary encoder folder, which sentence-transformers can read as well. Knows nothing of texts.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from tsdae_core.pooling import Dense, DenseConfig

# Directions whose variance is below this share of the largest are rounding noise, not meaning.
_MIN_SHARE = 1e-10


def fit_whitening(blocks: Iterable[NDArray[np.floating]], *, num_dims: int | None = None) -> Dense:
    """Return the linear module that whitens, ``x -> (x - mean) W``.

    Args:
        blocks: float[n, d] arrays, read once; sums are kept in float64.
        num_dims: how many directions to keep, those of the largest variance first; None keeps all that vary.

    Raises:
        ValueError: for fewer than two vectors, or if ``num_dims`` is more than vary.
    """
    count, total, moment = 0, np.zeros(0), np.zeros((0, 0))
    for block in blocks:
        rows = np.asarray(block, dtype=np.float64)
        if count == 0:
            total, moment = np.zeros(rows.shape[1]), np.zeros((rows.shape[1], rows.shape[1]))
            shift = rows[:1].mean(0)
        rows = rows - shift  # near the mean, so that the second moment keeps its digits
        count, total, moment = count + rows.shape[0], total + rows.sum(0), moment + rows.T @ rows
    if count < 2:
        raise ValueError(f"whitening needs at least 2 vectors, got {count}")
    mean = total / count
    covariance = (moment - count * np.outer(mean, mean)) / (count - 1)
    variances, directions = np.linalg.eigh(covariance)
    variances, directions = variances[::-1], directions[:, ::-1]
    num_varying = int((variances > _MIN_SHARE * variances[0]).sum()) if variances[0] > 0 else 0
    kept = num_varying if num_dims is None else num_dims
    if not 1 <= kept <= num_varying:
        raise ValueError(f"num_dims={num_dims}, but the vectors vary in {num_varying} directions only")
    signs = np.sign(directions[np.abs(directions).argmax(0), np.arange(directions.shape[1])])
    weight = (directions * signs)[:, :kept].T / np.sqrt(variances[:kept])[:, None]
    dense = Dense(DenseConfig(weight.shape[1], kept, True, "Identity"))
    with torch.no_grad():
        dense.linear.weight.copy_(torch.from_numpy(weight))
        dense.linear.bias.copy_(torch.from_numpy(-weight @ (mean + shift)))
    return dense
