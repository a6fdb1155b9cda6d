"""Re-ranking: given candidates are scored again, by the encoder's cosine or by a cross-encoder.

Owns the two scorers and the rule for ties: among equal scores candidates keep the order in which they were
given, as the AskUbuntu protocol wants it. A cross-encoder comes from sentence-transformers, an optional extra
that is imported only when one is asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from indexing.exact import inner_products, normalize_rows
from indexing.hits import NO_HIT, Hits
from pipelines.errors import InputError
from tsdae_core.encoder import SentenceEncoder


class Reranker(Protocol):
    """Scores texts for a query."""

    def score(self, query: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """float32[n], one for each text, higher is better."""
        ...


class EncoderReranker:
    """Cosine of the encoder's vectors; safe to use from several threads."""

    def __init__(self, encode: Callable[[Sequence[str]], NDArray[np.float32]]) -> None:
        self._encode = encode

    @classmethod
    def load(cls, folder: str | Path) -> EncoderReranker:
        """Loads an encoder from its folder.

        Raises:
            InputError: there is none.
        """
        try:
            encoder = SentenceEncoder.load(folder)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot load an encoder from '{folder}': {error}") from error
        lock = threading.Lock()

        def encode(texts: Sequence[str]) -> NDArray[np.float32]:
            with lock:
                return encoder.encode(list(texts))

        return cls(encode)

    def score(self, query: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """Cosines float32[n]."""
        if not texts:
            return np.empty(0, np.float32)
        vectors = normalize_rows(self._encode([query, *texts]))
        return inner_products(np.broadcast_to(vectors[0], vectors[1:].shape), vectors[1:])


class CrossEncoderReranker:
    """Any sentence-transformers CrossEncoder with one output; safe to use from several threads."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._lock = threading.Lock()

    @classmethod
    def load(cls, name_or_folder: str, *, device: str = "cpu", logits: bool = False) -> CrossEncoderReranker:
        """Loads a cross-encoder from a folder or, where there is a network, by its hub name; onto a device.

        logits: its values as they are, without the function (often a sigmoid) that its folder names.

        Raises:
            InputError: sentence-transformers is not installed, there is no such model, or it has several
                outputs for a pair.
        """
        try:
            from sentence_transformers import CrossEncoder
        except ImportError as error:
            raise InputError(
                "a cross-encoder needs sentence-transformers: pip install 'tsdae-ray[rerank]'"
            ) from error
        try:
            model = CrossEncoder(name_or_folder, device=device, **_values(logits))
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(f"cannot load the cross-encoder '{name_or_folder}': {reason}") from error
        if int(model.num_labels) != 1:
            raise InputError(
                f"the cross-encoder '{name_or_folder}' gives {model.num_labels} values for a pair; "
                "re-ranking needs one with a single value"
            )
        return cls(model)

    def score(self, query: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """The model's own values float32[n]."""
        if not texts:
            return np.empty(0, np.float32)
        with self._lock:
            values = self._model.predict([(query, text) for text in texts], show_progress_bar=False)
        return np.asarray(values, dtype=np.float32).reshape(len(texts))


def _values(logits: bool) -> dict[str, Any]:
    """What a cross-encoder is told about the function behind its last layer."""
    if not logits:
        return {}
    from torch.nn import Identity

    return {"activation_fn": Identity()}


def rerank_order(scores: NDArray[np.float32]) -> NDArray[np.int64]:
    """Places of the candidates, best first, equal scores in the given order: int64[n].

    Raises:
        ValueError: a NaN score.
    """
    if np.isnan(scores).any():
        raise ValueError("a re-ranking score is not a number; check the model")
    return np.argsort(-scores, kind="stable").astype(np.int64)


def rerank_hits(
    hits: Hits, queries: Sequence[str], texts_of: Callable[[NDArray[np.int64]], list[str]], reranker: Reranker
) -> Hits:
    """The same rows for each query in the re-ranker's order, with its scores."""
    ids, scores = np.full_like(hits.ids, NO_HIT), np.full_like(hits.scores, -np.inf)
    for i, query in enumerate(queries):
        found = hits.ids[i][hits.ids[i] != NO_HIT]
        values = reranker.score(query, texts_of(found))
        order = rerank_order(values)
        ids[i, : len(found)], scores[i, : len(found)] = found[order], values[order]
    return Hits(ids, scores)
