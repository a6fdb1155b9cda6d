"""The systems that bench_index.py compares: how each is built into a file, opened, and searched at a setting.

A setting is a short text, such as "16" (efSearch) or "8/4" (nprobe, re-ranked as a multiple of k), so that
results can be kept as JSON. `search(queries, setting, threads)` returns row numbers int64[nq, 10].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from indexing.build import add_vectors, train_index
from indexing.exact import exact_search
from indexing.faiss_library import faiss_threads, read_faiss_file, write_faiss_file
from indexing.index_config import IndexConfig
from indexing.plan import SearchParams, plan_index
from indexing.search import IndexSearcher
from indexing.tune import tune_search

Vectors = NDArray[np.float32]
Search = Callable[[Vectors, str, int], NDArray[np.int64]]
K = 10
TARGETS = (0.90, 0.95, 0.99)
# The usual settings of hnswlib's own benchmarks; usearch gets the same.
M, EF_CONSTRUCTION = 16, 200
EFFORTS = [str(effort) for effort in (10, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)]
BLOCK = 65_536


@dataclass(frozen=True)
class System:
    """One system: `build(rows, path)` writes its file, `open(path, rows)` gives its search and its settings.

    ours: searched as this project searches, and not a library by itself.
    """

    name: str
    build: Callable[[Vectors, Path], None]
    open: Callable[[Path, Vectors], tuple[Search, list[str]]]
    ours: bool = False


def systems_for(num_rows: int, dim: int) -> list[System]:
    """Exact search, what `auto` picks, the FAISS types that it could pick, and the peers."""
    lists = max(16, 2 ** round(np.log2(4 * np.sqrt(num_rows))))
    half, quarter = f"PQ{dim // 2}x4fs", f"PQ{dim // 4}x4fs"
    factories = [
        f"{quarter},RFlat",
        f"IVF{lists},{quarter},RFlat",
        f"IVF{lists},{half},RFlat",
        f"IVF{lists},{half},Refine(SQfp16)",
        f"IVF{lists},{half},Refine(SQ8)",
        f"IVF{lists},SQ8",
        f"IVF{lists},SQfp16",
        "HNSW32,SQ8",
        "HNSW32,SQfp16",
        "HNSW32",
    ]
    found = [System("exact: Flat", lambda rows, path: build_faiss("Flat", rows, path), open_exact)]
    found += [_auto(prefer) for prefer in ("throughput", "latency")]
    found += [_faiss(factory) for factory in factories]
    return [*found, *PEERS]


def _faiss(factory: str) -> System:
    return System(
        f"FAISS: {factory}",
        lambda rows, path: build_faiss(factory, rows, path),
        lambda path, rows: open_faiss(path, factory, rows),
    )


def _auto(prefer: str) -> System:
    return System(
        f"ours: auto, {prefer}",
        lambda rows, path: build_auto(prefer, rows, path),
        lambda path, rows: open_auto(prefer, path, rows),
        ours=True,
    )


def build_faiss(
    factory: str, rows: Vectors, path: Path, *, left_out: NDArray[np.int64] | None = None
) -> None:
    """A FAISS type of this factory string, trained and filled as the project does, but for rows left out."""
    plan = plan_index(len(rows), rows.shape[1], IndexConfig(factory=factory))
    order = np.random.default_rng(0).permutation(len(rows))[: plan.num_train_vectors]
    index = train_index(rows[np.sort(order)], plan)
    for start in range(0, len(rows), BLOCK):
        ids = np.arange(start, min(start + BLOCK, len(rows)))
        ids = ids if left_out is None else ids[~np.isin(ids, left_out)]
        add_vectors(index, ids, np.ascontiguousarray(rows[ids]))
    write_faiss_file(index, path)


def open_exact(path: Path, _rows: Vectors) -> tuple[Search, list[str]]:
    """FAISS's own exhaustive search."""
    index = read_faiss_file(path)
    return _with_python_threads(lambda queries, _setting: index.search(queries, K)[1]), [""]


