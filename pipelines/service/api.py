"""The FastAPI application: routes, checks of sizes, reasons for refusals, and the page.

Talks to a `Backend` (the engine, in this process or in replicas of Ray Serve) and knows neither encoder nor
index. Every refusal is `{"error": reason}`; an unexpected failure is logged under a number that the answer
names, and its trace stays in the log.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Awaitable, Sequence
from importlib.resources import files
from typing import Any, Protocol

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from indexing.fusion import FusionConfig, FusionName, fusion_with
from pipelines.service.config import ServeConfig
from pipelines.service.engine import Answer, Ask, Refusal
from pipelines.service.limits import RETRY_AFTER_S, Limits
from pipelines.service.metrics import CONTENT_TYPE, ServiceMetrics
from pipelines.service.schemas import (
    EmbedRequest,
    EmbedResponse,
    ErrorModel,
    HitModel,
    Mode,
    RerankRequest,
    RerankResponse,
    SearchRequest,
    SearchResponse,
)

logger = logging.getLogger(__name__)

_PAGE_FILES = {
    "index.html": "text/html; charset=utf-8",
    "docs.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "terms.js": "text/javascript; charset=utf-8",
    "docs.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorModel, "description": text}
    for status, text in {
        401: "No or a wrong API key.",
        413: "The body is too large.",
        422: "The request makes no sense; the reason is told.",
        429: "Too many requests are waiting; see Retry-After.",
        503: "No engine can answer just now; see Retry-After.",
        504: "The answer took too long.",
    }.items()
}


class Backend(Protocol):
    """What answers: the methods of `engine.Engine`, awaited, one ask at a time."""

    async def search(self, ask: Ask) -> Answer | Refusal:
        """Rankings of one request."""
        ...

    async def embed(self, texts: Sequence[str]) -> Answer | Refusal:
        """Vectors of texts."""
        ...

    async def rerank(self, query: str, texts: Sequence[str], *, cross_encoder: bool) -> Answer | Refusal:
        """Candidates in order."""
        ...

    async def document(self, doc_id: str) -> Answer | Refusal:
        """One document."""
        ...

    async def describe(self) -> Answer | Refusal:
        """What is live."""
        ...


def create_app(backend: Backend, config: ServeConfig, *, api_key: str | None = None) -> FastAPI:
    """The application over a backend; with a key, routes that work ask for it."""
    app = FastAPI(
        title="tsdae-ray search",
        description="Search, embed and re-rank with a domain-adapted encoder and its index.",
        docs_url=None,  # FastAPI's own page loads scripts from a public network
        redoc_url=None,
    )
    metrics = ServiceMetrics()
    app.add_middleware(Limits, config=config, api_key=api_key, metrics=metrics)
    _add_refusals(app)
    call = _Caller(backend, config, metrics)
    _add_search(app, call, config)
    _add_work(app, call, config)
    _add_watching(app, backend, metrics)
    _add_page(app)
    return app


class _Caller:
    """Asks the backend, within the time allowed, and turns refusals into HTTP."""

    def __init__(self, backend: Backend, config: ServeConfig, metrics: ServiceMetrics) -> None:
        self.backend, self._config, self._metrics = backend, config, metrics

    async def __call__(self, asked: Awaitable[Answer | Refusal]) -> Answer:
        try:
            answer = await asyncio.wait_for(asked, self._config.timeout_s)
        except TimeoutError:
            raise HTTPException(504, f"no answer within {self._config.timeout_s:g} s") from None
        if isinstance(answer, Refusal):
            later = {"retry-after": RETRY_AFTER_S} if answer.status == 503 else None
            raise HTTPException(answer.status, answer.reason, headers=later)
        self._metrics.set_live(answer.labels)
        return answer


def _add_search(app: FastAPI, call: _Caller, config: ServeConfig) -> None:
    backend = call.backend

    @app.post("/search", response_model=SearchResponse, responses=_REFUSALS)
    async def search(request: SearchRequest) -> Response:
        """Rank documents for one query, for several, or like a document."""
        answer = await call(backend.search(_ask(request, config)))
        return _json({"results": answer.content, "version": answer.version})

    @app.get("/search", response_model=SearchResponse, responses=_REFUSALS)
    async def search_by_link(
        q: str = Query(description="The query."),
        k: int = Query(10, ge=1),
        mode: Mode = "dense",
        filter: str | None = None,  # noqa: A002  # the field's name in the body
        fusion: FusionName | None = None,
        rrf_k: int | None = Query(None, ge=1),
        dense_weight: float | None = Query(None, gt=0, lt=1),
        rerank: bool = False,
    ) -> Response:
        """The same for one query, as a link."""
        request = SearchRequest(
            query=q,
            queries=None,
            like=None,
            k=k,
            mode=mode,
            filter=filter,
            fusion=fusion,
            rrf_k=rrf_k,
            dense_weight=dense_weight,
            rerank=rerank,
        )
        answer = await call(backend.search(_ask(request, config)))
        return _json({"results": answer.content, "version": answer.version})


def _add_work(app: FastAPI, call: _Caller, config: ServeConfig) -> None:
    backend = call.backend

    @app.post("/embed", response_model=EmbedResponse, responses=_REFUSALS)
    async def embed(request: EmbedRequest) -> Response:
        """Vectors of texts."""
        _check_texts(request.texts, config, what="texts")
        answer = await call(backend.embed(request.texts))
        vectors = answer.content
        dim = int(vectors.shape[1])
        return _json({"vectors": vectors.tolist(), "dim": dim, "version": answer.version})

    @app.post("/rerank", response_model=RerankResponse, responses=_REFUSALS)
    async def rerank(request: RerankRequest) -> Response:
        """Put given candidates in order; equal ones stay as they came."""
        texts = [one if isinstance(one, str) else one.text for one in request.candidates]
        names = [str(i) if isinstance(one, str) else one.id for i, one in enumerate(request.candidates)]
        _check_texts([request.query], config, what="query")
        _check_texts(texts, config, what="candidates")
        asked = backend.rerank(request.query, texts, cross_encoder=request.model == "cross_encoder")
        answer = await call(asked)
        results = [{**ranked, "id": names[ranked["index"]]} for ranked in answer.content]
        return _json({"results": results, "version": answer.version})

    @app.get("/documents/{doc_id:path}", response_model=HitModel, responses={404: {"model": ErrorModel}})
    async def document(doc_id: str) -> Response:
        """A document by its id, with its columns."""
        answer = await call(backend.document(doc_id))
        return _json({"rank": 0, "score": 0.0, **answer.content})

    @app.get("/live")
    async def live() -> Response:
        """Which encoder and index are live, their columns, and the limits of a request."""
        answer = await call(backend.describe())
        names = ("max_k", "max_hits", "max_texts", "max_text_chars", "max_body_bytes", "max_waiting")
        return _json({**answer.content, "limits": {name: getattr(config, name) for name in names}})


def _add_watching(app: FastAPI, backend: Backend, metrics: ServiceMetrics) -> None:
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The gateway is alive."""
        return {"status": "ok"}

    @app.get("/readyz", responses={503: {"model": ErrorModel}})
    async def readyz() -> Response:
        """An engine with an index can answer."""
        try:
            answer = await asyncio.wait_for(backend.describe(), 5)
        except Exception as error:
            # Whatever keeps the engine from answering, the service is not ready: that is this route's answer.
            logger.warning("not ready: %r", error)
            raise HTTPException(503, "no engine answers yet") from error
        if isinstance(answer, Refusal):
            raise HTTPException(answer.status, answer.reason)
        return _json({"status": "ready", "version": answer.version})

    @app.get("/metrics", include_in_schema=False)
    async def metrics_text() -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE)


