"""A service without Ray: the engine in this process behind the application."""

import asyncio

from pipelines.service.api import create_app
from pipelines.service.config import ServeConfig

LIMITS = {"max_texts": 4, "max_text_chars": 50, "max_k": 20, "max_hits": 40, "max_body_bytes": 2_000}


class LocalBackend:
    """The engine, each call in a thread of its own."""

    def __init__(self, engine):
        self.engine = engine

    async def search(self, ask):
        return (await asyncio.to_thread(self.engine.search, [ask]))[0]

    async def embed(self, texts):
        return await asyncio.to_thread(self.engine.embed, texts)

    async def rerank(self, query, texts, *, cross_encoder):
        return await asyncio.to_thread(self.engine.rerank, query, texts, cross_encoder=cross_encoder)

    async def document(self, doc_id):
        return self.engine.document(doc_id)

    async def describe(self):
        return self.engine.describe()


def make_service(engine, *, api_key=None, **settings):
    """The application over an engine, with other settings than the engine's if given."""
    return create_app(LocalBackend(engine), ServeConfig(**settings), api_key=api_key)
