"""The work of the service on batches of requests, without HTTP or Ray.

An ask that makes no sense gets a `Refusal` and does not disturb those beside it. Owns how asks of one batch
share an encoder pass. Safe to call from several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from indexing.fusion import FusionConfig
from pipelines.config import RunConfig
from pipelines.errors import InputError
from pipelines.rerank import CrossEncoderReranker, EncoderReranker, Reranker, rerank_order
from pipelines.search import Hit, Mode
from pipelines.service.live import Live, LiveSearcher


@dataclass(frozen=True)
class Ask:
    """Queries of one request and how to rank; `like` is the id of a document instead of a query.

    fusion: of hybrid mode; None takes the service's.
    """

    queries: tuple[str, ...]
    k: int
    mode: Mode = "dense"
    filter: str | None = None
    rerank: bool = False
    like: str | None = None
    fusion: FusionConfig | None = None


@dataclass(frozen=True)
class Refusal:
    """Why an ask has no answer, and the HTTP status that says so."""

    status: int
    reason: str


@dataclass(frozen=True)
class Answer:
    """What a request gets: JSON-like content, the version that made it, and that version's labels."""

    content: Any
    version: str
    labels: Mapping[str, str]


class Engine:
    """Answers batches of asks with the live searcher."""

    def __init__(self, config: RunConfig) -> None:
        """Opens the live searcher and, if configured, the cross-encoder.

        Raises:
            InputError, ValueError: one of them cannot be opened, or there is no GPU where one is asked for.
        """
        self._config = config.serve
        if config.serve.gpus_per_replica:
            _check_gpu(config.serve.gpus_per_replica)
        self.live = LiveSearcher(config)
        self._cross_encoder: Reranker | None = None
        if config.serve.cross_encoder is not None:
            self._cross_encoder = CrossEncoderReranker.load(
                config.serve.cross_encoder, device=config.serve.device
            )
        self._stop = threading.Event()

    def start_watching(self) -> None:
        """Follows new versions in a thread that ends with the process or `close`."""
        threading.Thread(
            target=self.live.watch, args=(self._stop, lambda: None), name="watch-versions", daemon=True
        ).start()

    def close(self) -> None:
        """Stops following new versions."""
        self._stop.set()

    def search(self, asks: Sequence[Ask]) -> list[Answer | Refusal]:
        """One answer for each ask, in order: a list of {query, hits}."""
        live = self.live.current
        answers: list[Answer | Refusal | None] = [None] * len(asks)
        for places in _groups(asks):
            group = [asks[place] for place in places]
            try:
                found = self._search_alike(live, group)
            except ValueError as error:
                if len(group) > 1:
                    # One of them is at fault: each on its own, so that only it is refused.
                    for place in places:
                        answers[place] = self.search([asks[place]])[0]
                    continue
                answers[places[0]] = _refusal(error)
                continue
            for place, ask, rankings in zip(places, group, found, strict=True):
                names = ask.queries if ask.like is None else (f"like {ask.like}",)
                content = [
                    {"query": query, "hits": [asdict(hit) for hit in hits]}
                    for query, hits in zip(names, rankings, strict=True)
                ]
                answers[place] = Answer(content, live.version, live.labels)
        return [answer for answer in answers if answer is not None]

    def embed(self, texts: Sequence[str]) -> Answer | Refusal:
        """Vectors float32[n, d] of the texts, as an array."""
        live = self.live.current
        try:
            return Answer(live.searcher.encode(texts), live.version, live.labels)
        except ValueError as error:
            return _refusal(error)

    def rerank(self, query: str, texts: Sequence[str], *, cross_encoder: bool) -> Answer | Refusal:
        """Candidates in their new order: a list of {rank, index, score}."""
        live = self.live.current
        reranker: Reranker = EncoderReranker(live.searcher.encode)
        if cross_encoder:
            if self._cross_encoder is None:
                return Refusal(422, "this service has no cross-encoder; set serve.cross_encoder")
            reranker = self._cross_encoder
        try:
            scores = reranker.score(query, texts)
            order = rerank_order(scores)
        except ValueError as error:
            return _refusal(error)
        ranked = [
            {"rank": rank, "index": place, "score": float(scores[place])}
            for rank, place in enumerate(order.tolist(), 1)
        ]
        return Answer(ranked, live.version, live.labels)

    def document(self, doc_id: str) -> Answer | Refusal:
        """A document with its columns."""
        live = self.live.current
        try:
            hit = live.searcher.document(doc_id)
        except InputError as error:
            return Refusal(404, str(error))
        content = {"doc_id": hit.doc_id, "title": hit.title, "text": hit.text, "columns": dict(hit.columns)}
        return Answer(content, live.version, live.labels)

    def describe(self) -> Answer:
        """Which encoder and index are live, and what they can do."""
        live = self.live.current
        content = {
            **live.searcher.info,
            "version": live.version,
            "model": self._config.model,
            "model_version": live.model_version,
            "columns": live.searcher.documents.columns,
            "cross_encoder": self._config.cross_encoder,
            "last_error": self.live.last_error,
        }
        return Answer(content, live.version, live.labels)

    def _search_alike(self, live: Live, group: Sequence[Ask]) -> list[list[list[Hit]]]:
        """Rankings for asks of one k, mode, filter, fusion and re-ranking: all their queries in one pass."""
        first = group[0]
        if first.like is not None:
            return [[live.searcher.like(str(ask.like), ask.k, filter=ask.filter)] for ask in group]
        reranker = self._cross_encoder if first.rerank else None
        if first.rerank and reranker is None:
            raise InputError("this service has no cross-encoder; set serve.cross_encoder")
        rankings = live.searcher.search(
            [query for ask in group for query in ask.queries],
            first.k,
            mode=first.mode,
            filter=first.filter,
            fusion=first.fusion or self._config.fusion,
            reranker=reranker,
            rerank_depth=self._config.rerank_depth,
        )
        found, start = [], 0
        for ask in group:
            found.append(rankings[start : start + len(ask.queries)])
            start += len(ask.queries)
        return found


def _check_gpu(number: float) -> None:
    import torch

    if not torch.cuda.is_available():
        raise InputError(
            f"serve.gpus_per_replica is {number:g}, and PyTorch sees no GPU in the replica: install its CUDA "
            "build, or set 0"
        )


def _groups(asks: Sequence[Ask]) -> list[list[int]]:
    """Places of asks that differ in their queries alone."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, ask in enumerate(asks):
        key = (ask.k, ask.mode, ask.filter, ask.rerank, ask.like is not None, ask.fusion)
        groups.setdefault(key, []).append(place)
    return list(groups.values())


def _refusal(error: ValueError) -> Refusal:
    missing = isinstance(error, InputError) and "there is no document" in str(error)
    return Refusal(404 if missing else 422, " ".join(str(error).split()))
