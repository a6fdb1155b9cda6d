"""Numbers by which equal texts of a batch are found, on this worker or another.

A text's number is a hash of its token ids, so texts that are equal once they are cut to the encoder's length
count as equal: the encoder cannot tell them apart. Owns the numbers. Knows nothing of losses.
"""

from __future__ import annotations

import numpy as np

from tsdae_core.batch import Batch
from tsdae_core.hashing import fold_key, keyed_hash
from tsdae_core.ragged import Int64s, expand_spans, offsets_of


def text_keys(batch: Batch) -> Int64s:
    """Return int64[n, K] for the n ``row_ids`` of K texts each (`examples.column_batch` has the layout).

    Equal for texts of the same ids; of any two others they are equal once in 2^64.
    """
    lengths = np.asarray(batch["texts_lengths"], dtype=np.int64)
    place = expand_spans(np.zeros_like(lengths), lengths)
    hashes = keyed_hash(fold_key("text-key"), place, batch["texts_ids"])
    running = np.append(np.uint64(0), np.cumsum(hashes, dtype=np.uint64))  # wraps, as the difference does
    offsets = offsets_of(lengths)
    sums = running[offsets[1:]] - running[offsets[:-1]]
    columns = sums.view(np.int64).reshape(int(batch["num_columns"][0]), -1)
    keys: Int64s = columns.T[: batch["row_ids"].shape[0]]
    return keys
