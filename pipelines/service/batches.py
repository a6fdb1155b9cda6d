"""Asks that came while the work ran are the next batch.

Ray Serve's own batching closes a batch some milliseconds after its first ask, also while the replica
computes: a busy replica then works through batches of one and two. Owns who waits; knows nothing of the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

_Ask = TypeVar("_Ask")
_Answer = TypeVar("_Answer")


class Batches(Generic[_Ask, _Answer]):
    """Runs the work on what waits, one batch at a time, in the order of arrival. For one event loop.

    Args:
        work: gives one answer for each ask, in order; what it raises goes to every ask of the batch.
        max_size: asks of a batch, at most.
        wait_s: how long the first ask waits for others when nothing runs.
    """

    def __init__(
        self,
        work: Callable[[list[_Ask]], Awaitable[Sequence[_Answer]]],
        *,
        max_size: int,
        wait_s: float = 0.0,
    ) -> None:
        self._work, self._max_size, self._wait_s = work, max_size, wait_s
        self._waiting: list[tuple[_Ask, asyncio.Future[_Answer]]] = []
        self._runner: asyncio.Task[None] | None = None

    async def answer(self, ask: _Ask) -> _Answer:
        """The answer to one ask; who stops waiting before its batch begins is left out of it."""
        future: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((ask, future))
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        await asyncio.sleep(self._wait_s)
        while self._waiting:
            taken, self._waiting = self._waiting[: self._max_size], self._waiting[self._max_size :]
            batch = [(ask, future) for ask, future in taken if not future.done()]
            if batch:
                await self._run_batch([ask for ask, _ in batch], [future for _, future in batch])

    async def _run_batch(self, asks: list[_Ask], futures: list[asyncio.Future[_Answer]]) -> None:
        (found,) = await asyncio.gather(self._work(asks), return_exceptions=True)
        if not isinstance(found, BaseException) and len(found) != len(asks):
            found = RuntimeError(f"{len(found)} answers to {len(asks)} asks")
        for place, future in enumerate(futures):
            if future.done():
                continue
            if isinstance(found, BaseException):
                future.set_exception(found)
            else:
                future.set_result(found[place])
