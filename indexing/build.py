"""Build an index: train once, add by shard, merge.

All vectors given here are ready for inner product: for cosine the caller applies `exact.normalize_rows` once,
to sample, rows and queries alike. Must not know files, encoders or how the work is spread over tasks.
"""

import logging
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexing.arrays import Float32Array, Int64Array, as_row_ids, as_vectors, check_finite, shorten
from indexing.faiss_library import (
    FaissIndex,
    create_index,
    faiss_threads,
    lists_trained_by_graph,
    row_id_blocks,
    row_ids_of,
    seed_training,
    train_uncentred_pca,
    trained_digest,
)
from indexing.faiss_merge import merge_into, merge_on_disk
from indexing.plan import (
    MIN_LISTS_TRAINED_BY_GRAPH,
    MIN_TRAIN_VECTORS_PER_CENTROID,
    IndexPlan,
)

logger = logging.getLogger(__name__)

# Cosine vectors may come from half precision; anything further from length 1 was not normalised.
NORM_TOLERANCE = 1e-2
# Row ids that are compared at a time, 128 MiB of them and as much again several times over.
IDS_AT_A_TIME = 2**24


def train_index(sample: npt.ArrayLike, plan: IndexPlan, *, num_threads: int = 1) -> FaissIndex:
    """An empty index, trained on the sample.

    Args:
        sample: float[n, d]; a random sample of the corpus with `plan.num_train_vectors` rows (more is fine).
        plan: from `plan_index`.
        num_threads: of FAISS; one thread gives the same bytes for the same sample, more an index as good.

    Raises:
        ValueError: wrong d, NaN, not normalised though the metric is cosine, or too few rows to train.
    """
    vectors = as_vectors(sample, what="training sample", dim=plan.dim)
    check_finite(vectors, row_ids=None, what="training sample")
    if plan.metric == "cosine":
        _check_normalised(vectors, what="training sample")
    index = create_index(plan.dim, plan.factory)
    seed_training(index, plan.seed)
    with faiss_threads(num_threads):
        if plan.num_train_vectors or not index.is_trained:
            _train(index, vectors, plan)
    return index


def add_vectors(
    index: FaissIndex, row_ids: npt.ArrayLike, vectors: npt.ArrayLike, *, num_threads: int = 1
) -> None:
    """Append rows to a trained index.

    Args:
        index: from `train_index`, or an index that already holds other rows.
        row_ids: int64[n], unique over all calls (checked inside one call here, over all by `check_unique_ids`
            and `merge_indexes`).
        vectors: float[n, d].
        num_threads: of FAISS.

    Raises:
        ValueError: shapes do not fit, repeated ids, NaN or infinity (named by row id).
    """
    array = as_vectors(vectors, what="add_vectors", dim=int(index.d))
    ids = as_row_ids(row_ids, what="add_vectors", num_rows=len(array))
    _refuse_repeated(ids, what="add_vectors")
    check_finite(array, row_ids=ids, what="add_vectors")
    if len(ids) == 0:
        return
    with faiss_threads(num_threads):
        index.add_with_ids(array, ids)


def merge_indexes(parts: Iterable[FaissIndex]) -> FaissIndex:
    """One index with the rows of all parts, as if they had been added in this order to one index.

    Args:
        parts: indexes built from one trained index; consumed one at a time (a generator may load them), and
            emptied. The first becomes the result.

    Raises:
        ValueError: no parts; parts trained apart; a row id in two parts (the same shard twice), naming the
            parts and ids; a type that cannot be merged; counts that do not add up.
    """
    merged: FaissIndex | None = None
    digest = ""
    ids_by_part: list[Int64Array] = []
    for number, part in enumerate(parts):
        # Merging an index into itself would corrupt it, so this repeat is caught before, others afterwards.
        if part is merged:
            raise ValueError(f"merge_indexes: part {number} is part 0 again")
        ids_by_part.append(row_ids_of(part))
        part_digest = trained_digest(part)
        if merged is None:
            merged, digest = part, part_digest
        elif part_digest != digest:
            raise ValueError(
                f"merge_indexes: part {number} was trained apart from part 0; "
                "train once and give every shard a copy of that index"
            )
        else:
            merge_into(merged, part)
    if merged is None:
        raise ValueError("merge_indexes: nothing to merge")
    _refuse_collisions(ids_by_part)
    num_expected = sum(len(ids) for ids in ids_by_part)
    if int(merged.ntotal) != num_expected:
        raise ValueError(
            f"merge_indexes: the result holds {merged.ntotal} rows, the parts held {num_expected}"
        )
    return merged


