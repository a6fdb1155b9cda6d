"""Merging of FAISS indexes that share their training: in memory, or lists on disk one after the other.

Beside faiss_library the only place that touches FAISS. Must not know which indexes may be merged.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from indexing.faiss_library import FaissIndex, faiss, faiss_reason


def merge_into(target: FaissIndex, other: FaissIndex, *, renumber: bool = False) -> None:
    """Append the rows of `other` to `target` and empty `other`.

    Args:
        target: receives the rows.
        other: of the same type and training.
        renumber: inverted lists hold positions (they sit inside an id map), so those of `other` are shifted.

    Raises:
        ValueError: the index type cannot be merged.
    """
    target, other = faiss.downcast_index(target), faiss.downcast_index(other)
    if isinstance(target, faiss.IndexIDMap):
        ids = [faiss.vector_to_array(part.id_map) for part in (target, other)]
        merge_into(target.index, other.index, renumber=True)
        faiss.copy_array_to_vector(np.concatenate(ids), target.id_map)
        target.ntotal = target.index.ntotal
        if isinstance(target, faiss.IndexIDMap2):
            target.construct_rev_map()
        other.reset()
    elif isinstance(target, faiss.IndexRefine):
        merge_into(target.base_index, other.base_index, renumber=True)
        merge_into(target.refine_index, other.refine_index, renumber=True)
        target.ntotal = target.base_index.ntotal
        other.ntotal = 0
    elif isinstance(target, faiss.IndexPreTransform):
        merge_into(target.index, other.index, renumber=renumber)
        target.ntotal = target.index.ntotal
        other.ntotal = 0
    else:
        shift = target.ntotal if renumber and isinstance(target, faiss.IndexIVF) else 0
        try:
            target.merge_from(other, shift)
        except RuntimeError as error:
            raise ValueError(f"{type(target).__name__} cannot be merged: {faiss_reason(error)}") from error


def merge_on_disk(trained: FaissIndex, parts: Sequence[Path], output: Path) -> FaissIndex:
    """The inverted lists of index files written to `output` one after the other, `trained` set to use them.

    Raises:
        ValueError: not plain inverted lists, or the counts do not add up.
    """
    target = faiss.downcast_index(trained)
    if not isinstance(target, faiss.IndexIVF) or isinstance(target, faiss.IndexIVFFastScan):
        raise ValueError(
            f"{type(target).__name__} cannot be merged on disk: set index.layout=sharded, raise "
            "index.build_memory, or use a factory of plain inverted lists such as IVF4096,SQ8"
        )
    # The indexes are held until the lists are copied: a downcast does not keep what it was made from alive.
    indexes = [faiss.read_index(str(path), faiss.IO_FLAG_MMAP) for path in parts]
    pointers = faiss.InvertedListsPtrVector()
    for index in indexes:
        pointers.push_back(faiss.extract_index_ivf(index).invlists)
    merged = faiss.OnDiskInvertedLists(target.nlist, target.code_size, str(output))
    num_rows = merged.merge_from_multiple(pointers.data(), pointers.size())
    target.replace_invlists(merged, True)
    merged.this.disown()
    target.ntotal = num_rows
    return trained  # which owns what `target` is a view of
