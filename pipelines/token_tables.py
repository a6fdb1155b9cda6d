"""Tokenised rows as tables and back: one text per row, or several with a label.

Owns the columns of `tokens/`: `row_id` int64; for single texts `ids` list<int32> and `word_starts`
list<bool>, for labelled rows `ids_0`, `ids_1` ... and `label` float32 (null where the objective has none).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tsdae_core.examples import Examples, LabelledTexts
from tsdae_core.ragged import Ragged
from tsdae_core.tokens import TokenizedTexts


def to_table(row_ids: NDArray[np.int64], examples: Examples) -> pa.Table:
    """Rows as a table."""
    columns: dict[str, pa.Array] = {"row_id": pa.array(row_ids)}
    if isinstance(examples, TokenizedTexts):
        offsets = pa.array(examples.ids.offsets.astype(np.int32))
        columns["ids"] = pa.ListArray.from_arrays(offsets, pa.array(examples.ids.values))
        columns["word_starts"] = pa.ListArray.from_arrays(offsets, pa.array(examples.word_starts))
        return pa.table(columns)
    for number, texts in enumerate(examples.columns):
        offsets = pa.array(texts.ids.offsets.astype(np.int32))
        columns[f"ids_{number}"] = pa.ListArray.from_arrays(offsets, pa.array(texts.ids.values))
    labels = [None] * len(examples) if examples.labels is None else examples.labels
    columns["label"] = pa.array(labels, pa.float32())
    return pa.table(columns)


def from_table(table: pa.Table) -> tuple[NDArray[np.int64], Examples]:
    """Row ids int64[n] and rows of a table made by `to_table`."""
    table = table.combine_chunks()
    row_ids = table.column("row_id").to_numpy()
    if "ids" in table.column_names:
        starts = table.column("word_starts").combine_chunks().flatten().to_numpy(zero_copy_only=False)
        return row_ids, TokenizedTexts(_ids(table, "ids"), starts)
    names = [name for name in table.column_names if name.startswith("ids_")]
    columns = [_without_words(_ids(table, name)) for name in names]
    return row_ids, labelled_texts(columns, table.column("label"))


def no_rows() -> tuple[NDArray[np.int64], Examples]:
    """Row ids and rows of nothing."""
    return np.empty(0, np.int64), _without_words(Ragged.from_rows([]))


def first_texts(examples: Examples) -> TokenizedTexts:
    """The texts of single rows, or the first text of every labelled row."""
    return examples if isinstance(examples, TokenizedTexts) else examples.columns[0]


def labelled_texts(columns: Sequence[TokenizedTexts], labels: pa.ChunkedArray) -> LabelledTexts:
    """Columns of texts with their labels; labels that are all null are none."""
    return LabelledTexts(tuple(columns), None if labels.null_count == len(labels) else labels.to_numpy())


def _ids(table: pa.Table, name: str) -> Ragged:
    lists = table.column(name).combine_chunks()
    lengths = np.diff(lists.offsets.to_numpy())
    return Ragged(lists.flatten().to_numpy(), lengths.astype(np.int64))


def _without_words(ids: Ragged) -> TokenizedTexts:
    """Texts whose words nobody asks for: every token counts as one."""
    return TokenizedTexts(ids, np.ones(len(ids.values), np.bool_))
