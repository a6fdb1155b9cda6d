"""Which rows make up step k: pure arithmetic over (number of rows, seed, global batch size).

The corpus is cut into C lanes, contiguous runs of rows of equal length (to one row). In every epoch a lane
walks its rows in an order of its own: blocks in a keyed order, rows in a keyed order within each block.
Step k takes the next B/C rows of every lane, so the global batch never depends on how many workers share
the lanes, resuming needs k alone, and no row is left out or taken twice in an epoch. When rows do not
divide evenly, the last steps of an epoch are smaller; every worker still runs every step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipelines.errors import InputError
from tsdae_core.hashing import keyed_hash, keyed_permutation

_MIN_BLOCK_ROWS = 4_096
_BLOCK_ORDER, _ROW_ORDER = 1, 2


@dataclass(frozen=True, kw_only=True)
class LanePlan:
    """The order of examples of a run."""

    num_rows: int
    batch_size: int
    num_lanes: int
    seed: int

    def __post_init__(self) -> None:
        if self.num_rows < 1:
            raise InputError("there is no row to train on")
        assert self.batch_size % self.num_lanes == 0

    @property
    def rows_per_step(self) -> int:
        """Rows that one lane gives to one step."""
        return self.batch_size // self.num_lanes

    @property
    def steps_per_chunk(self) -> int:
        """Steps that one block of every lane feeds; the natural size of one ingest task."""
        return -(-_MIN_BLOCK_ROWS // self.rows_per_step)

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which every row is used exactly once."""
        longest = -(-self.num_rows // self.num_lanes)
        return -(-longest // self.rows_per_step)

    def lane_range(self, lane: int) -> tuple[int, int]:
        """First and one past the last row of a lane."""
        return lane * self.num_rows // self.num_lanes, (lane + 1) * self.num_rows // self.num_lanes

    def rows(self, lane: int, epoch: int, first_step: int, last_step: int) -> NDArray[np.int64]:
        """Rows int64[n] of one lane for the steps [first_step, last_step) of an epoch, in order.

        Steps count within the epoch. The result holds rows_per_step rows per step; fewer at its end.
        """
        start, end = self.lane_range(lane)
        block_rows = self.steps_per_chunk * self.rows_per_step
        num_blocks = -(-(end - start) // block_rows)
        if num_blocks == 0:
            return np.empty(0, np.int64)
        order = keyed_permutation(num_blocks, self.seed, epoch, lane, _BLOCK_ORDER)
        sizes = np.minimum(block_rows, (end - start) - order * block_rows)
        ends = np.cumsum(sizes)
        low = first_step * self.rows_per_step
        high = min(last_step * self.rows_per_step, end - start)
        parts = []
        for i in range(int(np.searchsorted(ends, low, side="right")), num_blocks):
            block_start = int(ends[i] - sizes[i])
            if block_start >= high:
                break
            block = int(order[i])
            within = keyed_permutation(int(sizes[i]), self.seed, epoch, lane, block, _ROW_ORDER)
            taken = within[max(0, low - block_start) : high - block_start]
            parts.append(start + block * block_rows + taken)
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


@dataclass(frozen=True)
class Chunk:
    """Steps [first_step, last_step) of one epoch, counted within it; the work of one ingest task."""

    epoch: int
    first_step: int
    last_step: int


def chunks(plan: LanePlan, *, first_step: int, num_steps: int) -> list[Chunk]:
    """The chunks that cover the run's steps [first_step, num_steps), counted over all epochs."""
    found = []
    step = first_step
    while step < num_steps:
        epoch, within = divmod(step, plan.steps_per_epoch)
        chunk_end = (within // plan.steps_per_chunk + 1) * plan.steps_per_chunk
        last = min(chunk_end, plan.steps_per_epoch, within + num_steps - step)
        found.append(Chunk(epoch, within, last))
        step += last - within
    return found


def step_digest(row_ids: NDArray[np.int64], step: int) -> int:
    """A number mod 2^64 that tells which rows a step used; sums over workers to the global step's number."""
    hashes = keyed_hash(step, row_ids.astype(np.uint64))
    return int(hashes.sum(dtype=np.uint64))
