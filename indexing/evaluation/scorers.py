"""What an evaluation asks of a system: scores for pairs of texts, and the best of many documents.

Three kinds, vectors by any `encode`, BM25 and both fused, behind one protocol, so that all rows of a table go
through the same code. Must not know tasks, files or measures.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from indexing.arrays import Float32Array, Int64Array, as_vectors
from indexing.bm25 import BM25Searcher
from indexing.exact import exact_search, inner_products, normalize_rows
from indexing.fusion import FusionConfig, fuse
from indexing.hits import Hits

# Texts -> float[n, d].
Encode: TypeAlias = Callable[[list[str]], npt.ArrayLike]
_BLOCK_TEXTS = 8192


class Scorer(Protocol):
    """A system under evaluation."""

    def pair_scores(self, left: Sequence[str], right: Sequence[str]) -> Float32Array:
        """float32[n], higher = more alike. For re-ranking `left` are queries, `right` candidates."""

    def retrieve(self, queries: Sequence[str], documents: Sequence[str], k: int) -> Hits:
        """The best k documents of each query; ids are places in `documents`."""


class VectorScorer:
    """Cosine of the vectors of an encoder; every distinct text is encoded once per call.

    A zero vector (averaged word vectors of unknown words) has cosine 0 with everything.

    Raises:
        ValueError: NaN or infinity in a vector, or another number of vectors than texts.
    """

    def __init__(self, encode: Encode) -> None:
        self._encode = encode

    def pair_scores(self, left: Sequence[str], right: Sequence[str]) -> Float32Array:
        """float32[n], the cosine of each pair."""
        texts, places = _distinct([*left, *right])
        vectors = self._vectors(texts)
        return inner_products(vectors[places[: len(left)]], vectors[places[len(left) :]])

    def retrieve(self, queries: Sequence[str], documents: Sequence[str], k: int) -> Hits:
        """Exact search by cosine; documents are encoded block by block."""

        def blocks() -> Iterator[tuple[Int64Array, Float32Array]]:
            for start in range(0, len(documents), _BLOCK_TEXTS):
                texts = list(documents[start : start + _BLOCK_TEXTS])
                yield np.arange(start, start + len(texts), dtype=np.int64), self._vectors(texts)

        return exact_search(self._vectors(list(queries)), blocks(), k)

    def _vectors(self, texts: list[str]) -> Float32Array:
        vectors = as_vectors(self._encode(texts), what="encoder")
        if len(vectors) != len(texts):
            raise ValueError(f"encoder: {len(vectors)} vectors for {len(texts)} texts")
        return normalize_rows(vectors)


class BM25Scorer:
    """BM25 with statistics of the texts that are searched.

    For pairs and candidates those are the distinct right-hand texts of the whole task (of its group); the
    left one is the query, so the score is not symmetric.
    """

    def pair_scores(self, left: Sequence[str], right: Sequence[str]) -> Float32Array:
        """float32[n]; 0 where the two share no word."""
        texts, places = _distinct(right)
        searcher = BM25Searcher.build(np.arange(len(texts)), texts)
        scores = np.empty(len(right), np.float32)
        by_query: dict[str, list[int]] = {}
        for number, query in enumerate(left):
            by_query.setdefault(query, []).append(number)
        for query, numbers in by_query.items():
            scores[numbers] = searcher.scores_of(query, places[numbers])
        return scores

    def retrieve(self, queries: Sequence[str], documents: Sequence[str], k: int) -> Hits:
        """The best k documents that share a word with the query."""
        return BM25Searcher.build(np.arange(len(documents)), documents).retrieve(queries, k)


class HybridScorer:
    """Two rankings fused as hybrid search does; ranks documents, not pairs.

    dense: ranks by vectors. lexical: ranks by words.
    """

    def __init__(self, dense: Scorer, lexical: Scorer, config: FusionConfig) -> None:
        self._dense, self._lexical, self._config = dense, lexical, config

    def pair_scores(self, left: Sequence[str], right: Sequence[str]) -> Float32Array:
        """Never: a fused value stands for a place in a ranking.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"fusion ranks documents, it scores no pairs ({len(left)} and {len(right)} texts)")

    def retrieve(self, queries: Sequence[str], documents: Sequence[str], k: int) -> Hits:
        """The best k documents of both rankings, each at least `config.depth` deep."""
        depth = max(k, self._config.depth)
        dense = self._dense.retrieve(queries, documents, depth)
        return fuse(dense, self._lexical.retrieve(queries, documents, depth), k, self._config)


def _distinct(texts: Sequence[str]) -> tuple[list[str], Int64Array]:
    """The different texts in order of appearance, and for every text its place among them."""
    numbers: dict[str, int] = {}
    places = np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int64)
    return list(numbers), places