def open_faiss(path: Path, factory: str, rows: Vectors) -> tuple[Search, list[str]]:
    """FAISS called directly, without this project's searcher; settings from cheap to thorough."""
    index = read_faiss_file(path)
    plan = plan_index(len(rows), rows.shape[1], IndexConfig(factory=factory))
    settings = [setting_of(params) for params in plan.search_params_grid]

    def search(queries: Vectors, setting: str) -> NDArray[np.int64]:
        # Taken apart here, as the inner index lives as long as the outer one; row ids are positions anyway.
        inner = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexIDMap) else index
        found: NDArray[np.int64] = inner.search(queries, K, params=_native(inner, params_of(setting)))[1]
        return found

    return _with_python_threads(search), settings


def _native(inner: Any, params: SearchParams) -> Any:
    if isinstance(inner, faiss.IndexRefine):
        base = _native(faiss.downcast_index(inner.base_index), params)
        return faiss.IndexRefineSearchParameters(
            k_factor=float(params.refine_factor or 1), base_index_params=base
        )
    if isinstance(inner, faiss.IndexIVF):
        return faiss.SearchParametersIVF(nprobe=params.num_probes or 1)
    if isinstance(inner, faiss.IndexHNSW):
        return faiss.SearchParametersHNSW(efSearch=params.ef_search or 16)
    return None


def auto_config(prefer: str, target: float = 0.95) -> IndexConfig:
    """What a user would write who knows nothing of indexes."""
    return IndexConfig(prefer=prefer, target_recall_at_10=target, allow_lower_recall=True)  # type: ignore[arg-type]


def build_auto(prefer: str, rows: Vectors, path: Path) -> None:
    """What `plan_index` chooses for each target, one file for each different one."""
    for factory in auto_factories(prefer, rows):
        place = path.with_name(path.name + "-" + _file_name(factory))
        build_faiss(factory, rows, place)
        if not plan_index(len(rows), rows.shape[1], IndexConfig(factory=factory)).mergeable:
            build_faiss(factory, rows, _tuning_path(place), left_out=_own_rows(rows))
    path.write_text("\n".join(auto_factories(prefer, rows)))


def auto_factories(prefer: str, rows: Vectors) -> list[str]:
    """The types that `auto` takes for the targets, each once."""
    plans = [plan_index(len(rows), rows.shape[1], auto_config(prefer, target)) for target in TARGETS]
    return list(dict.fromkeys(plan.factory for plan in plans))


def open_auto(prefer: str, path: Path, rows: Vectors) -> tuple[Search, list[str]]:
    """The project's searcher at the settings that the index stage would choose for each target.

    They are tuned as the stage does: on rows of the index with their own place left out, and for a graph
    before these rows are in it.
    """
    own = _own_rows(rows)
    exact = exact_search(rows[own], blocks_of(rows), 13 * K)
    others = np.setdiff1d(np.arange(len(rows)), own)
    searchers, settings = {}, []
    for target in TARGETS:
        config = auto_config(prefer, target)
        plan = plan_index(len(rows), rows.shape[1], config)
        place = path.with_name(path.name + "-" + _file_name(plan.factory))
        index = read_faiss_file(place)
        if plan.mergeable:
            tuned = tune_search(index, rows[own], exact, plan, config, own_ids=own)
        else:
            outside = exact_search(rows[own], [(others, rows[others])], 13 * K)
            tuned = tune_search(read_faiss_file(_tuning_path(place)), rows[own], outside, plan, config)
        searchers[plan.factory] = IndexSearcher(index, metric="cosine")
        settings.append(f"{target:.2f} {plan.factory} {setting_of(tuned.params)}")

    def search(queries: Vectors, setting: str) -> NDArray[np.int64]:
        _, factory, params = setting.split(" ")
        return searchers[factory].search(queries, K, params=params_of(params)).ids

    return _with_python_threads(search), settings


def _own_rows(rows: Vectors) -> NDArray[np.int64]:
    """The rows that `auto` is tuned on."""
    return np.sort(np.random.default_rng(1).permutation(len(rows))[: 2 * IndexConfig().num_query_sample])


def _tuning_path(place: Path) -> Path:
    return place.with_name(place.name + "-tuning")


def setting_of(params: SearchParams) -> str:
    """A setting as text: nprobe, efSearch and re-ranking, "-" for what the type lacks."""
    values = (params.num_probes, params.ef_search, params.refine_factor)
    return "/".join("-" if value is None else str(value) for value in values)


def params_of(setting: str) -> SearchParams:
    """The opposite of `setting_of`."""
    values = [None if part == "-" else int(part) for part in setting.split("/")]
    return SearchParams(num_probes=values[0], ef_search=values[1], refine_factor=values[2])


