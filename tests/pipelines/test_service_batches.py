"""Batches of the service: what waits while the work runs is taken together."""

import asyncio

import pytest

from pipelines.service.batches import Batches


class Work:
    """Doubles numbers; holds every batch until it is let go."""

    def __init__(self):
        self.batches, self.gate = [], asyncio.Event()

    async def __call__(self, numbers):
        self.batches.append(list(numbers))
        await self.gate.wait()
        if -1 in numbers:
            raise RuntimeError("no such number")
        return [2 * number for number in numbers]


async def started(batches, numbers):
    """Tasks of asks that have all got to waiting."""
    tasks = [asyncio.create_task(batches.answer(number)) for number in numbers]
    for _ in range(4):
        await asyncio.sleep(0)
    return tasks


def test_asks_that_come_while_the_work_runs_are_one_batch_in_their_order():
    async def run():
        work = Work()
        batches = Batches(work, max_size=4)
        first = await started(batches, [0])
        others = [task for number in range(1, 7) for task in await started(batches, [number])]
        work.gate.set()
        answers = await asyncio.gather(*first, *others)
        return answers, work.batches

    answers, taken = asyncio.run(run())
    assert answers == [0, 2, 4, 6, 8, 10, 12]
    assert taken == [[0], [1, 2, 3, 4], [5, 6]]


def test_an_idle_one_waits_for_others_as_long_as_it_is_told():
    async def run():
        work = Work()
        work.gate.set()
        batches = Batches(work, max_size=8, wait_s=0.05)
        tasks = await started(batches, [1])
        tasks += await started(batches, [2, 3])
        await asyncio.gather(*tasks)
        return work.batches

    assert asyncio.run(run()) == [[1, 2, 3]]


def test_who_gave_up_waiting_is_left_out():
    async def run():
        work = Work()
        batches = Batches(work, max_size=8)
        tasks = await started(batches, [1]) + await started(batches, [2, 3])
        tasks[1].cancel()
        work.gate.set()
        return await asyncio.gather(*tasks, return_exceptions=True), work.batches

    answers, taken = asyncio.run(run())
    assert isinstance(answers[1], asyncio.CancelledError)
    assert (answers[0], answers[2], taken) == (2, 6, [[1], [3]])


def test_an_error_goes_to_its_batch_and_the_next_one_runs():
    async def run():
        work = Work()
        batches = Batches(work, max_size=8)
        first, wrong = await started(batches, [1]), await started(batches, [-1, 2])
        work.gate.set()
        found = await asyncio.gather(*first, *wrong, return_exceptions=True)
        return found, await batches.answer(5)

    (good, *bad), later = asyncio.run(run())
    assert (good, later) == (2, 10)
    assert [str(error) for error in bad] == ["no such number"] * 2


def test_too_few_answers_are_an_error():
    async def short(_numbers):
        return []

    with pytest.raises(RuntimeError, match="0 answers to 1 asks"):
        asyncio.run(Batches(short, max_size=8).answer(1))
