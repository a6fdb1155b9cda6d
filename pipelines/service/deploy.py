"""Ray Serve: one gateway that speaks HTTP, any number of engine replicas behind it.

The gateway is one process because it counts: waiting requests, metrics. Replicas hold encoder and index and
take requests in batches. Owns how the application is started and stopped.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import ray
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import DeploymentUnavailableError, ReplicaUnavailableError

from pipelines.config import RunConfig
from pipelines.errors import InputError
from pipelines.service.api import create_app
from pipelines.service.batches import Batches
from pipelines.service.config import ServeConfig
from pipelines.service.engine import Answer, Ask, Engine, Refusal
from pipelines.service.live import find_target

logger = logging.getLogger(__name__)

APP_NAME = "tsdae"
API_KEY_VARIABLE = "TSDAE_API_KEY"
# Above the gateway's own limit, so that it is the gateway that turns requests away, with a reason.
_QUEUE_MARGIN = 4
_Result = TypeVar("_Result")


class EngineReplica:
    """Ray Serve's face of the engine: batches searches, works beside the event loop, answers one by one."""

    def __init__(self, config: RunConfig) -> None:
        import torch

        torch.set_num_threads(max(1, int(config.serve.cpus_per_replica)))
        self._engine = Engine(config)
        self._engine.start_watching()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._searches = Batches[Ask, Answer | Refusal](
            lambda asks: self._run(self._engine.search, asks),
            max_size=config.serve.batch_size,
            wait_s=config.serve.batch_wait_ms / 1000,
        )

    async def search(self, ask: Ask) -> Answer | Refusal:
        """One search, encoded together with others that wait."""
        return await self._searches.answer(ask)

    async def embed(self, texts: Sequence[str]) -> Answer | Refusal:
        """Vectors of texts."""
        return await self._run(self._engine.embed, texts)

    async def rerank(self, query: str, texts: Sequence[str], cross_encoder: bool) -> Answer | Refusal:
        """Candidates in order."""
        return await self._run(lambda: self._engine.rerank(query, texts, cross_encoder=cross_encoder))

    async def document(self, doc_id: str) -> Answer | Refusal:
        """One document."""
        return self._engine.document(doc_id)

    async def describe(self) -> Answer:
        """What is live, and which replica says so."""
        answer = self._engine.describe()
        replica = serve.get_replica_context().replica_id.unique_id
        return replace(answer, content={**answer.content, "replica": replica})

    async def _run(self, work: Callable[..., _Result], *arguments: Any) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work, *arguments)


class _Replicas:
    """The backend of the application: one of the replicas, chosen by Ray Serve."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def search(self, ask: Ask) -> Answer | Refusal:
        return await _answered(self._handle.search.remote(ask))

    async def embed(self, texts: Sequence[str]) -> Answer | Refusal:
        return await _answered(self._handle.embed.remote(list(texts)))

    async def rerank(self, query: str, texts: Sequence[str], *, cross_encoder: bool) -> Answer | Refusal:
        return await _answered(self._handle.rerank.remote(query, list(texts), cross_encoder))

    async def document(self, doc_id: str) -> Answer | Refusal:
        return await _answered(self._handle.document.remote(doc_id))

    async def describe(self) -> Answer | Refusal:
        return await _answered(self._handle.describe.remote())


async def _answered(asked: Awaitable[Answer | Refusal]) -> Answer | Refusal:
    """The replica's answer; 503 where it died or none is there. Ray Serve starts another one meanwhile."""
    try:
        return await asked
    except (RayActorError, ReplicaUnavailableError, DeploymentUnavailableError) as error:
        logger.warning("no engine answered: %s", error)
        return Refusal(503, "no engine can answer just now; try again")


class Gateway:
    """The process that speaks HTTP."""

    def __init__(self, engine: Any, config: ServeConfig, api_key: str | None) -> None:
        self._backend = _Replicas(engine)
        self._config, self._api_key = config, api_key

    def __serve_build_asgi_app__(self) -> Any:
        """Ray Serve asks for the application once the gateway is made."""
        return create_app(self._backend, self._config, api_key=self._api_key)


def engine_deployment(settings: ServeConfig) -> Any:
    """The engines as Ray Serve is asked for them, not yet bound to a configuration."""
    return serve.deployment(
        name="engine",
        num_replicas=settings.num_replicas,
        max_ongoing_requests=settings.max_waiting * _QUEUE_MARGIN,
        ray_actor_options={"num_cpus": settings.cpus_per_replica, "num_gpus": settings.gpus_per_replica},
        graceful_shutdown_timeout_s=settings.timeout_s,
    )(EngineReplica)


def application(config: RunConfig, *, api_key: str | None) -> serve.Application:
    """The bound Ray Serve application, for `serve.run`."""
    settings = config.serve
    gateway: Any = serve.deployment(
        name="gateway",
        num_replicas=1,
        max_ongoing_requests=settings.max_waiting * _QUEUE_MARGIN**2,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=settings.timeout_s,
    )(serve.ingress()(Gateway))
    bound: serve.Application = gateway.bind(engine_deployment(settings).bind(config), settings, api_key)
    return bound


@contextmanager
def running(config: RunConfig) -> Iterator[str]:
    """Runs the service for the body, on the cluster that Ray is connected to; yields its address.

    Raises:
        InputError: the workspace is not finished, or the service does not start.
    """
    find_target(config)
    settings = config.serve
    api_key = os.environ.get(API_KEY_VARIABLE) or None
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    options = {"host": settings.host, "port": settings.port, "request_timeout_s": settings.timeout_s + 5}
    try:
        serve.start(http_options=options, logging_config={"log_level": "WARNING", "enable_access_log": False})
        serve.run(application(config, api_key=api_key), name=APP_NAME, route_prefix="/")
    except BaseException as error:
        serve.shutdown()
        if not isinstance(error, (RuntimeError, ray.exceptions.RayError)):
            raise  # an interrupt, for instance
        raise InputError(f"the service did not start: {str(error).strip().splitlines()[-1]}") from error
    try:
        yield f"http://{settings.host}:{settings.port}"
    finally:
        serve.shutdown()