def build_hnswlib(rows: Vectors, path: Path) -> None:
    """The graph of hnswlib."""
    import hnswlib

    index = hnswlib.Index(space="ip", dim=rows.shape[1])
    index.init_index(max_elements=len(rows), M=M, ef_construction=EF_CONSTRUCTION)
    index.set_num_threads(1)
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        index.add_items(block, np.arange(start, start + len(block)), num_threads=1)
    index.save_index(str(path))


def open_hnswlib(path: Path, rows: Vectors) -> tuple[Search, list[str]]:
    """With hnswlib's own threads."""
    import hnswlib

    index = hnswlib.Index(space="ip", dim=rows.shape[1])
    index.load_index(str(path), max_elements=len(rows))

    def search(queries: Vectors, setting: str, threads: int) -> NDArray[np.int64]:
        index.set_ef(int(setting))
        return index.knn_query(queries, k=K, num_threads=threads)[0].astype(np.int64)

    return search, EFFORTS


def build_usearch(rows: Vectors, path: Path) -> None:
    """The graph of usearch over half floats."""
    index = _usearch(rows.shape[1])
    for start in range(0, len(rows), BLOCK):
        block = np.ascontiguousarray(rows[start : start + BLOCK])
        index.add(np.arange(start, start + len(block)), block, threads=1)
    index.save(str(path))


def open_usearch(path: Path, rows: Vectors) -> tuple[Search, list[str]]:
    """With usearch's own threads."""
    index = _usearch(rows.shape[1])
    index.load(str(path))

    def search(queries: Vectors, setting: str, threads: int) -> NDArray[np.int64]:
        index.expansion_search = int(setting)
        found: NDArray[np.int64] = index.search(queries, K, threads=threads).keys.astype(np.int64)
        return found.reshape(len(queries), -1)

    return search, EFFORTS


def _usearch(dim: int) -> Any:
    from usearch.index import Index

    return Index(ndim=dim, metric="ip", dtype="f16", connectivity=M, expansion_add=EF_CONSTRUCTION)


def build_autofaiss(rows: Vectors, path: Path) -> None:
    """What autofaiss chooses, builds and tunes by itself."""
    from autofaiss import build_index

    index, _ = build_index(
        np.ascontiguousarray(rows),
        save_on_disk=False,
        metric_type="ip",
        max_index_memory_usage="4GB",
        current_memory_available="8GB",
        nb_cores=1,
        verbose=40,
    )
    faiss.write_index(index, str(path))


def open_autofaiss(path: Path, _rows: Vectors) -> tuple[Search, list[str]]:
    """FAISS with the settings that autofaiss stored in the index."""
    index = faiss.read_index(str(path))
    kind = type(faiss.downcast_index(index)).__name__
    return _with_python_threads(lambda queries, _setting: index.search(queries, K)[1]), [f"its own: {kind}"]


PEERS = (
    System("hnswlib", build_hnswlib, open_hnswlib),
    System("usearch f16", build_usearch, open_usearch),
    System("autofaiss", build_autofaiss, open_autofaiss),
)


def _with_python_threads(search: Callable[[Vectors, str], NDArray[np.int64]]) -> Search:
    """FAISS's own threads stay at one: its barriers cost more than they bring on few cores."""

    def spread(queries: Vectors, setting: str, threads: int) -> NDArray[np.int64]:
        with faiss_threads(1):
            if threads == 1:
                return search(queries, setting)
            with ThreadPoolExecutor(threads) as pool:
                parts: Sequence[Vectors] = np.array_split(queries, threads)
                return np.concatenate(list(pool.map(lambda part: search(part, setting), parts)))

    return spread


def size_of(path: Path) -> int:
    """Bytes of the files of a system; of `auto` the largest of its types."""
    return max(one.stat().st_size for one in path.parent.glob(f"{path.name}*"))


def blocks_of(rows: Vectors) -> Iterator[tuple[NDArray[np.int64], Vectors]]:
    """Row numbers and rows, a block at a time, for exact search."""
    for start in range(0, len(rows), BLOCK):
        block = np.ascontiguousarray(rows[start : start + BLOCK])
        yield np.arange(start, start + len(block)), block


def _file_name(factory: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in factory)
