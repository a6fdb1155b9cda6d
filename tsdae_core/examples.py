"""Training rows with several texts and a label: the input of the supervised objectives.

Owns the type and how its texts become one batch. An unsupervised objective gets `TokenizedTexts`, a
supervised one `LabelledTexts`; both can be cut into rows. Knows nothing of losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsdae_core.batch import Batch
from tsdae_core.ragged import Int64s
from tsdae_core.tokens import SpecialFrame, TokenizedTexts

Float32s = NDArray[np.float32]


@dataclass(frozen=True)
class LabelledTexts:
    """B rows of K texts each, and a label per row where there is one.

    Attributes:
        columns: K columns of B texts, for instance premise and hypothesis, or anchor, positive, negative.
        labels: float32[B] (a class number or a score), or None.

    Raises:
        ValueError: if columns and labels differ in length.
    """

    columns: tuple[TokenizedTexts, ...]
    labels: Float32s | None = None

    def __post_init__(self) -> None:
        counts = {len(column) for column in self.columns}
        if self.labels is not None:
            counts.add(int(self.labels.shape[0]))
        if len(counts) != 1:
            raise ValueError(
                f"columns and labels must have one length, got {sorted(counts)}; give a text per row"
            )

    def __len__(self) -> int:
        return len(self.columns[0])

    def take(self, rows: NDArray[np.integer[Any]] | Sequence[int]) -> LabelledTexts:
        """Return the given rows, in the given order."""
        labels = None if self.labels is None else self.labels[np.asarray(rows, dtype=np.int64)]
        return LabelledTexts(tuple(column.take(rows) for column in self.columns), labels)


Examples = TokenizedTexts | LabelledTexts


def row_tokens(examples: Examples) -> Int64s:
    """Return how many tokens of text each row has over all its columns, int64[B]."""
    columns = (examples,) if isinstance(examples, TokenizedTexts) else examples.columns
    total: Int64s = np.sum([column.ids.lengths for column in columns], axis=0)
    return total


def column_batch(examples: Examples, row_ids: Int64s, *, frame: SpecialFrame) -> Batch:
    """Return ``row_ids`` [B], and ``texts_ids`` (int32, framed) and ``texts_lengths`` column after column.

    ``num_columns`` (one number) tells K; the texts of column k are the k-th block of B lengths. With labels
    also ``labels`` (float32[B]).
    """
    columns = (examples,) if isinstance(examples, TokenizedTexts) else examples.columns
    framed = [frame.wrap(column.ids) for column in columns]
    batch: Batch = {
        "row_ids": np.asarray(row_ids, dtype=np.int64),
        "texts_ids": np.concatenate([part.values for part in framed]),
        "texts_lengths": np.concatenate([part.lengths for part in framed]),
        "num_columns": np.array([len(columns)], dtype=np.int64),
    }
    if isinstance(examples, LabelledTexts) and examples.labels is not None:
        batch["labels"] = examples.labels.astype(np.float32)
    return batch
