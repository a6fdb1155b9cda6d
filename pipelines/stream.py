"""The stream of batches into one train worker: Ray Data tasks read, noise and batch ahead of the training.

One task makes one chunk of steps of this worker's lanes (see `lanes`), in order. The noise is keyed by
(seed, epoch, row), so neither the number of workers nor the place where a task runs changes a batch.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import ray.data
from numpy.typing import NDArray

from pipelines.lanes import Chunk, LanePlan, chunks
from pipelines.token_shards import TokenRows
from tsdae_core.batch import Batch
from tsdae_core.objective import Objective
from tsdae_core.tokens import TokenizedTexts

# Chunks under way for one worker: the one being trained on is already here, the next is being made.
_TASKS_AHEAD = 1
_LOOK_S = 0.2
_CLOSE_S = 10.0


@dataclass(frozen=True)
class StepBatch:
    """One worker's share of the global batch of a step (counted over all epochs); it may be empty."""

    step: int
    row_ids: NDArray[np.int64]
    micro_batches: Sequence[Batch]

    @property
    def num_tokens(self) -> int:
        """Tokens that go through the model."""
        return sum(num_tokens(batch) for batch in self.micro_batches)


def num_tokens(batch: Batch) -> int:
    """All tokens that go through the model for a batch: the sum of everything its lengths count."""
    return int(sum(values.sum() for key, values in batch.items() if key.endswith("lengths")))


class BatchStream:
    """This worker's batches of the steps [first_step, num_steps), in order; to be iterated once.

    A step's rows come in micro-batches of at most `max_batch_tokens` tokens of text (or one row). A thread
    takes what the ingest tasks have made ahead of the training. Close it when not read to its end.
    """

    def __init__(
        self,
        plan: LanePlan,
        rows: TokenRows,
        objective: Objective,
        *,
        rank: int,
        world_size: int,
        first_step: int,
        num_steps: int,
        max_batch_tokens: int,
    ):
        self._work = _grouped(chunks(plan, first_step=first_step, num_steps=num_steps), plan.steps_per_chunk)
        lanes = range(rank, plan.num_lanes, world_size)
        self._maker = _BatchMaker(plan, rows, objective, lanes, self._work, max_batch_tokens)
        self._arrived: queue.Queue[list[StepBatch] | BaseException | None] = queue.Queue(maxsize=1)
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._tokens_waiting = 0

    @property
    def tokens_waiting(self) -> int:
        """Tokens of batches that are here and not handed out yet."""
        return self._tokens_waiting

    def close(self) -> None:
        """Ends the ingest tasks; nothing more is handed out."""
        self._closed.set()

    def __iter__(self) -> Iterator[StepBatch]:
        if not self._work:
            return
        thread = threading.Thread(target=self._receive, name="batch-stream", daemon=True)
        thread.start()
        try:
            while (steps := self._arrived.get()) is not None:
                if isinstance(steps, BaseException):
                    raise steps
                for step in steps:
                    self._count(-step.num_tokens)
                    yield step
        finally:
            self.close()
            thread.join(_CLOSE_S)

    def _receive(self) -> None:
        try:
            for table in _tables(self._maker, len(self._work)):
                steps = list(_unpack(table))
                self._count(sum(step.num_tokens for step in steps))
                if not self._put(steps):
                    return
            self._put(None)
        except BaseException as error:  # noqa: BLE001 - goes on in the thread that trains
            self._put(error)

    def _put(self, item: list[StepBatch] | BaseException | None) -> bool:
        """Hands an item over; False when nobody waits for it any more."""
        while not self._closed.is_set():
            try:
                self._arrived.put(item, timeout=_LOOK_S)
            except queue.Full:
                continue
            return True
        return False

    def _count(self, change: int) -> None:
        with self._lock:
            self._tokens_waiting += change


def _tables(maker: _BatchMaker, num_tasks: int) -> Iterator[pa.Table]:
    """What the tasks make, in their order."""
    context = ray.data.DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.preserve_order = True
    with ray.data.DataContext.current(context):
        dataset = ray.data.range(num_tasks, override_num_blocks=num_tasks).map_batches(
            cast(Any, maker),
            batch_size=None,
            compute=ray.data.TaskPoolStrategy(size=_TASKS_AHEAD),
            zero_copy_batch=True,
        )
        yield from dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1)


def epoch_work(plan: LanePlan, epoch: int) -> list[list[Chunk]]:
    """The chunks of one epoch as the stream groups them into tasks."""
    first = epoch * plan.steps_per_epoch
    parts = chunks(plan, first_step=first, num_steps=first + plan.steps_per_epoch)
    return _grouped(parts, plan.steps_per_chunk)


def steps_of(
    work: Sequence[Chunk], plan: LanePlan, rows: TokenRows, objective: Objective, *, max_batch_tokens: int
) -> list[StepBatch]:
    """The global batches of some chunks: what the streams of all workers give together."""
    maker = _BatchMaker(plan, rows, objective, range(plan.num_lanes), [work], max_batch_tokens)
    return [step for chunk in work for step in maker.make_chunk(chunk)]


