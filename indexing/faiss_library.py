"""The place that touches FAISS, which has no types: thin typed functions over its objects.

Owns thread limits, creation, ids, low-level search, reading and writing of a FAISS index; merging has a file
of its own, faiss_merge. Must not know plans, recall targets or metadata. An index here always ranks by inner
product and always carries row ids, either in an outer id map or (plain IVF types) in its inverted lists.
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import faiss as faiss_module
import numpy as np

from indexing.arrays import BoolArray, Float32Array, Int64Array
from indexing.plan import SearchParams

# FAISS's own stubs lack much of what it has (downcasts, search parameters): one Any here, typed below.
faiss: Any = faiss_module

# Of the file with the inverted lists of an index that was merged on disk.
LISTS_SUFFIX = ".ivfdata"
# Of the graph over centroids while lists are trained: what `auto` takes for the finished lists, too.
_GRAPH_DEGREE = 32
# FAISS trains a PCA on so many rows for each dimension at most.
_PCA_ROWS_PER_DIM = 1_000
# A faiss.Index of any kind.
FaissIndex: TypeAlias = Any
# A faiss.IDSelector of any kind.
FaissSelector: TypeAlias = Any


@contextmanager
def faiss_threads(num_threads: int) -> Iterator[None]:
    """Run FAISS with this many threads, then restore the process-wide setting.

    One thread makes training and building deterministic to the byte.
    """
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(num_threads)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def create_index(dim: int, factory: str) -> FaissIndex:
    """An empty, untrained index that ranks by inner product.

    Raises:
        ValueError: FAISS cannot make this factory string for this dimension.
    """
    try:
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise ValueError(
            f"FAISS cannot build index.factory {factory!r} for {dim} dimensions: {faiss_reason(error)}"
        ) from error
    for part in _parts(index):
        # By inner product, codes of the vectors themselves rank better than codes of what is left after the
        # centroid: recall@10 0.67 against 0.63 (docs/log.md). FAISS does the same for its 4-bit codes.
        if isinstance(part, faiss.IndexIVFPQ):
            part.by_residual = False
    return index


def seed_training(index: FaissIndex, seed: int) -> None:
    """Seed every k-means that training the index will run, and silence FAISS's own warnings on stderr."""
    for part in _parts(index):
        for owner in (part, getattr(part, "pq", None)):
            clustering = getattr(owner, "cp", None)
            if clustering is not None:
                clustering.seed = seed
                # Our own check in `train_index` speaks first; FAISS would print a line for each quantiser.
                clustering.min_points_per_centroid = 1


@contextmanager
def lists_trained_by_graph(index: FaissIndex) -> Iterator[None]:
    """While the body trains, k-means of the inverted lists finds a row's centroid through an HNSW graph.

    FAISS compares every row of the sample with every centroid otherwise, which grows with the square of the
    number of lists.
    """
    lists = [part for part in _parts(index) if isinstance(part, faiss.IndexIVF)]
    graph = faiss.IndexHNSWFlat(lists[0].d, _GRAPH_DEGREE) if lists else None
    for part in lists:
        part.clustering_index = graph
    try:
        yield
    finally:
        for part in lists:
            part.clustering_index = None  # FAISS keeps a bare pointer


