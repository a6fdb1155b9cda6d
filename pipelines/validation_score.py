"""The main score of a validation task: all workers encode a share of its texts, at every validation.

The protocols are those of `indexing.evaluation`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from indexing.evaluation.scorers import VectorScorer
from indexing.evaluation.scoring import score_task
from indexing.evaluation.task_values import task_values
from indexing.evaluation.text_tasks import TextTask
from pipelines.parallel import Parallel, autocast
from pipelines.train_config import TrainConfig
from tsdae_core.encoder import SentenceEncoder


class ValidationScore:
    """The task on one worker."""

    def __init__(self, config: TrainConfig, task: TextTask, parallel: Parallel):
        self._config, self._task, self._parallel = config, task, parallel

    def __call__(self, encoder: SentenceEncoder) -> float:
        """The main score, the same on all workers, which all have to call this; the encoder in eval mode."""
        parallel = self._parallel

        def encode(texts: Sequence[str]) -> NDArray[np.float32]:
            if parallel.sharded or parallel.world_size == 1:
                return encoder.encode(texts)
            mine = encoder.encode(texts[parallel.rank :: parallel.world_size])
            vectors = np.empty((len(texts), mine.shape[1]), np.float32)
            for rank, part in enumerate(parallel.gather(mine)):
                vectors[rank :: parallel.world_size] = part
            return vectors

        with parallel.whole_root(), autocast(self._config, parallel.device):
            scores = score_task(self._task, VectorScorer(encode), system="")
        # The first worker's number counts, so that all decide alike.
        main = next(iter(task_values(scores.rows, scores.pair_rows).values()))
        (value,) = parallel.sum(main if parallel.rank == 0 else 0.0)
        return value