def _grouped(parts: Sequence[Chunk], steps_per_task: int) -> list[list[Chunk]]:
    """Neighbouring small chunks (epochs of a small corpus) taken together, so that tasks stay few."""
    groups: list[list[Chunk]] = []
    filled = steps_per_task
    for chunk in parts:
        size = chunk.last_step - chunk.first_step
        if filled + size > steps_per_task:
            groups.append([])
            filled = 0
        groups[-1].append(chunk)
        filled += size
    return groups


class _BatchMaker:
    """The ingest task: number of a chunk group in, one Arrow row per step out."""

    def __init__(
        self,
        plan: LanePlan,
        rows: TokenRows,
        objective: Objective,
        lanes: Sequence[int],
        work: Sequence[Sequence[Chunk]],
        max_batch_tokens: int,
    ):
        self.plan, self.rows, self.objective, self.lanes, self.work = plan, rows, objective, lanes, work
        self.max_batch_tokens = max_batch_tokens

    def __call__(self, batch: dict[str, NDArray[np.int64]]) -> pa.Table:
        steps = [
            step
            for number in batch["id"]
            for chunk in self.work[int(number)]
            for step in self.make_chunk(chunk)
        ]
        return _pack(steps)

    def make_chunk(self, chunk: Chunk) -> list[StepBatch]:
        """The steps of one chunk; reads its rows at once, then noises and batches step by step."""
        per_step = self.plan.rows_per_step
        by_lane = [
            self.plan.rows(lane, chunk.epoch, chunk.first_step, chunk.last_step) for lane in self.lanes
        ]
        row_ids, tokens = self.rows.read(np.concatenate(by_lane))
        starts = np.cumsum([0, *(len(part) for part in by_lane)])
        steps = []
        for i in range(chunk.last_step - chunk.first_step):
            of_lanes = [
                np.arange(start + min(i * per_step, len(part)), start + min((i + 1) * per_step, len(part)))
                for start, part in zip(starts, by_lane, strict=False)
            ]
            step = chunk.epoch * self.plan.steps_per_epoch + chunk.first_step + i
            parts = [
                part
                for taken in self._whole_groups(of_lanes)
                for part in micro_batches(
                    self.objective,
                    tokens.take(taken),
                    row_ids[taken],
                    seed=self.plan.seed,
                    epoch=chunk.epoch,
                    max_tokens=self.max_batch_tokens,
                )
            ]
            steps.append(StepBatch(step, row_ids[np.concatenate(of_lanes)], parts))
        return steps

    def _whole_groups(self, of_lanes: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
        """Rows that may be batched as one: all, or lane by lane where an epoch's end leaves part of a group.

        So a group never spans lanes, which would make it depend on who has which lane.
        """
        if all(len(rows) % self.objective.group_size == 0 for rows in of_lanes):
            return [np.concatenate(of_lanes)]
        return of_lanes


def micro_batches(
    objective: Objective,
    tokens: TokenizedTexts,
    row_ids: NDArray[np.int64],
    *,
    seed: int,
    epoch: int,
    max_tokens: int,
) -> list[Batch]:
    """Batches of neighbouring rows with at most `max_tokens` tokens of text each; no rows, no batch.

    Rows of one group (`Objective.group_size`) stay together, whatever their length.
    """
    starts, filled = [0], 0
    for row in range(0, len(row_ids), objective.group_size):
        length = int(tokens.ids.lengths[row : row + objective.group_size].sum())
        if filled + length > max_tokens and row > starts[-1]:
            starts.append(row)
            filled = 0
        filled += length
    cuts = [np.arange(start, end) for start, end in itertools.pairwise([*starts, len(row_ids)])]
    return [
        objective.make_batch(tokens.take(rows), row_ids[rows], seed=seed, epoch=epoch)
        for rows in cuts
        if len(rows)
    ]


def _pack(steps: Sequence[StepBatch]) -> pa.Table:
    """One Arrow row per micro-batch; a step without rows is one row of empty arrays."""
    numbered = [(step.step, batch) for step in steps for batch in step.micro_batches or [{}]]
    filled = next((batch for _, batch in numbered if batch), {"row_ids": np.empty(0, np.int64)})
    columns: dict[str, pa.Array] = {"step": pa.array([step for step, _ in numbered], pa.int64())}
    for key, example in filled.items():
        columns[key] = _lists([batch.get(key, example[:0]) for _, batch in numbered])
    return pa.table(columns)


def _lists(arrays: Sequence[NDArray[np.generic]]) -> pa.LargeListArray:
    offsets = np.cumsum([0, *(len(array) for array in arrays)])
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(np.concatenate(arrays)))


def _unpack(table: pa.Table) -> Iterator[StepBatch]:
    columns = {name: table.column(name).combine_chunks() for name in table.column_names if name != "step"}
    flat = {
        name: (lists.offsets.to_numpy(), lists.values.to_numpy(zero_copy_only=False))
        for name, lists in columns.items()
    }
    rows = enumerate(table.column("step").to_pylist())
    for step, group in itertools.groupby(rows, key=lambda row: int(row[1])):
        batches = [
            {name: values[offsets[i] : offsets[i + 1]] for name, (offsets, values) in flat.items()}
            for i, _ in group
        ]
        batches = [batch for batch in batches if len(batch["row_ids"])]
        row_ids = [batch["row_ids"] for batch in batches]
        yield StepBatch(step, np.concatenate(row_ids) if row_ids else np.empty(0, np.int64), batches)