def train_uncentred_pca(index: FaissIndex, vectors: Float32Array) -> None:
    """Train the PCA in front of an index, if there is one, without the centring that FAISS does.

    Subtracting a mean from rows and queries gives other inner products. Trained on rows and their negatives,
    whose mean is zero, the axes are those that keep inner products best. Transforms before it are trained
    on the way; the rest is left to `index.train`.

    Args:
        index: from `create_index`, untrained.
        vectors: float32[n, d] of the training sample.
    """
    for part in _parts(index):
        transforms = [] if not isinstance(part, faiss.IndexPreTransform) else _transforms(part)
        last = max((i for i, one in enumerate(transforms) if isinstance(one, faiss.PCAMatrix)), default=-1)
        seen = vectors
        for transform in transforms[: last + 1]:
            if isinstance(transform, faiss.PCAMatrix):
                step = -(-len(seen) // (_PCA_ROWS_PER_DIM * transform.d_in)) or 1
                both = np.concatenate([seen[::step], -seen[::step]])
                transform.max_points_per_d = len(both)  # all of them: a sample of them would have a mean
                transform.train(both)
                faiss.copy_array_to_vector(np.zeros(transform.d_out, dtype=np.float32), transform.b)
            elif not transform.is_trained:
                transform.train(seen)
            seen = transform.apply(seen)


def split_id_map(index: FaissIndex) -> tuple[Int64Array | None, FaissIndex]:
    """The outer id map's row ids, int64[n] by position, and the index inside; (None, index) without a map."""
    outer = faiss.downcast_index(index)
    if isinstance(outer, faiss.IndexIDMap):
        return np.array(faiss.vector_to_array(outer.id_map), dtype=np.int64), faiss.downcast_index(
            outer.index
        )
    return None, outer


def row_ids_of(index: FaissIndex) -> Int64Array:
    """All row ids in the index, int64[n], in storage order.

    Raises:
        ValueError: an index type without ids.
    """
    return np.concatenate([np.empty(0, dtype=np.int64), *(ids.copy() for ids in row_id_blocks(index))])


def row_id_blocks(index: FaissIndex) -> Iterator[Int64Array]:
    """All row ids in storage order, a list at a time where there are lists; views that the index owns.

    Raises:
        ValueError: an index type without ids.
    """
    row_ids, inner = split_id_map(index)
    if row_ids is not None:
        yield row_ids
        return
    lists = _inverted_lists(inner)
    for number in range(lists.nlist):
        size = lists.list_size(number)
        if size:
            yield faiss.rev_swig_ptr(lists.get_ids(number), size)


def split_refine(inner: FaissIndex) -> tuple[FaissIndex, FaissIndex | None]:
    """What is searched first, and what stores vectors to score candidates with; both by position.

    (codes, stored vectors) for `...,RFlat` and `...,Refine(...)`, (the index, itself) for Flat, (the index,
    None) for types whose own scores are final. `inner` was taken out of its id map.
    """
    if isinstance(inner, faiss.IndexRefine):
        return faiss.downcast_index(inner.base_index), faiss.downcast_index(inner.refine_index)
    return inner, inner if is_exhaustive(inner) else None


def is_exhaustive(inner: FaissIndex) -> bool:
    """Whether this is a plain array of uncompressed float32 vectors."""
    return type(inner) in (faiss.IndexFlat, faiss.IndexFlatIP)


def stored_vectors(storage: FaissIndex, positions: Int64Array) -> Float32Array:
    """Vectors float32[p, d] at these positions of a storage of `split_refine`, decoded."""
    vectors: Float32Array = storage.reconstruct_batch(np.ascontiguousarray(positions, dtype=np.int64))
    return vectors


def scores_at(
    storage: FaissIndex, queries: Float32Array, positions: Int64Array, chosen: BoolArray
) -> Float32Array:
    """Inner products float32[nq, m] in single precision of each query with its own rows of a `Flat` storage.

    Args:
        storage: from `split_refine`, exhaustive.
        queries: float32[nq, d].
        positions: int64[nq, m].
        chosen: bool[nq, m]; minus infinity elsewhere.
    """
    labels = np.ascontiguousarray(np.where(chosen, positions, -1))
    scores = np.empty(labels.shape, dtype=np.float32)
    queries = np.ascontiguousarray(queries)
    pointers = [faiss.swig_ptr(array) for array in (queries, scores, labels)]
    storage.compute_distance_subset(len(queries), pointers[0], labels.shape[1], *pointers[1:])
    return np.where(chosen, scores, np.float32(-np.inf))


def search_positions(
    inner: FaissIndex,
    vectors: Float32Array,
    k: int,
    params: SearchParams,
    *,
    selector: FaissSelector | None = None,
) -> tuple[Float32Array, Int64Array]:
    """FAISS's own search: scores float32[nq, k] and labels int64[nq, k], -1 where nothing was found.

    Labels are positions for an index taken out of its id map, row ids for IVF types. Order among equal
    scores is FAISS's. `params` apply to this call alone, so threads may search with different ones.
    With a `selector` (see `supports_selector`) only its rows are looked at. A graph that is to keep as many
    candidates as it has rows is scanned instead, which misses nothing and is cheaper than such a walk.
    """
    graph = _graph_in(inner)
    if graph is not None and (params.ef_search or 0) >= graph.ntotal and supports_selector(graph.storage):
        inner, vectors = faiss.downcast_index(graph.storage), _transformed(inner, vectors)
    scores, labels = inner.search(vectors, k, params=_faiss_params(inner, params, selector))
    return scores, labels


def supports_selector(inner: FaissIndex) -> bool:
    """Whether this type can search a part of its rows; product codes without inverted lists cannot."""
    inner = faiss.downcast_index(inner)
    if isinstance(inner, faiss.IndexRefine):
        return supports_selector(inner.base_index)
    if isinstance(inner, faiss.IndexPreTransform):
        return supports_selector(inner.index)
    return isinstance(inner, faiss.IndexIVF | faiss.IndexHNSW | faiss.IndexFlat | faiss.IndexScalarQuantizer)


def select_positions(positions: Int64Array, num_rows: int) -> FaissSelector:
    """A selector of these positions among `num_rows`: one bit for each row of the index."""
    mask = np.zeros(num_rows, dtype=bool)
    mask[positions] = True
    return faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))


