"""What an evaluation asks of a system: scores of pairs and of candidates, and the best of many documents.

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
from indexing.hits import NO_HIT, Hits, top_k_of

# Texts -> float[n, d].
Encode: TypeAlias = Callable[[list[str]], npt.ArrayLike]
_BLOCK_TEXTS = 8192


class Scorer(Protocol):
    """A system under evaluation."""

    def pair_scores(self, left: Sequence[str], right: Sequence[str]) -> Float32Array:
        """float32[n], higher = more alike."""

    def candidate_scores(
        self, queries: Sequence[str], candidates: Sequence[Sequence[str]]
    ) -> list[Float32Array]:
        """For each query the scores of its own candidates, float32[m] in their order, higher = better."""

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

    def candidate_scores(
        self, queries: Sequence[str], candidates: Sequence[Sequence[str]]
    ) -> list[Float32Array]:
        """The cosine of each candidate with its query."""
        return _by_query(self.pair_scores, queries, candidates)

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

    def candidate_scores(
        self, queries: Sequence[str], candidates: Sequence[Sequence[str]]
    ) -> list[Float32Array]:
        """BM25 of each candidate for its query, with statistics of the candidates of all queries."""
        return _by_query(self.pair_scores, queries, candidates)

    def retrieve(self, queries: Sequence[str], documents: Sequence[str], k: int) -> Hits:
        """The best k documents that share a word with the query."""
        return BM25Searcher.build(np.arange(len(documents)), documents).retrieve(queries, k)


class HybridScorer:
    """Two rankings fused as hybrid search does; ranks documents and candidates, not pairs.

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

    def candidate_scores(
        self, queries: Sequence[str], candidates: Sequence[Sequence[str]]
    ) -> list[Float32Array]:
        """Fused values of the two orders of a query's candidates, equal scores as they came.

        As in a search, a candidate that shares no word with the query has a place in the dense order alone.
        """
        dense = self._dense.candidate_scores(queries, candidates)
        lexical = self._lexical.candidate_scores(queries, candidates)
        return [_fused(one, other, self._config) for one, other in zip(dense, lexical, strict=True)]

    def retrieve(self, queries: Sequence[str], documents: Sequence[str], k: int) -> Hits:
        """The best k documents of both rankings, each at least `config.depth` deep."""
        depth = max(k, self._config.depth)
        dense = self._dense.retrieve(queries, documents, depth)
        return fuse(dense, self._lexical.retrieve(queries, documents, depth), k, self._config)


def _by_query(
    pair_scores: Callable[[Sequence[str], Sequence[str]], Float32Array],
    queries: Sequence[str],
    candidates: Sequence[Sequence[str]],
) -> list[Float32Array]:
    """Scores of pairs of a query and a candidate, asked for together, query by query."""
    left = [query for query, texts in zip(queries, candidates, strict=True) for _ in texts]
    scores = pair_scores(left, [text for texts in candidates for text in texts])
    return np.split(scores, np.cumsum([len(texts) for texts in candidates])[:-1])


def _fused(dense: Float32Array, lexical: Float32Array, config: FusionConfig) -> Float32Array:
    """One query's candidates, float32[m] all three; ids of the hits are their places."""
    places, k = np.arange(len(dense)), len(dense)
    if k == 0:
        return dense
    with_words = np.where(lexical > 0, places, NO_HIT)
    hits = fuse(top_k_of([places], [dense], k), top_k_of([with_words], [lexical], k), k, config)
    scores = np.empty(k, np.float32)
    scores[hits.ids[0]] = hits.scores[0]
    return scores


def _distinct(texts: Sequence[str]) -> tuple[list[str], Int64Array]:
    """The different texts in order of appearance, and for every text its place among them."""
    numbers: dict[str, int] = {}
    places = np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int64)
    return list(numbers), places
