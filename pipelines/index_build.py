"""Building one version of an index on Ray: sample, train once, fill by group, merge or keep shards, measure.

A group is some consecutive files of vectors; its task fills a copy of the trained index, and finds the exact
neighbours of the query sample among its own rows on the way. The driver holds names only. A finished group
has a receipt, so an interrupted build goes on with the first unfinished one.
"""

from __future__ import annotations

import io
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from indexing.arrays import is_among
from indexing.build import (
    add_vectors,
    check_unique_ids,
    merge_files_on_disk,
    merge_indexes,
    train_index,
)
from indexing.exact import exact_search, normalize_rows
from indexing.faiss_library import LISTS_SUFFIX, FaissIndex, read_faiss_file, write_faiss_file
from indexing.hits import Hits, merge_hits
from indexing.index_config import IndexConfig
from indexing.index_metadata import IndexInput, IndexMetadata
from indexing.plan import IndexPlan
from indexing.store import INDEX_FILE, save_index, segment_file
from indexing.tune import TunedSearch, tune_search
from indexing.vectors import read_vectors
from pipelines.index_layout import Source, group_sources, way_of_merging
from pipelines.manifest import ShardRecord
from pipelines.progress import Reporter
from pipelines.shards import ShardFunction, finish_task, run_shards, start_task
from pipelines.storage import Location
from pipelines.versions import VersionedStage
from tsdae_core.hashing import fold_key, keyed_hash

TRAINED_FILE = "trained.faiss"
_QUERIES_FILE = "queries.npz"
# Of a group's graph before the query sample is added to it.
_TUNING_SUFFIX = ".tuning.faiss"
_MIN_ROWS_PER_QUERY = 10
# Deep enough for recall@100 without the query's own row, and for ties at the last place.
_EXACT_DEPTH = 130

_Ids: TypeAlias = NDArray[np.int64]
_Vectors: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Build:
    """What every task of a build knows. Picklable.

    about: the metadata as far as it is known before the build.
    deleted: row ids that are left out, sorted.
    """

    work: Location
    output: Location
    plan: IndexPlan
    config: IndexConfig
    about: IndexMetadata
    deleted: _Ids = field(default_factory=lambda: np.empty(0, np.int64))

    def rows(self, sources: Sequence[Source]) -> Iterator[tuple[_Ids, _Vectors]]:
        """Row ids and vectors of every source, ready for inner product."""
        for source in sources:
            ids, rows = read_vectors(
                source.folder.filesystem, (source.folder / f"{source.name}.parquet").path
            )
            if len(self.deleted):
                kept = ~is_among(ids, self.deleted)
                ids, rows = ids[kept], rows[kept]
            yield ids, normalize_rows(rows) if self.plan.metric == "cosine" else rows


def build_version(
    build: Build, stage: VersionedStage, sources: Sequence[Source], *, reporter: Reporter
) -> tuple[dict[str, str], IndexMetadata]:
    """Builds into `build.output`; returns sha256 by file and the metadata.

    Raises:
        ValueError: the recall target cannot be met, a row id occurs twice, or the layout needs more memory
            than `index.build_memory`.
    """
    groups = group_sources(sources, build.plan, build.config)
    if not (build.work / TRAINED_FILE).exists():
        samples = [start_task(_sample, build, group) for group in groups]
        finish_task(start_task(_train, build, *samples, cpus=build.config.train_cpus))
    items = {f"group-{i:05d}": {"sources": group} for i, group in enumerate(groups)}
    filled = run_shards(
        stage,
        "fill",
        items,
        _Filling(build),
        reporter=reporter,
        label="index",
        unit="vectors",
        total_units=build.plan.num_vectors,
    )
    inputs = tuple(IndexInput(name=s.name, digest=s.digest, num_rows=s.num_rows) for s in sources)
    num_rows = sum(record.num_rows for record in filled)
    found: tuple[dict[str, str], IndexMetadata] = finish_task(
        start_task(_assemble, build, list(items), inputs, num_rows)
    )
    return found


def _sample(build: Build, sources: Sequence[Source]) -> tuple[_Ids, _Vectors, _Ids, _Vectors]:
    """Rows of a group that may be in the training sample and in the query sample: ids and vectors of each."""
    wanted = (build.plan.num_train_vectors, _num_queries(build))
    keys = (_key("train", build), _key("queries", build))
    found: list[list[tuple[_Ids, _Vectors]]] = [[], []]
    for ids, rows in build.rows(sources):
        for taken, count, key in zip(found, wanted, keys, strict=True):
            chosen = _lowest(ids, key, share=_generous_share(count, build.plan.num_vectors))
            taken.append((ids[chosen], rows[chosen]))
    train, queries = (_together(parts, build.plan.dim) for parts in found)
    return (*train, *queries)


