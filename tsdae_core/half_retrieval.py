"""A retrieval task without labels: the two halves of a held-out text should find each other.

Owns how texts are halved and the measure. Knows nothing of encoders, workers or when it is computed. It is no
part of the paper; it stands in for a labelled development set, which TSDAE does without.

Shapes: B texts, D width.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsdae_core.ragged import Int64s, Ragged, expand_spans
from tsdae_core.tokens import TokenizedTexts

_MIN_WORDS_PER_HALF = 2
_QUERIES_PER_BLOCK = 1024


class Halves(NamedTuple):
    """First and second halves of texts, ids without special tokens; ``rows`` (int64) says of which texts."""

    rows: Int64s
    first: Ragged
    second: Ragged


def split_halves(tokens: TokenizedTexts) -> Halves:
    """Cut texts between the two words in the middle; texts of fewer than 4 words are left out."""
    rows, cuts = [], []
    for row in range(len(tokens)):
        begin, end = int(tokens.ids.offsets[row]), int(tokens.ids.offsets[row + 1])
        starts = np.flatnonzero(tokens.word_starts[begin:end])
        if len(starts) >= 2 * _MIN_WORDS_PER_HALF:
            rows.append(row)
            cuts.append(int(starts[(len(starts) + 1) // 2]))
    kept, cut = np.array(rows, dtype=np.int64), np.array(cuts, dtype=np.int64)
    begins, lengths = tokens.ids.offsets[:-1][kept], tokens.ids.lengths[kept]
    first = Ragged(tokens.ids.values[expand_spans(begins, cut)], cut)
    second = Ragged(tokens.ids.values[expand_spans(begins + cut, lengths - cut)], lengths - cut)
    return Halves(kept, first, second)


def mean_reciprocal_rank(first_BD: NDArray[np.float32], second_BD: NDArray[np.float32]) -> float:
    """Return how well row b of one array finds row b of the other among all its rows by cosine, in (0, 1].

    Both directions count alike. An equal score of another row counts as half a rank, so that an encoder which
    gives the same vector to everything scores like chance.

    Raises:
        ValueError: for arrays without rows or of different shapes.
    """
    if first_BD.shape != second_BD.shape or not len(first_BD):
        raise ValueError(f"need two arrays of one shape with rows, got {first_BD.shape}, {second_BD.shape}")
    first_BD, second_BD = _unit(first_BD), _unit(second_BD)
    total = _reciprocal_ranks(first_BD, second_BD) + _reciprocal_ranks(second_BD, first_BD)
    return total / (2 * len(first_BD))


def _reciprocal_ranks(queries_BD: NDArray[np.float32], keys_BD: NDArray[np.float32]) -> float:
    total = 0.0
    for begin in range(0, len(queries_BD), _QUERIES_PER_BLOCK):
        scores = queries_BD[begin : begin + _QUERIES_PER_BLOCK] @ keys_BD.T
        places = np.arange(len(scores))
        own = scores[places, begin + places][:, None]
        better = (scores > own).sum(1)
        equal = (scores == own).sum(1) - 1
        total += float((1.0 / (1.0 + better + 0.5 * equal)).sum())
    return total


def _unit(vectors_BD: NDArray[np.float32]) -> NDArray[np.float32]:
    norms = np.linalg.norm(vectors_BD, axis=1, keepdims=True)
    unit: NDArray[np.float32] = vectors_BD / np.maximum(norms, np.float32(1e-12))
    return unit