def check_unique_ids(*indexes: FaissIndex) -> None:
    """Refuse an index, or its shards, where a row id occurs twice; `IDS_AT_A_TIME` of them are held.

    Raises:
        ValueError: naming the ids.
    """
    num_rows = sum(int(index.ntotal) for index in indexes)
    num_passes = max(1, -(-num_rows // IDS_AT_A_TIME))
    for number in range(num_passes):
        parts = [ids[ids % num_passes == number] for index in indexes for ids in row_id_blocks(index)]
        _refuse_repeated(np.concatenate([np.empty(0, np.int64), *parts]), what="index")


def merge_files_on_disk(trained: FaissIndex, parts: Sequence[Path], output: Path) -> FaissIndex:
    """Merge inverted lists on disk, list by list: memory for one list of every part, not for the index.

    Args:
        trained: empty, from `train_index`; plain inverted lists (`IVF...` without re-ranking or 4-bit codes).
        parts: files of indexes filled from copies of it.
        output: where the lists go; the index file that is written later must lie beside it.

    Raises:
        ValueError: a type whose lists cannot be merged so, repeated row ids, counts that do not add up.
    """
    merged = merge_on_disk(trained, parts, output)
    check_unique_ids(merged)
    return merged


def _train(index: FaissIndex, vectors: Float32Array, plan: IndexPlan) -> None:
    if len(vectors) < max(1, plan.nlist):
        raise ValueError(
            f"training {plan.factory} needs at least {max(1, plan.nlist)} vectors, got {len(vectors)}; "
            'give a larger sample or use index.factory "Flat"'
        )
    if len(vectors) < MIN_TRAIN_VECTORS_PER_CENTROID * plan.nlist:
        logger.warning(
            "training %d inverted lists on %d vectors, fewer than %d for each: expect uneven lists",
            plan.nlist,
            len(vectors),
            MIN_TRAIN_VECTORS_PER_CENTROID,
        )
    try:
        train_uncentred_pca(index, vectors)
        with lists_trained_by_graph(index) if plan.nlist >= MIN_LISTS_TRAINED_BY_GRAPH else nullcontext():
            index.train(vectors)
    except RuntimeError as error:
        raise ValueError(f"training {plan.factory} on {len(vectors)} vectors failed: {error}") from error


def _check_normalised(vectors: Float32Array, *, what: str) -> None:
    norms = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))
    off = np.flatnonzero((np.abs(norms - 1) > NORM_TOLERANCE) & (norms != 0))
    if len(off):
        raise ValueError(
            f"{what}: the metric is cosine but rows {shorten(off.tolist())} do not have length 1 "
            f"(row {off[0]} has {norms[off[0]]:.4f}); apply normalize_rows first"
        )


def _refuse_repeated(ids: Int64Array, *, what: str) -> None:
    unique, counts = np.unique(ids, return_counts=True)
    if len(unique) != len(ids):
        raise ValueError(f"{what}: row ids {shorten(unique[counts > 1].tolist())} occur more than once")


def _refuse_collisions(ids_by_part: list[Int64Array]) -> None:
    ids = np.concatenate(ids_by_part)
    order = np.argsort(ids, kind="stable")
    repeats = order[1:][ids[order[1:]] == ids[order[:-1]]]
    if len(repeats) == 0:
        return
    ends = np.cumsum([len(part_ids) for part_ids in ids_by_part])
    numbers, counts = np.unique(np.searchsorted(ends, repeats, side="right"), return_counts=True)
    raise ValueError(
        f"merge_indexes: part {numbers[0]} repeats {counts[0]} row ids ({shorten(ids[repeats].tolist())}) of "
        "itself or of the parts before it; the same shard was given twice"
    )