def _train(build: Build, *samples: tuple[_Ids, _Vectors, _Ids, _Vectors]) -> None:
    """Trains on the rows with the smallest hashes of all, and writes the query sample: two, disjoint."""
    train_ids, train_rows = _together([(s[0], s[1]) for s in samples], build.plan.dim)
    query_ids, queries = _together([(s[2], s[3]) for s in samples], build.plan.dim)
    chosen = _smallest(query_ids, _key("queries", build), _num_queries(build))
    ids, queries = query_ids[chosen], queries[chosen]
    held_out = np.zeros(len(ids), dtype=np.bool_)
    held_out[_smallest(ids, _key("held-out queries", build), len(ids) // 2)] = True
    _write_arrays(build.work / _QUERIES_FILE, ids=ids, vectors=queries, held_out=held_out)
    chosen = _smallest(train_ids, _key("train", build), build.plan.num_train_vectors)
    index = train_index(train_rows[chosen], build.plan, num_threads=build.config.train_cpus)
    _write_index(index, build.work / TRAINED_FILE)


@dataclass(frozen=True)
class _Filling:
    """Makes the function that fills the index of one group."""

    build: Build

    def __call__(self) -> ShardFunction:
        return self._fill

    def _fill(self, name: str, spec: Mapping[str, Any]) -> ShardRecord:
        build = self.build
        with _local_file(build.work / TRAINED_FILE) as path:
            index = read_faiss_file(path)
        queries, query_ids, _ = _read_queries(build)
        apart: list[tuple[_Ids, _Vectors]] = []

        def rows() -> Iterator[tuple[_Ids, _Vectors]]:
            for ids, vectors in build.rows(spec["sources"]):
                if _adds_queries_last(build):
                    is_query = is_among(ids, query_ids)
                    apart.append((ids[is_query], vectors[is_query]))
                    block = (ids[~is_query], vectors[~is_query])
                else:
                    block = (ids, vectors)
                add_vectors(index, *block)
                yield block

        exact = exact_search(queries, rows(), _EXACT_DEPTH)
        if _adds_queries_last(build):
            _write_index(index, build.work / f"{name}{_TUNING_SUFFIX}")
            add_vectors(index, *_together(apart, build.plan.dim))
        check_unique_ids(index)
        with (
            (build.work / f"{name}.npz").write_atomically() as target,
            _local_file(target, write=True) as path,
            path.open("wb") as stream,
        ):
            np.savez(stream, ids=exact.ids, scores=exact.scores)
        place = build.work / f"{name}.faiss"
        _write_index(index, place)
        return ShardRecord(name=name, num_rows=int(index.ntotal), digest=place.sha256())


def _assemble(
    build: Build, groups: Sequence[str], inputs: tuple[IndexInput, ...], num_rows: int
) -> tuple[dict[str, str], IndexMetadata]:
    """Merges or keeps the groups, chooses the search settings, writes the version."""
    assert num_rows == build.plan.num_vectors, f"{num_rows} rows filled, {build.plan.num_vectors} planned"
    queries, own_ids, held_out = _read_queries(build)
    exact = merge_hits([_read_exact(build, name) for name in groups], _EXACT_DEPTH)
    with tempfile.TemporaryDirectory(prefix="tsdae-index-") as temporary, ExitStack() as files:
        folder = Path(temporary)
        parts = _parts(build, groups, folder)
        searched = parts
        if _adds_queries_last(build):
            places = [build.work / f"{name}{_TUNING_SUFFIX}" for name in groups]
            searched = [files.enter_context(_local_file(place)) for place in places]
        tuned = tune_search(
            [read_faiss_file(part, mmap=True) if isinstance(part, Path) else part for part in searched],
            queries,
            exact,
            build.plan,
            build.config,
            held_out=held_out,
            own_ids=None if _adds_queries_last(build) else own_ids,
        )
        metadata = save_index(folder, parts, _described(build, inputs, tuned))
        with _local_file(build.work / TRAINED_FILE) as path:
            (folder / TRAINED_FILE).write_bytes(path.read_bytes())
        return build.output.upload_folder(folder), metadata


def _parts(build: Build, groups: Sequence[str], folder: Path) -> list[FaissIndex | Path]:
    """The merged index, or the files of the groups copied into the folder."""
    way = way_of_merging(build.plan, build.config)
    if way == "on disk" and len(groups) > 1:
        return [_merged_on_disk(build, groups, folder)]
    if way != "shards" or len(groups) == 1:
        return [merge_indexes(_load_group(build, name) for name in groups)]
    parts: list[FaissIndex | Path] = []
    for number, name in enumerate(groups):
        path = folder / segment_file(number, num_segments=len(groups))
        with _local_file(build.work / f"{name}.faiss") as source:
            path.write_bytes(source.read_bytes())
        parts.append(path)
    check_unique_ids(*(read_faiss_file(path, mmap=True) for path in parts))
    return parts


def _merged_on_disk(build: Build, groups: Sequence[str], folder: Path) -> FaissIndex:
    with tempfile.TemporaryDirectory(prefix="tsdae-parts-") as temporary:
        paths = []
        for name in groups:
            path = Path(temporary) / f"{name}.faiss"
            with _local_file(build.work / f"{name}.faiss") as source:
                path.symlink_to(source) if build.work.is_local else source.rename(path)
            paths.append(path)
        with _local_file(build.work / TRAINED_FILE) as source:
            trained = read_faiss_file(source)
        return merge_files_on_disk(trained, paths, (folder / INDEX_FILE).with_suffix(LISTS_SUFFIX))


def _load_group(build: Build, name: str) -> FaissIndex:
    with _local_file(build.work / f"{name}.faiss") as path:
        return read_faiss_file(path)


def _described(build: Build, inputs: tuple[IndexInput, ...], tuned: TunedSearch) -> IndexMetadata:
    near, deep = tuned.recall_at_10, tuned.recall_at_100
    return replace(
        build.about,
        search_params=tuned.params,
        recall_at_10=near.value,
        recall_at_10_interval=(near.low, near.high),
        recall_at_100=None if deep is None else deep.value,
        recall_at_100_interval=None if deep is None else (deep.low, deep.high),
        recall_num_queries=near.num_queries,
        inputs=inputs,
    )


def _write_index(index: FaissIndex, place: Location) -> None:
    with place.write_atomically() as target, _local_file(target, write=True) as path:
        write_faiss_file(index, path)


def _write_arrays(place: Location, **arrays: NDArray[Any]) -> None:
    data = io.BytesIO()
    np.savez(data, **cast(Any, arrays))
    place.write_bytes(data.getvalue())


def _num_queries(build: Build) -> int:
    """Rows of the query sample: those that tune the search, and as many held out to report recall on."""
    return 2 * build.config.num_query_sample


def _adds_queries_last(build: Build) -> bool:
    """Whether the search is tuned before the query sample is in the index.

    A row of a graph is linked to its neighbours, so asking for them is easier than asking from outside:
    recall 0.95 of such rows was 0.90 of other sentences (docs/log.md). Lists and codes know no such
    difference. In a small corpus the sample would be missed, and its rows are asked for with themselves left
    out.
    """
    return not build.plan.mergeable and _MIN_ROWS_PER_QUERY * _num_queries(build) <= build.plan.num_vectors


def _read_queries(build: Build) -> tuple[_Vectors, _Ids, NDArray[np.bool_]]:
    """Vectors and row ids of the query sample, and which of them are held out."""
    with _local_file(build.work / _QUERIES_FILE) as path, np.load(path) as arrays:
        return arrays["vectors"], arrays["ids"], arrays["held_out"]


def _read_exact(build: Build, name: str) -> Hits:
    with _local_file(build.work / f"{name}.npz") as path, np.load(path) as arrays:
        return Hits(arrays["ids"], arrays["scores"])


def _key(purpose: str, build: Build) -> int:
    return fold_key(f"index {purpose}", build.plan.seed)


def _generous_share(count: int, total: int) -> float:
    """A share of the rows that holds `count` of them for all but certain, so that few are carried around."""
    return 1.0 if count >= total else min(1.0, (count + 6 * math.sqrt(count) + 10) / total)


def _lowest(ids: _Ids, key: int, *, share: float) -> NDArray[np.bool_]:
    if share >= 1:
        return np.ones(len(ids), dtype=np.bool_)
    return keyed_hash(key, ids) < np.uint64(int(share * 2**64))


def _smallest(ids: _Ids, key: int, count: int) -> _Ids:
    """Places of the `count` rows with the smallest hashes, in the order of their ids."""
    chosen = np.argsort(keyed_hash(key, ids), kind="stable")[:count]
    return chosen[np.argsort(ids[chosen], kind="stable")]


def _together(parts: Sequence[tuple[_Ids, _Vectors]], dim: int) -> tuple[_Ids, _Vectors]:
    ids = [np.empty(0, np.int64), *(part[0] for part in parts)]
    rows = [np.empty((0, dim), np.float32), *(part[1] for part in parts)]
    return np.concatenate(ids), np.concatenate(rows)


@contextmanager
def _local_file(place: Location, *, write: bool = False) -> Iterator[Path]:
    """The file where FAISS and numpy can open it; a remote one is fetched before or stored after."""
    if place.is_local:
        yield place.local_path
        return
    with tempfile.TemporaryDirectory(prefix="tsdae-") as folder:
        path = Path(folder) / place.name
        if not write:
            with path.open("wb") as target, place.filesystem.open_input_stream(place.path) as stream:
                while piece := stream.read(1 << 20):
                    target.write(piece)
        yield path
        if write:
            with place.open_output() as target, path.open("rb") as stream:
                while piece := stream.read(1 << 20):
                    target.write(piece)