def select_row_ids(row_ids: Int64Array) -> FaissSelector:
    """A selector of these ids, for types that keep row ids themselves."""
    return faiss.IDSelectorBatch(row_ids)


def select_all_but(row_ids: Int64Array) -> FaissSelector:
    """A selector of all other ids, for types that keep row ids themselves."""
    return faiss.IDSelectorNot(select_row_ids(row_ids))


def num_lists(inner: FaissIndex) -> int:
    """Inverted lists of this index; 0 for a type without them."""
    try:
        return int(faiss.extract_index_ivf(inner).nlist)
    except RuntimeError:
        return 0


def is_graph(inner: FaissIndex) -> bool:
    """Whether this index is searched by walking a graph."""
    return _graph_in(inner) is not None


def trained_digest(index: FaissIndex) -> str:
    """SHA-256 over the types and everything training fixed (centroids, quantiser tables).

    Equal for the shards of one trained index, different for indexes that were trained apart.
    """
    digest = hashlib.sha256()
    for part in _parts(index):
        digest.update(f"{type(part).__name__}:{part.d}".encode())
        pq, sq = getattr(part, "pq", None), getattr(part, "sq", None)
        if pq is not None:
            digest.update(faiss.vector_to_array(pq.centroids).tobytes())
        if sq is not None:
            digest.update(faiss.vector_to_array(sq.trained).tobytes())
        if isinstance(part, faiss.IndexPreTransform):
            for transform in _transforms(part):
                matrix = getattr(transform, "A", None)
                digest.update(b"" if matrix is None else faiss.vector_to_array(matrix).tobytes())
        quantizer = getattr(part, "quantizer", None)
        if quantizer is not None and quantizer.ntotal:
            centroids = faiss.downcast_index(quantizer).reconstruct_n(0, quantizer.ntotal)
            digest.update(centroids.tobytes())
    return digest.hexdigest()


def cluster_vectors(vectors: Float32Array, num_clusters: int, *, seed: int) -> Int64Array:
    """k-means of float32[n, d], n >= num_clusters, on one thread: the cluster of each row, int64[n]."""
    with faiss_threads(1):
        means = faiss.Kmeans(
            vectors.shape[1], num_clusters, niter=25, seed=seed, min_points_per_centroid=1, gpu=False
        )
        means.train(np.ascontiguousarray(vectors))
        _, clusters = means.index.search(np.ascontiguousarray(vectors), 1)
    return np.asarray(clusters[:, 0], dtype=np.int64)