def _add_page(app: FastAPI) -> None:
    folder = files("pipelines.service").joinpath("page")
    contents = {name: folder.joinpath(name).read_bytes() for name in _PAGE_FILES}

    def page(name: str) -> Response:
        return Response(contents[name], media_type=_PAGE_FILES[name], headers=_PAGE_HEADERS)

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return page("index.html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return page("docs.html")

    @app.get("/page/{name}", include_in_schema=False)
    async def part(name: str) -> Response:
        if name not in contents:
            raise HTTPException(404, f"there is no page file '{name}'")
        return page(name)


def _add_refusals(app: FastAPI) -> None:
    @app.exception_handler(StarletteHTTPException)
    async def refused(_request: Request, error: StarletteHTTPException) -> Response:
        return JSONResponse({"error": str(error.detail)}, error.status_code, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> Response:
        return JSONResponse({"error": "; ".join(_reason(one) for one in error.errors())}, 422)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        number = uuid.uuid4().hex[:12]
        logger.error("failure %s at %s", number, request.url.path, exc_info=error)
        return JSONResponse({"error": f"internal error; the server's log has it as {number}"}, 500)


def _reason(error: dict[str, Any]) -> str:
    place = ".".join(str(part) for part in error["loc"][1:])  # the first says body, query or path
    if error["type"] == "json_invalid":
        return f"the body is not JSON: {error.get('ctx', {}).get('error', 'cannot be read')}"
    message = str(error["ctx"]["error"] if error["type"] == "value_error" else error["msg"])
    return f"{place}: {message}" if place else message


def _ask(request: SearchRequest, config: ServeConfig) -> Ask:
    given = [part for part in (request.query, request.queries, request.like) if part is not None]
    if len(given) != 1:
        raise HTTPException(422, "give exactly one of query, queries and like")
    if request.k > config.max_k:
        raise HTTPException(422, f"k is {request.k}, at most {config.max_k} are given")
    queries = request.queries or ([] if request.query is None else [request.query])
    if request.like is None:
        _check_texts(queries, config, what="queries")
        if len(queries) * request.k > config.max_hits:
            raise HTTPException(
                422,
                f"{len(queries)} queries with k {request.k}: at most {config.max_hits} hits at once",
            )
    elif request.mode != "dense" or request.rerank:
        raise HTTPException(
            422, "like ranks by the document's vector: leave out rerank, and any mode but dense"
        )
    if request.filter is not None and len(request.filter) > config.max_text_chars:
        raise HTTPException(422, f"the filter is longer than {config.max_text_chars} characters")
    fusion = _fusion(request, config)
    return Ask(tuple(queries), request.k, request.mode, request.filter, request.rerank, request.like, fusion)


def _fusion(request: SearchRequest, config: ServeConfig) -> FusionConfig | None:
    """What the request changes of the service's fusion; None where it changes nothing."""
    if request.fusion is None and request.rrf_k is None and request.dense_weight is None:
        return None
    if request.mode != "hybrid":
        raise HTTPException(422, "fusion, rrf_k and dense_weight go with the mode hybrid")
    try:
        return fusion_with(
            config.fusion, kind=request.fusion, rrf_k=request.rrf_k, dense_weight=request.dense_weight
        )
    except ValueError as error:
        raise HTTPException(422, str(error)) from error


def _check_texts(texts: Sequence[str], config: ServeConfig, *, what: str) -> None:
    if not texts:
        raise HTTPException(422, f"{what}: give at least one text")
    if len(texts) > config.max_texts:
        raise HTTPException(422, f"{what}: {len(texts)} texts, at most {config.max_texts} at once")
    for place, text in enumerate(texts):
        where = what if len(texts) == 1 else f"{what}[{place}]"
        if not text.strip():
            raise HTTPException(422, f"{where}: the text is empty")
        if len(text) > config.max_text_chars:
            raise HTTPException(
                422, f"{where}: {len(text)} characters, at most {config.max_text_chars} are taken"
            )


def _json(content: Any) -> Response:
    """JSON without a second look by FastAPI, which would copy every hit through its models."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, default=str, separators=(",", ":"))
    return Response(text, media_type="application/json")
