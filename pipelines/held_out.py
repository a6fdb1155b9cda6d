"""The held-out rows of a run, and what is measured on them without labels: validation loss and retrieval.

The rows are noised once and for all, so that the loss of two validations can be compared. Retrieval asks
whether the two halves of a held-out text find each other (`tsdae_core/half_retrieval.py`).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from pipelines.parallel import Parallel, autocast
from pipelines.stream import micro_batches
from pipelines.token_shards import read_validation
from pipelines.train_job import Training
from tsdae_core.batch import Batch
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.half_retrieval import Halves, mean_reciprocal_rank, split_halves
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
        row_ids, tokens = read_validation(job.workspace, job.tokens)
        mine = np.arange(rank, len(row_ids), parallel.world_size)
        self._batches = micro_batches(
            job.objective,
            tokens.take(mine),
            row_ids[mine],
            seed=job.seed,
            epoch=_EPOCH,
            max_tokens=min(job.config.max_batch_tokens, _TOKENS_PER_BATCH),
        )
        self._num_real = len(self._batches)
        if parallel.sharded:  # a forward pass there needs all workers, so all make as many
            self._batches += [idle_batch] * (max(parallel.gather(self._num_real)) - self._num_real)
        self._halves = split_halves(tokens)
        whole = len(self._halves.rows)
        self._mine = np.arange(whole) if parallel.sharded else np.arange(rank, whole, parallel.world_size)

    def loss(self) -> float | None:
        """The mean loss of all workers' held-out rows; None without any. The model must be in eval mode."""
        loss_sum, num_targets = 0.0, 0
        with torch.no_grad(), autocast(self._config, self._parallel.device):
            for number, batch in enumerate(self._batches):
                sums = self._parallel.model(batch)
                if number < self._num_real:
                    loss_sum += float(sums.loss_sum)
                    num_targets += int(sums.num_targets)
        loss_sum, total = self._parallel.sum(loss_sum, num_targets)
        return loss_sum / total if total else None

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
