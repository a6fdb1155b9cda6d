"""What is refused before any work is done: no key, a body too large, no room to wait.

A plain ASGI layer around the application, so that a refused request costs next to nothing. Also counts and
times what passes.
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from starlette.exceptions import HTTPException

from pipelines.service.config import ServeConfig
from pipelines.service.metrics import ServiceMetrics

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

# Routes that make the engine work; only they need the key and room.
WORK_ROUTES = ("/search", "/embed", "/rerank", "/documents", "/live")
RETRY_AFTER_S = "1"


class Limits:
    """The layer; counts the requests that are inside it."""

    def __init__(
        self, app: App, *, config: ServeConfig, api_key: str | None, metrics: ServiceMetrics
    ) -> None:
        self._app, self._config, self._metrics = app, config, metrics
        self._api_key = api_key
        self._num_inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection; anything but HTTP goes through untouched."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        route = "/" + str(scope["path"]).strip("/").split("/", 1)[0]
        started_s = time.perf_counter()
        status = 500

        async def counting(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
            await send(message)

        try:
            await self._admit(route, scope, receive, counting)
        finally:
            name = route if route in (*WORK_ROUTES, "/metrics", "/healthz", "/readyz") else "/"
            self._metrics.requests.labels(name, str(status)).inc()
            self._metrics.latency.labels(name).observe(time.perf_counter() - started_s)

    async def _admit(self, route: str, scope: Scope, receive: Receive, send: Send) -> None:
        if route not in WORK_ROUTES:
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        if self._api_key is not None and not _has_key(headers, self._api_key):
            reason = "an API key is needed: send it as X-API-Key or as a Bearer token"
            await _refuse(send, 401, reason, {"www-authenticate": "Bearer"})
            return
        limit = self._config.max_body_bytes
        too_large = f"the body is larger than {limit} bytes"
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > limit:
            await _refuse(send, 413 if length.isdigit() else 400, too_large, {"connection": "close"})
            return
        if self._num_inside >= self._config.max_waiting:
            self._metrics.turned_away.inc()
            reason = f"{self._num_inside} requests are waiting already; try again later"
            await _refuse(send, 429, reason, {"retry-after": RETRY_AFTER_S})
            return
        received = 0

        async def counted() -> MutableMapping[str, Any]:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise HTTPException(413, too_large)
            return message

        self._num_inside += 1
        self._metrics.in_work.set(self._num_inside)
        try:
            await self._app(scope, counted, send)
        finally:
            self._num_inside -= 1
            self._metrics.in_work.set(self._num_inside)


def _has_key(headers: dict[bytes, bytes], key: str) -> bool:
    bearer = headers.get(b"authorization", b"")
    given = headers.get(b"x-api-key", bearer[7:] if bearer.lower().startswith(b"bearer ") else b"")
    return hmac.compare_digest(given, key.encode())


async def _refuse(send: Send, status: int, reason: str, headers: dict[str, str]) -> None:
    body = json.dumps({"error": reason}).encode()
    fields = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    pairs = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
