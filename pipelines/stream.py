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
from pipelines.token_shards import RowSource, TokenRows
from tsdae_core.batch import Batch
from tsdae_core.examples import Examples, row_tokens
from tsdae_core.objective import Objective, make_batches
from tsdae_core.ragged import offsets_of

# Chunks under way for one worker: the one being trained on is already here, the next is being made.
_TASKS_AHEAD = 1
# Enough for the cost of a call to vanish, little enough for what it works on to stay in the cache.
_TOKENS_AT_ONCE = 2**16
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


@dataclass(frozen=True, kw_only=True)
class StreamSpec:
    """Which batches a worker gets: those of its lanes in the steps [first_step, num_steps).

    A step's rows come in micro-batches of at most `max_batch_tokens` tokens of text (or one row).
    """

    plan: LanePlan
    rows: TokenRows
    objective: Objective
    rank: int
    world_size: int
    first_step: int
    num_steps: int
    max_batch_tokens: int

    @property
    def work(self) -> list[Chunk]:
        """The chunks of the corpus that the steps read, in order."""
        return list(chunks(self.plan, first_step=self.first_step, num_steps=self.num_steps))


class BatchStream:
    """This worker's batches in order; to be iterated once.

    A thread takes what the ingest tasks have made ahead of the training. Close it when not read to its end.
    """

    def __init__(self, spec: StreamSpec):
        plan = spec.plan
        self._work = _grouped(spec.work, plan.steps_per_chunk)
        lanes = range(spec.rank, plan.num_lanes, spec.world_size)
        self._maker = _BatchMaker(plan, spec.rows, spec.objective, lanes, self._work, spec.max_batch_tokens)
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
    work: Sequence[Chunk], plan: LanePlan, rows: RowSource, objective: Objective, *, max_batch_tokens: int
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
        rows: RowSource,
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
        """The steps of one chunk: reads its rows in the steps' order, noises many at once, and cuts."""
        rows, counts = self._rows_by_step(chunk)
        row_ids, tokens = self.rows.read(rows)
        lengths = row_tokens(tokens)
        ends = offsets_of(counts.sum(axis=1))
        sizes = [
            self._micro_batch_sizes(lengths[ends[i] : ends[i + 1]], of_lanes)
            for i, of_lanes in enumerate(counts)
        ]
        cuts = offsets_of(np.array([size for of_step in sizes for size in of_step], np.int64))
        batches = iter(self._batches(tokens, row_ids, cuts, lengths, epoch=chunk.epoch))
        first = chunk.epoch * self.plan.steps_per_epoch + chunk.first_step
        return [
            StepBatch(
                first + i, row_ids[ends[i] : ends[i + 1]], list(itertools.islice(batches, len(of_step)))
            )
            for i, of_step in enumerate(sizes)
        ]

    def _rows_by_step(self, chunk: Chunk) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows by step, lane and place in the lane, and how many each lane gives, int64[steps, lanes]."""
        first, last, per_step = chunk.first_step, chunk.last_step, self.plan.rows_per_step
        by_lane = [self.plan.rows(lane, chunk.epoch, first, last) for lane in self.lanes]
        step_of_row = np.concatenate([np.arange(len(part)) // per_step for part in by_lane])
        given = np.array([len(part) for part in by_lane])
        counts = np.clip(given - np.arange(last - first)[:, None] * per_step, 0, per_step)
        return np.concatenate(by_lane)[np.argsort(step_of_row, kind="stable")], counts

    def _micro_batch_sizes(self, lengths: NDArray[np.int64], of_lanes: NDArray[np.int64]) -> list[int]:
        """Rows of each micro-batch of a step to which the lanes give so many rows.

        A group never spans lanes, which would make it depend on who has which lane: where an epoch's end
        leaves a lane part of a group, each lane is cut by itself.
        """
        group, most = self.objective.group_size, self.max_batch_tokens
        if not (of_lanes % group).any():
            return micro_batch_sizes(lengths, group_size=group, max_tokens=most)
        parts = np.split(lengths, np.cumsum(of_lanes)[:-1])
        return [size for part in parts for size in micro_batch_sizes(part, group_size=group, max_tokens=most)]

    def _batches(
        self,
        tokens: Any,
        row_ids: NDArray[np.int64],
        cuts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        *,
        epoch: int,
    ) -> Iterator[Batch]:
        """A batch between each two cuts, made in runs of many: one call is dear, memory is bounded."""
        run_of_cut = offsets_of(lengths)[cuts[:-1]] // _TOKENS_AT_ONCE
        starts = np.flatnonzero(np.diff(run_of_cut, prepend=-1))
        for start, end in itertools.pairwise([*starts.tolist(), len(cuts) - 1]):
            bounds = cuts[start : end + 1]
            rows = np.arange(bounds[0], bounds[-1])
            yield from make_batches(
                self.objective,
                tokens.take(rows),
                row_ids[rows],
                bounds - bounds[0],
                seed=self.plan.seed,
                epoch=epoch,
            )


def micro_batches(
    objective: Objective,
    tokens: Examples,
    row_ids: NDArray[np.int64],
    *,
    seed: int,
    epoch: int,
    max_tokens: int,
) -> list[Batch]:
    """Batches of neighbouring rows with at most `max_tokens` tokens of text each; no rows, no batch."""
    sizes = micro_batch_sizes(row_tokens(tokens), group_size=objective.group_size, max_tokens=max_tokens)
    bounds = offsets_of(np.array(sizes, np.int64))
    return make_batches(objective, tokens, row_ids, bounds, seed=seed, epoch=epoch)


def micro_batch_sizes(lengths: NDArray[np.int64], *, group_size: int, max_tokens: int) -> list[int]:
    """How many neighbouring rows make up each micro-batch: what fits `max_tokens`, one group at least.

    Rows of one group (`Objective.group_size`) stay together, whatever their length.
    """
    num_rows = len(lengths)
    if num_rows == 0:
        return []
    if int(lengths.sum()) <= max_tokens:
        return [num_rows]
    starts, filled = [0], 0
    groups = np.arange(0, num_rows, group_size)
    for row, length in zip(groups.tolist(), np.add.reduceat(lengths, groups).tolist(), strict=True):
        if filled + length > max_tokens and row > starts[-1]:
            starts.append(row)
            filled = 0
        filled += length
    return [end - start for start, end in itertools.pairwise([*starts, num_rows])]


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