def write_faiss_file(index: FaissIndex, path: Path) -> None:
    """Write the index to a local file.

    Raises:
        OSError: the file cannot be written.
    """
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:
        raise OSError(f"cannot write {path}: {faiss_reason(error)}") from error


def read_faiss_file(path: Path, *, mmap: bool = False) -> FaissIndex:
    """Read an index from a local file; with `mmap` codes and vectors stay on disk until touched.

    Raises:
        ValueError: not a readable FAISS file.
        FileNotFoundError: no such file.
    """
    if not path.exists():
        raise FileNotFoundError(f"no index file at {path}")
    try:
        if path.with_suffix(LISTS_SUFFIX).exists():
            # Always mapped, and looked for beside this file wherever both were moved to.
            return faiss.read_index(str(path), faiss.IO_FLAG_ONDISK_SAME_DIR)
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if mmap else 0)
    except RuntimeError as error:
        raise ValueError(f"{path} is not a readable FAISS index: {faiss_reason(error)}") from error


def _faiss_params(inner: FaissIndex, params: SearchParams, selector: FaissSelector | None) -> Any:
    chosen = {} if selector is None else {"sel": selector}
    if isinstance(inner, faiss.IndexRefine):
        return faiss.IndexRefineSearchParameters(
            k_factor=float(params.refine_factor or 1),
            base_index_params=_faiss_params(faiss.downcast_index(inner.base_index), params, selector),
        )
    if isinstance(inner, faiss.IndexPreTransform):
        nested = _faiss_params(faiss.downcast_index(inner.index), params, selector)
        return faiss.SearchParametersPreTransform(index_params=nested) if nested is not None else None
    if isinstance(inner, faiss.IndexIVF) and (chosen or params.num_probes is not None):
        return faiss.SearchParametersIVF(nprobe=params.num_probes or inner.nprobe, **chosen)
    if isinstance(inner, faiss.IndexHNSW) and (chosen or params.ef_search is not None):
        return faiss.SearchParametersHNSW(efSearch=params.ef_search or inner.hnsw.efSearch, **chosen)
    return faiss.SearchParameters(**chosen) if chosen else None


def _graph_in(inner: FaissIndex) -> FaissIndex | None:
    inner = faiss.downcast_index(inner)
    if isinstance(inner, faiss.IndexPreTransform):
        return _graph_in(inner.index)
    return inner if isinstance(inner, faiss.IndexHNSW) else None


def _transformed(inner: FaissIndex, vectors: Float32Array) -> Float32Array:
    """The vectors as the index below all transforms sees them."""
    if isinstance(inner, faiss.IndexPreTransform):
        for transform in _transforms(inner):
            vectors = transform.apply(vectors)
    return vectors


def _transforms(inner: FaissIndex) -> list[Any]:
    """What an IndexPreTransform does to a vector, in order; owned by the index."""
    return [faiss.downcast_VectorTransform(inner.chain.at(number)) for number in range(inner.chain.size())]


def _parts(index: FaissIndex) -> Iterator[FaissIndex]:
    outer = faiss.downcast_index(index)
    yield outer
    for name in ("index", "base_index", "refine_index", "storage"):
        nested = getattr(outer, name, None)
        if isinstance(nested, faiss.Index):
            yield from _parts(nested)


def _inverted_lists(inner: FaissIndex) -> FaissIndex:
    try:
        return faiss.extract_index_ivf(inner).invlists
    except RuntimeError as error:
        raise ValueError(f"{type(inner).__name__} keeps no row ids: wrap it in an IDMap") from error


def faiss_reason(error: Exception) -> str:
    """FAISS's message without its C++ signature and source line."""
    return re.sub(r"^Error in .*? at \S+:\d+: ", "", str(error).strip(), flags=re.DOTALL)
