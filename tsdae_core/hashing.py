"""Counter-based random numbers: a value is a function of its key, never of a stream.

Owns the splitmix64 mixing function (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
OOPSLA 2014) in vectorised uint64 arithmetic, which wraps modulo 2^64 and so gives the same bytes on every
platform, for any batching and any worker count. Knows nothing of texts, tokens or models.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_MASK64 = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB

Counter = NDArray[np.integer[Any]] | int


def fold_key(*parts: int | str) -> int:
    """Return one 64-bit key for an ordered tuple of integers and names.

    A name (a purpose such as ``"noise"``) keeps two uses of the same seed independent of each other.
    """
    key = 0
    for part in parts:
        words = [part & _MASK64] if isinstance(part, int) else list(part.encode())
        for word in (len(words), *words):
            key = _mix_int((key + (word + 1) * _GAMMA) & _MASK64)
    return key


def keyed_hash(key: int, *counters: Counter) -> NDArray[np.uint64]:
    """Return one hash per broadcast element of the counters.

    Args:
        key: any integer, taken modulo 2^64 (see `fold_key`).
        counters: integers or integer arrays of shapes that broadcast; negative values wrap modulo 2^64.

    Returns:
        uint64 of the broadcast shape. For one key, hashes of different values of a single counter differ.
    """
    state = np.asarray(key & _MASK64, dtype=np.uint64)
    gamma = np.uint64(_GAMMA)
    with np.errstate(over="ignore"):
        for counter in counters:
            state = _mix(state + (_as_uint64(counter) + np.uint64(1)) * gamma)
    return np.asarray(state, dtype=np.uint64)


def keyed_uniform(key: int, *counters: Counter) -> NDArray[np.float64]:
    """Return float64 numbers in [0, 1) with 53 random bits, shaped and keyed as in `keyed_hash`."""
    return (keyed_hash(key, *counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def keyed_permutation(n: int, *key: int) -> NDArray[np.int64]:
    """Return a permutation of ``range(n)`` as int64[n], a function of ``n`` and the key alone.

    Raises:
        ValueError: if ``n`` is negative.
    """
    if n < 0:
        raise ValueError(f"keyed_permutation needs n >= 0, got {n}")
    hashes = keyed_hash(fold_key("permutation", *key), np.arange(n, dtype=np.int64))
    return np.argsort(hashes, kind="stable").astype(np.int64)


def _as_uint64(counter: Counter) -> NDArray[np.uint64]:
    if isinstance(counter, int):
        return np.asarray(counter & _MASK64, dtype=np.uint64)
    return np.asarray(counter).astype(np.uint64)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(_MIX1)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(_MIX2)
    return np.asarray(state ^ (state >> np.uint64(31)), dtype=np.uint64)


def _mix_int(state: int) -> int:
    state = ((state ^ (state >> 30)) * _MIX1) & _MASK64
    state = ((state ^ (state >> 27)) * _MIX2) & _MASK64
    return state ^ (state >> 31)
