"""Exact nearest-neighbour search by inner product: the oracle that every index is measured against.

The score of a pair is defined as the float64 inner product rounded to float32, so that it depends on the two
vectors alone, not on how rows are split into blocks, how queries are batched or which matrix kernel runs.
Single-precision matrix products only preselect, with a margin that covers their rounding error
(Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1).
Knows arrays; must not know files or FAISS.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from indexing.arrays import Float32Array, Float64Array, Int64Array, as_row_ids, as_vectors, check_finite
from indexing.hits import NO_HIT, Hits, merge_hits, top_k_of_pairs

# Bounds on temporaries: 1,024 x 8,192 float32 scores = 32 MiB.
QUERY_CHUNK = 1024
ROW_CHUNK = 8192
PAIR_CHUNK = 16384


def normalize_rows(vectors: npt.ArrayLike) -> Float32Array:
    """Rows scaled to Euclidean length 1, float32[n, d], so that inner product is cosine.

    A zero row stays zero: its cosine with everything counts as 0 (averaged word vectors give such rows for
    texts without known words). Applying it twice changes nothing.

    Raises:
        ValueError: not [n, d] numbers, or NaN or infinity, naming the row numbers.
    """
    array = as_vectors(vectors, what="normalize_rows")
    check_finite(array, row_ids=None, what="normalize_rows")
    norms = np.sqrt(np.einsum("nd,nd->n", array, array, dtype=np.float64))
    # float32 rounding leaves |norm - 1| below d x 6e-8 / 2: already normalised rows are kept bit for bit.
    done = (norms == 0) | (np.abs(norms - 1) < 1e-5)
    if done.all():
        return array
    scaled = array / np.where(done, 1.0, norms)[:, None]
    return scaled.astype(np.float32)


def exact_search(
    queries: npt.ArrayLike, blocks: Iterable[tuple[npt.ArrayLike, npt.ArrayLike]], k: int
) -> Hits:
    """The k rows with the largest inner product for every query, under the tie rule of `indexing.hits`.

    Args:
        queries: float[nq, d]. For cosine the caller normalises queries and rows (`normalize_rows`).
        blocks: (row ids int64[n], vectors float[n, d]) in any split and order, each row once; read once, one
            block in memory at a time.
        k: places wanted; queries over fewer rows end in -1.

    Returns:
        Hits whose scores are the float64 inner products rounded to float32. The result does not depend on
        the split into blocks or on which other queries are asked.

    Raises:
        ValueError: k < 1, shapes that do not fit, NaN or infinity (named by row id), or a row id that
            reaches the top k twice.
    """
    query_array = as_vectors(queries, what="queries")
    check_finite(query_array, row_ids=None, what="queries")
    best = _no_hits(len(query_array), k)
    for row_ids, vectors in blocks:
        block = as_vectors(vectors, what="block", dim=query_array.shape[1])
        ids = as_row_ids(row_ids, what="block", num_rows=len(block))
        check_finite(block, row_ids=ids, what="block")
        for start in range(0, len(block), ROW_CHUNK):
            rows = slice(start, start + ROW_CHUNK)
            best = _search_chunk(query_array, ids[rows], block[rows], best)
    return best


def inner_products(left: Float32Array, right: Float32Array) -> Float32Array:
    """Row-wise scores as this module defines them: float32[p] from two float32[p, d]."""
    out = np.empty(len(left), dtype=np.float32)
    for start in range(0, len(left), PAIR_CHUNK):
        rows = slice(start, start + PAIR_CHUNK)
        # Products of float32 are exact in float64; a plain sum over the same axis order for every pair.
        products = left[rows].astype(np.float64) * right[rows]
        out[rows] = products.sum(axis=1)
    return out


def largest_norm(vectors: Float32Array) -> float:
    """The largest Euclidean length among the rows, 0 without rows."""
    squared = np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64)
    return float(np.sqrt(squared.max(initial=0.0)))


def rounding_margin(queries: Float32Array, *, largest: float) -> Float64Array:
    """How far a float32 inner product with a row of at most this length may be off, float64[nq].

    Raises:
        ValueError: vectors so long that a float32 inner product can overflow.
    """
    float32 = np.finfo(np.float32)
    products = np.sqrt(np.einsum("nd,nd->n", queries, queries, dtype=np.float64)) * largest
    if products.max(initial=0.0) > float32.max / 4:
        raise ValueError(
            "vectors are too long for single precision (inner products over 1e38): normalise them"
        )
    margin: Float64Array = (queries.shape[1] + 2) * (float(float32.eps) * products + float(float32.tiny))
    return margin


def _no_hits(num_queries: int, k: int) -> Hits:
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    shape = (num_queries, k)
    return Hits(np.full(shape, NO_HIT, dtype=np.int64), np.full(shape, -np.inf, dtype=np.float32))


def _search_chunk(queries: Float32Array, ids: Int64Array, vectors: Float32Array, best: Hits) -> Hits:
    parts = [
        _search_queries(queries[rows], ids, vectors, Hits(best.ids[rows], best.scores[rows]))
        for rows in _slices(len(queries), QUERY_CHUNK)
    ]
    if not parts:
        return best
    return Hits(np.concatenate([p.ids for p in parts]), np.concatenate([p.scores for p in parts]))


def _search_queries(queries: Float32Array, ids: Int64Array, vectors: Float32Array, best: Hits) -> Hits:
    k = best.k
    margin = rounding_margin(queries, largest=largest_norm(vectors))
    approximate = queries @ vectors.T
    floors = best.scores[:, -1].astype(np.float64) - margin
    if len(vectors) > k and not np.isfinite(floors).all():
        kth_largest = np.partition(approximate, len(vectors) - k, axis=1)[:, len(vectors) - k]
        floors = np.maximum(floors, kth_largest - 2 * margin)
    query_rows, columns = np.nonzero(approximate >= floors[:, None])
    scores = np.empty(len(query_rows), dtype=np.float32)
    for pairs in _slices(len(query_rows), PAIR_CHUNK):
        scores[pairs] = inner_products(queries[query_rows[pairs]], vectors[columns[pairs]])
    found = top_k_of_pairs(query_rows, ids[columns], scores, num_queries=len(queries), k=k)
    return merge_hits([best, found], k)


def _slices(total: int, size: int) -> Iterator[slice]:
    for start in range(0, total, size):
        yield slice(start, start + size)
