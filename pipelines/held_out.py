"""The held-out rows of a run, and what is measured on them without labels: validation loss and retrieval.

The rows are noised once and for all, so that the loss of two validations can be compared. A loss that
compares rows does so within groups of as many neighbours as a step has rows, whoever computes a group, so
that no number depends on the number of workers. Retrieval asks whether the two halves of a held-out text find
each other (`tsdae_core/half_retrieval.py`); of labelled rows it takes the first texts.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from pipelines.parallel import Parallel, autocast
from pipelines.stream import micro_batches
from pipelines.token_shards import read_validation
from pipelines.token_tables import first_texts
from pipelines.train_job import Training
from tsdae_core.batch import Batch
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.half_retrieval import Halves, mean_reciprocal_rank, split_halves
from tsdae_core.in_batch import InBatchModel, group_loss
from tsdae_core.loss_sums import LossSums
from tsdae_core.ragged import Ragged

_EPOCH = -1
_TOKENS_PER_BATCH = 4_096
_MIN_TEXTS = 2


class HeldOut:
    """This worker's share of the held-out rows."""

    def __init__(self, job: Training, parallel: Parallel, *, idle_batch: Batch):
        self._config = job.config
        self._parallel = parallel
        rank = parallel.rank
        row_ids, rows = read_validation(job.workspace, job.tokens)
        self._groups = [
            micro_batches(
                job.objective,
                rows.take(group),
                row_ids[group],
                seed=job.seed,
                epoch=_EPOCH,
                max_tokens=min(job.config.max_batch_tokens, _TOKENS_PER_BATCH),
            )
            for group in self._share(len(row_ids))
        ]
        if parallel.sharded:  # a forward pass there needs all workers, so all make as many
            self._groups = [[batch] for group in self._groups for batch in group]
        self._num_real = len(self._groups)
        if parallel.sharded:
            self._groups += [[idle_batch]] * (max(parallel.gather(self._num_real)) - self._num_real)
        self._halves = split_halves(first_texts(rows))
        whole = len(self._halves.rows)
        self._mine = np.arange(whole) if parallel.sharded else np.arange(rank, whole, parallel.world_size)

    def _share(self, num_rows: int) -> list[NDArray[np.int64]]:
        """This worker's rows, in groups that may be batched as one."""
        size, parallel = self._config.batch_size, self._parallel
        groups = [np.arange(i, min(i + size, num_rows)) for i in range(0, num_rows, size)]
        mine = groups[parallel.rank :: parallel.world_size]
        if isinstance(parallel.model, InBatchModel) or not mine:
            return mine
        return [np.concatenate(mine)]

    def loss(self) -> float | None:
        """The mean loss of all workers' held-out rows; None without any. The model must be in eval mode."""
        loss_sum, num_targets = 0.0, 0
        with torch.no_grad(), autocast(self._config, self._parallel.device):
            for number, group in enumerate(self._groups):
                for sums in self._sums(group):
                    if number < self._num_real:
                        loss_sum += float(sums.loss_sum)
                        num_targets += int(sums.num_targets)
        loss_sum, total = self._parallel.sum(loss_sum, num_targets)
        return loss_sum / total if total else None

    def _sums(self, group: list[Batch]) -> list[LossSums]:
        """The loss of a group: all its rows see one another, or each of its batches by itself."""
        model = self._parallel.model
        if isinstance(model, InBatchModel):
            return [group_loss(model, group)]
        return [model(batch) for batch in group]

    def retrieval(self, encoder: SentenceEncoder) -> float | None:
        """Mean reciprocal rank, in (0, 1], of one half of a text among those of all texts; None for too few.

        To be called after `loss`, on all workers. The encoder must be in eval mode.
        """
        if len(self._halves.rows) < _MIN_TEXTS:
            return None
        with self._parallel.whole_root(), autocast(self._config, self._parallel.device):
            mine = encode_halves(encoder, self._halves, self._mine)
        if self._parallel.sharded:
            first, second = mine
        else:
            first, second = _in_order(self._parallel.gather((self._mine, mine)))
        # The first worker's number counts, so that all decide alike.
        is_first = self._parallel.rank == 0
        (value,) = self._parallel.sum(mean_reciprocal_rank(first, second) if is_first else 0.0)
        return value


def encode_halves(
    encoder: SentenceEncoder, halves: Halves, texts: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Vectors float32[n, d] of the first and the second halves of n texts."""
    count = len(texts)
    both = [*(halves.first.row(i) for i in texts), *(halves.second.row(i) for i in texts)]
    vectors = encoder.encode_ids(Ragged.from_rows(both), batch_tokens=_TOKENS_PER_BATCH)
    return vectors[:count], vectors[count:]


def _in_order(
    parts: list[tuple[NDArray[np.int64], tuple[NDArray[np.float32], NDArray[np.float32]]]],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    order = np.argsort(np.concatenate([texts for texts, _ in parts]), kind="stable")
    first = np.concatenate([vectors[0] for _, vectors in parts])
    second = np.concatenate([vectors[1] for _, vectors in parts])
    return first[order], second[order]
