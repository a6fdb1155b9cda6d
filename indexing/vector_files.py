"""Full vectors by row id from memory-mapped `.npy` files, one for each shard.

A Parquet file of vectors must be decoded a row group at a time; re-scoring a few dozen candidates needs
single rows. A row id holds its shard in the high bits and its row in the low ones: one slice of one map.
Owns the layout of the folder. Must not know indexes or texts.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexing.arrays import Float32Array, Int64Array, as_row_ids, shorten

SUFFIX = ".npy"


class VectorFiles:
    """The opened files of all shards; reads are safe from several threads."""

    def __init__(self, shards: Mapping[int, npt.NDArray[Any]], *, dim: int, shard_bits: int) -> None:
        self._shards = shards
        self._shard_bits = shard_bits
        self.dim = dim

    @classmethod
    def open(cls, folder: Path | str, *, shard_bits: int) -> "VectorFiles":
        """Map every `...-00000.npy` of a local folder; the number in the name is the shard.

        Args:
            folder: the files must stay in place while they are open (or be deleted as a whole, on Linux).
            shard_bits: a row id is `shard << shard_bits | row`.

        Raises:
            FileNotFoundError: no files.
            ValueError: files of other shapes, element types or widths.
        """
        shards: dict[int, npt.NDArray[Any]] = {}
        for path in sorted(Path(folder).glob(f"*{SUFFIX}")):
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            if array.ndim != 2 or array.dtype not in (np.float16, np.float32):
                raise ValueError(
                    f"{path}: expected float16 or float32 [n, d], got {array.dtype} {array.shape}"
                )
            shards[int(path.stem.rpartition("-")[2])] = array
        if not shards:
            raise FileNotFoundError(f"no vector files (*{SUFFIX}) in {folder}")
        widths = {array.shape[1] for array in shards.values()}
        if len(widths) != 1:
            raise ValueError(f"{folder}: vector files of different widths {sorted(widths)}")
        return cls(shards, dim=widths.pop(), shard_bits=shard_bits)

    def rows(self, row_ids: npt.ArrayLike) -> Float32Array:
        """Vectors float32[p, d] of these rows, in their order; reads those rows alone.

        Raises:
            ValueError: a row that the files do not have.
        """
        ids = as_row_ids(row_ids, what="full vectors")
        out = np.empty((len(ids), self.dim), dtype=np.float32)
        shard_numbers, offsets = ids >> self._shard_bits, ids & ((1 << self._shard_bits) - 1)
        for number in np.unique(shard_numbers).tolist():
            here = np.flatnonzero(shard_numbers == number)
            shard = self._shards.get(number)
            if shard is None or int(offsets[here].max()) >= len(shard):
                raise ValueError(self._missing(ids[here]))
            out[here] = shard[offsets[here]]
        return out

    def _missing(self, ids: Int64Array) -> str:
        return f"full vectors: no rows {shorten(ids.tolist())}; they were written for another collection"


def write_vector_file(path: Path, vectors: npt.NDArray[Any]) -> None:
    """Write one shard's vectors, float16 or float32 [n, d], row by row of the shard."""
    with path.open("wb") as stream:
        np.save(stream, vectors, allow_pickle=False)
