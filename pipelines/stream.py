"""The stream of batches into one train worker: Ray Data tasks read, noise and batch ahead of the training.

One task makes one chunk of steps of this worker's lanes (see `lanes`), in order. The noise is keyed by
(seed, epoch, row), so neither the number of workers nor the place where a task runs changes a batch.
"""

from __future__ import annotations

import itertools
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


@dataclass(frozen=True)
class StepBatch:
    """One worker's share of the global batch of a step (counted over all epochs); it may be empty."""

    step: int
    row_ids: NDArray[np.int64]
    micro_batches: Sequence[Batch]


def batch_stream(
    plan: LanePlan,
    rows: TokenRows,
    objective: Objective,
    *,
    rank: int,
    world_size: int,
    first_step: int,
    num_steps: int,
    max_batch_tokens: int,
) -> Iterator[StepBatch]:
    """Yields this worker's batches of the steps [first_step, num_steps), in order.

    A step's rows come in micro-batches of at most `max_batch_tokens` tokens of text (or one row).
    """
    work = _grouped(chunks(plan, first_step=first_step, num_steps=num_steps), plan.steps_per_chunk)
    if not work:
        return
    lanes = range(rank, plan.num_lanes, world_size)
    maker = _BatchMaker(plan, rows, objective, lanes, work, max_batch_tokens)
    context = ray.data.DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.preserve_order = True
    with ray.data.DataContext.current(context):
        dataset = ray.data.range(len(work), override_num_blocks=len(work)).map_batches(
            cast(Any, maker),
            batch_size=None,
            compute=ray.data.TaskPoolStrategy(size=_TASKS_AHEAD),
            zero_copy_batch=True,
        )
        for table in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1):
            yield from _unpack(table)


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
            taken = np.concatenate(
                [
                    np.arange(
                        start + min(i * per_step, len(part)), start + min((i + 1) * per_step, len(part))
                    )
                    for start, part in zip(starts, by_lane, strict=False)
                ]
            )
            step = chunk.epoch * self.plan.steps_per_epoch + chunk.first_step + i
            parts = micro_batches(
                self.objective,
                tokens.take(taken),
                row_ids[taken],
                seed=self.plan.seed,
                epoch=chunk.epoch,
                max_tokens=self.max_batch_tokens,
            )
            steps.append(StepBatch(step, row_ids[taken], parts))
        return steps


def micro_batches(
    objective: Objective,
    tokens: TokenizedTexts,
    row_ids: NDArray[np.int64],
    *,
    seed: int,
    epoch: int,
    max_tokens: int,
) -> list[Batch]:
    """Batches of neighbouring rows with at most `max_tokens` tokens of text each; no rows, no batch."""
    batches, start, filled = [], 0, 0
    for end, length in enumerate(tokens.ids.lengths.tolist()):
        if filled + length > max_tokens and end > start:
            rows = np.arange(start, end)
            batches.append(objective.make_batch(tokens.take(rows), row_ids[rows], seed=seed, epoch=epoch))
            start, filled = end, 0
        filled += length
    if len(row_ids) > start:
        rows = np.arange(start, len(row_ids))
        batches.append(objective.make_batch(tokens.take(rows), row_ids[rows], seed=seed, epoch=epoch))
    return batches


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
