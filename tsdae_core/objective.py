"""What an objective is, and the table of those that exist.

An objective makes batches in CPU tasks (numpy only) and builds the module that turns a batch into a summed
loss. A new one is a file like tsdae.py, one like tsdae_model.py, and an entry in the table below. The model
is imported when it is built: tasks that make batches, and all that only reads a configuration, do without
torch, which takes seconds to import.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from tsdae_core.batch import Batch
from tsdae_core.contrastive_tension import CtConfig, CtObjective
from tsdae_core.mlm import MlmConfig, MlmObjective
from tsdae_core.protected import ProtectedConfig, ProtectedObjective
from tsdae_core.ragged import Int64s
from tsdae_core.retromae import RetromaeConfig, RetromaeObjective
from tsdae_core.simcse import SimcseConfig, SimcseObjective
from tsdae_core.supervised import (
    MarginMseConfig,
    MarginMseObjective,
    NliConfig,
    NliObjective,
    PairsConfig,
    PairsObjective,
    RankingConfig,
    RankingObjective,
    StsConfig,
    StsObjective,
)
from tsdae_core.tsdae import TsdaeConfig, TsdaeObjective

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from tsdae_core.encoder import SentenceEncoder
    from tsdae_core.objective_model import ObjectiveModel

ObjectiveConfig = (
    TsdaeConfig
    | MlmConfig
    | SimcseConfig
    | CtConfig
    | ProtectedConfig
    | RetromaeConfig
    | NliConfig
    | PairsConfig
    | RankingConfig
    | StsConfig
    | MarginMseConfig
)


class Objective(Protocol):
    """A way to train an encoder. Picklable; holds no torch model.

    Attributes:
        name: its key in the table.
        group_size: rows that belong together; a batch is cut into micro-batches and workers' shares only at
            multiples of it.
    """

    name: str
    group_size: int

    def make_batch(self, tokens: Any, row_ids: Int64s, *, seed: int, epoch: int) -> Batch:
        """Return flat arrays for B rows, a function of (rows, row ids, seed, epoch) alone.

        ``tokens`` are `TokenizedTexts`, or `LabelledTexts` for a supervised objective.
        """
        ...

    def num_targets(self, batch: Batch) -> int:
        """Return the `LossSums.num_targets` of a batch, without a forward pass."""
        ...

    def build_model(self, encoder: SentenceEncoder, *, seed: int) -> ObjectiveModel:
        """Return a module with every trainable tensor."""
        ...


@runtime_checkable
class MakesManyBatches(Protocol):
    """An objective that makes many batches at once faster than one by one."""

    def make_batches(
        self, tokens: Any, row_ids: Int64s, bounds: Int64s, *, seed: int, epoch: int
    ) -> list[Batch]:
        """Return what `make_batches` does."""
        ...


def make_batches(
    objective: Objective, tokens: Any, row_ids: Int64s, bounds: Int64s, *, seed: int, epoch: int
) -> list[Batch]:
    """Return a batch for each of the row ranges [bounds[i], bounds[i + 1]), bounds int64[n + 1] ascending.

    Each is what `Objective.make_batch` gives for its rows alone.
    """
    if isinstance(objective, MakesManyBatches):
        return objective.make_batches(tokens, row_ids, bounds, seed=seed, epoch=epoch)
    parts = [np.arange(start, end) for start, end in pairwise(bounds.tolist())]
    return [objective.make_batch(tokens.take(rows), row_ids[rows], seed=seed, epoch=epoch) for rows in parts]


def build_objective(
    name: str, *, tokenizer: PreTrainedTokenizerFast, config: ObjectiveConfig | None = None
) -> Objective:
    """Return the named objective, taking from the tokenizer what its batches need.

    Args:
        name: a key of the table.
        tokenizer: the encoder's tokenizer; it is not kept.
        config: of the objective's own class, or None for its defaults.

    Raises:
        ValueError: for an unknown name or a config of another objective.
    """
    if name not in _OBJECTIVES:
        raise ValueError(f"objective {name!r} is unknown; choose one of {', '.join(_OBJECTIVES)}")
    build, config_class = _OBJECTIVES[name]
    config = config_class() if config is None else config
    if not isinstance(config, config_class):
        raise ValueError(f"objective {name!r} needs a {config_class.__name__}, got {type(config).__name__}")
    return build(tokenizer, config)


_OBJECTIVES: dict[str, tuple[Callable[[PreTrainedTokenizerFast, Any], Objective], type[Any]]] = {
    "tsdae": (TsdaeObjective, TsdaeConfig),
    "mlm": (MlmObjective, MlmConfig),
    "protected": (ProtectedObjective, ProtectedConfig),
    "retromae": (RetromaeObjective, RetromaeConfig),
    "simcse": (SimcseObjective, SimcseConfig),
    "ct": (CtObjective, CtConfig),
    "nli": (NliObjective, NliConfig),
    "sts": (StsObjective, StsConfig),
    "pairs": (PairsObjective, PairsConfig),
    "ranking": (RankingObjective, RankingConfig),
    "margin_mse": (MarginMseObjective, MarginMseConfig),
}
