"""From the size of a corpus to an index type: pure arithmetic, with its reasons.

Owns the choice of a FAISS factory string, the size of the training sample, the memory it takes and the grid
of search settings that `indexing.tune.tune_search` tries. Must not know FAISS objects or data.
The thresholds were measured (single thread, 384 dimensions, docs/benchmarks.md): exhaustive search takes a
few milliseconds for 20,000 rows and misses nothing; 4-bit fast-scan codes of all rows, re-ranked with the
stored vectors, are the fastest to recall 0.99 up to 200,000; inverted lists over them are faster where 0.97
is enough, from 50,000 rows on, and needed beyond 200,000.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from indexing.factory_string import bytes_per_vector as bytes_per_vector
from indexing.factory_string import (
    coded_dim,
    graph_degree,
    needs_id_map,
    num_lists_in,
    product_codes,
    refuse_bending,
    scan_and_refine_bytes,
    smallest_codes,
)
from indexing.factory_string import resident_bytes_per_vector as resident_bytes_per_vector
from indexing.factory_string import shared_bytes as shared_bytes
from indexing.index_config import IndexConfig as IndexConfig
from indexing.index_config import Metric as Metric
from indexing.index_config import format_bytes

MAX_ROWS_FLAT = 20_000
MAX_ROWS_WITHOUT_LISTS = 200_000
MIN_ROWS_WITH_LISTS = 50_000
# Up to this target visiting some lists is faster than scanning all rows; above it too many must be visited.
MAX_TARGET_FOR_FEW_LISTS = 0.97
MAX_ROWS_FLAT_COARSE = 10_000_000
# A graph is grown row by row in one task: about ten minutes on one core for so many.
MAX_ROWS_GRAPH = 2_000_000
TRAIN_VECTORS_PER_LIST = 50
# Comparing a row of the sample with so many centroids takes an hour of one core in all, and four times that
# for twice as many; through a graph over them the time hardly grows (docs/log.md, docs/scale.md).
MIN_LISTS_TRAINED_BY_GRAPH = 16_384
# Below this FAISS's k-means gives uneven lists (its own warning threshold).
MIN_TRAIN_VECTORS_PER_CENTROID = 39
MIN_TRAIN_VECTORS = 20_000
# What 8-bit scalar codes found of the exact ten, all of them looked at (100,000 rows, docs/log.md). A target
# above the next number is not for them; up to the last they find hardly less than half floats do.
RECALL_OF_8_BIT = 0.992
MAX_TARGET_FOR_8_BIT = 0.99
MAX_TARGET_FOR_8_BIT_FIRST = 0.9

_EIGHT_BIT = re.compile(r"PQ\d+np")
_WHY_EIGHT_BIT = (
    "8-bit product codes, of the sizes that 4-bit ones do not have here: the most recall for their bytes, at "
    "several times the CPU time for a row scanned"
)
_FOUND_BY_8_BIT = f"8-bit codes found {RECALL_OF_8_BIT} of the exact ten, all of 100,000 rows looked at"
_WHY_ONE_BIT = "1-bit codes (RaBitQ), re-ranked: no 4-bit product code of {dim} dimensions is as small"
_WHY_NO_ONE_BIT = (
    "no 1-bit codes (RaBitQ): with 8 bytes of factors a row they are larger than 4-bit codes of a quarter of "
    "the dimensions, find no more, and take several times the CPU time"
)

_REFINE_FACTORS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_EF_SEARCH = (16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, kw_only=True)
class SearchParams:
    """Settings of one search; None = the index type has no such setting.

    Attributes:
        num_probes: inverted lists visited.
        ef_search: candidates kept while walking an HNSW graph.
        refine_factor: candidates re-ranked with the stored vectors, as a multiple of k.
    """

    num_probes: int | None = None
    ef_search: int | None = None
    refine_factor: int | None = None


@dataclass(frozen=True, kw_only=True)
class IndexPlan:
    """What to build.

    Attributes:
        factory: complete FAISS factory string, with the id map where the type has no ids of its own.
        metric: as configured; the index itself always ranks by inner product.
        dim: d of the vectors.
        num_vectors: rows planned for.
        num_train_vectors: rows the training sample should have; 0 = the type needs no training.
        nlist: inverted lists, 0 = none.
        bytes_per_vector: storage for each row, ids included, without what all rows share.
        resident_bytes_per_vector: the part of it that every search reads; the rest are vectors for
            re-ranking, which may stay on disk.
        shared_bytes: matrices of transforms, centroids, tables of codes: what all rows share.
        mergeable: whether indexes of shards can be merged.
        search_params_grid: settings to try, cheapest (fewest bytes read) first.
        seed: of k-means.
        reasons: one sentence for each choice, for people.
    """

    factory: str
    metric: Metric
    dim: int
    num_vectors: int
    num_train_vectors: int
    nlist: int
    bytes_per_vector: int
    resident_bytes_per_vector: int
    shared_bytes: int
    mergeable: bool
    search_params_grid: tuple[SearchParams, ...]
    seed: int
    reasons: tuple[str, ...] = field(default=())


def plan_index(num_vectors: int, dim: int, config: IndexConfig) -> IndexPlan:
    """Choose index type, training sample and search settings.

    Args:
        num_vectors: rows to index, > 0.
        dim: of each vector, > 0.
        config: wishes; an explicit `factory` is kept and only completed with an id map.

    Raises:
        ValueError: no rows, no index type fits `memory_budget` (the message says what would), or a given
            factory changes inner products.
    """
    if num_vectors < 1 or dim < 1:
        raise ValueError(f"cannot plan an index for {num_vectors} vectors of {dim} dimensions")
    if config.factory == "auto":
        bare, reasons = _choose(num_vectors, dim, config)
    else:
        bare, reasons = config.factory.strip(), ["factory given in the configuration"]
        refuse_bending(bare)
        held = _needed(bare, num_vectors, dim, resident_bytes_per_vector)
        if config.memory_budget_bytes is not None and held > config.memory_budget_bytes:
            reasons.append(f"needs {format_bytes(held)}: index.memory_budget binds `auto` alone")
    nlist = num_lists_in(bare)
    has_id_map = needs_id_map(bare)
    if has_id_map:
        reasons.append("IDMap keeps our row ids, which this type cannot store itself")
    mergeable = not graph_degree(bare)
    if not mergeable:
        reasons.append("a graph cannot be merged: built in one task, or one graph for each shard")
    num_train = _num_train_vectors(bare, num_vectors, nlist)
    if num_train:
        through = ", through a graph" if nlist >= MIN_LISTS_TRAINED_BY_GRAPH else ""
        reasons.append(f"trained on {num_train:,} sampled vectors{through}")
    return IndexPlan(
        factory=f"IDMap,{bare}" if has_id_map else bare,
        metric=config.metric,
        dim=dim,
        num_vectors=num_vectors,
        num_train_vectors=num_train,
        nlist=nlist,
        bytes_per_vector=bytes_per_vector(bare, dim),
        resident_bytes_per_vector=resident_bytes_per_vector(bare, dim),
        shared_bytes=shared_bytes(bare, dim),
        mergeable=mergeable,
        search_params_grid=_search_grid(bare, num_vectors, dim, nlist),
        seed=config.seed,
        reasons=tuple(reasons),
    )


def _choose(num_vectors: int, dim: int, config: IndexConfig) -> tuple[str, list[str]]:
    candidates = _candidates(num_vectors, dim, config)
    budget = config.memory_budget_bytes
    if budget is None:
        total = format_bytes(_needed(candidates[0], num_vectors, dim, bytes_per_vector))
        size = f"{bytes_per_vector(candidates[0], dim):,} bytes a row, {total} in all"
        return candidates[0], [*_reasons(candidates[0], num_vectors, dim, config), size]
    asked = f"{format_bytes(budget)} ({budget / num_vectors:,.1f} a row)"
    for candidate in candidates:
        if _needed(candidate, num_vectors, dim, bytes_per_vector) <= budget:
            size = f"{bytes_per_vector(candidate, dim):,} bytes a row, within the budget of {asked}"
            return candidate, [*_reasons(candidate, num_vectors, dim, config), size]
    for candidate in candidates:
        if _needed(candidate, num_vectors, dim, resident_bytes_per_vector) <= budget:
            size_bytes = resident_bytes_per_vector(candidate, dim)
            on_disk = f"{bytes_per_vector(candidate, dim) - size_bytes:,} more for re-ranking on disk"
            size = f"{size_bytes:,} bytes a row, within the budget of {asked}; {on_disk}"
            return candidate, [*_reasons(candidate, num_vectors, dim, config), size]
    sizes = ", ".join(
        f"{candidate} {_needed(candidate, num_vectors, dim, resident_bytes_per_vector) / num_vectors:,.1f}"
        for candidate in candidates
    )
    raise ValueError(
        f"no index type fits index.memory_budget={config.memory_budget} for {num_vectors:,} vectors of {dim} "
        f"dimensions: {budget / num_vectors:,.1f} bytes a row (needed, tables included: {sizes}); raise the "
        "budget, cut the dimensions (embed.dim), or give index.factory yourself"
    )


def _needed(factory: str, num_vectors: int, dim: int, row_bytes: Callable[[str, int], int]) -> int:
    """Bytes of all rows and of what they share."""
    return num_vectors * row_bytes(factory, dim) + shared_bytes(factory, dim)


def _candidates(num_vectors: int, dim: int, config: IndexConfig) -> list[str]:
    """Bare factory strings that can meet the target, the most wanted first."""
    target = config.target_recall_at_10
    if num_vectors <= MAX_ROWS_FLAT:
        return ["Flat", "SQfp16", *(["SQ8"] if target <= MAX_TARGET_FOR_8_BIT else [])]
    half, quarter = product_codes(dim)
    stored = _stored_for(target)
    smallest = smallest_codes(dim, below=quarter or half)
    graphs = []
    if config.prefer == "latency" and num_vectors <= MAX_ROWS_GRAPH:
        graphs = [f"HNSW32,{kind}" for kind in stored]
    nlist = _num_lists_for(num_vectors)
    coarse = f"IVF{nlist}" if num_vectors <= MAX_ROWS_FLAT_COARSE else f"IVF{nlist}_HNSW32"
    if num_vectors <= MAX_ROWS_WITHOUT_LISTS:
        scanned = [f"{quarter or half},RFlat", *(f"{half},Refine({kind})" for kind in stored)] if half else []
        if num_vectors >= MIN_ROWS_WITH_LISTS and target <= MAX_TARGET_FOR_FEW_LISTS:
            scanned = [*(f"{coarse},{code}" for code in scanned[:1]), *scanned]
        # RaBitQ codes what is left after a centroid, so it takes lists at any size.
        small = [f"{coarse},{code}" if code == "RaBitQ" else code for code in smallest]
        return graphs + scanned + stored + [f"{code},Refine({stored[0]})" for code in small]
    codes = list(dict.fromkeys(code for code in (half, quarter) if code))
    refined = [f"{coarse},{code},Refine({kind})" for kind in stored for code in codes]
    plain = [f"{coarse},{kind}" for kind in stored]
    return graphs + refined + plain + [f"{coarse},{code},Refine({stored[0]})" for code in smallest]


def _stored_for(target: float) -> list[str]:
    """Scalar codes that can rank the best ten well enough, the most wanted first."""
    if target > MAX_TARGET_FOR_8_BIT:
        return ["SQfp16"]
    return ["SQfp16", "SQ8"] if target > MAX_TARGET_FOR_8_BIT_FIRST else ["SQ8"]


def _reasons(chosen: str, num_vectors: int, dim: int, config: IndexConfig) -> list[str]:
    """Why this type: by the number of rows, then by its codes."""
    half, quarter = product_codes(dim)
    reasons = [f"{num_vectors:,} vectors: {_why_this_layout(chosen, num_vectors)}"]
    if not half and num_vectors > MAX_ROWS_FLAT:
        reasons.append(f"{dim} dimensions do not split into equal parts: no 4-bit product codes")
    if "SQfp16" in chosen:
        reasons.append(f"half floats to rank with: {_FOUND_BY_8_BIT}")
    elif "SQ8" in chosen and config.target_recall_at_10 > MAX_TARGET_FOR_8_BIT_FIRST:
        reasons.append(
            f"8-bit codes to rank with, as the budget has no room for half floats: {_FOUND_BY_8_BIT}"
        )
    elif "SQ8" in chosen:
        reasons.append(
            f"8-bit codes to rank with: up to recall {MAX_TARGET_FOR_8_BIT_FIRST} half floats, twice as "
            "large, find hardly more"
        )
    if "RaBitQ" in chosen:
        reasons.append(_WHY_ONE_BIT.format(dim=dim))
    has_8_bit_parts = bool(_EIGHT_BIT.search(chosen))
    if has_8_bit_parts:
        reasons.append(_WHY_EIGHT_BIT)
    is_tight = config.memory_budget is not None and (quarter in chosen or has_8_bit_parts)
    if quarter and is_tight and "RaBitQ" not in smallest_codes(dim, below=quarter):
        reasons.append(_WHY_NO_ONE_BIT)
    return reasons


def _why_this_layout(chosen: str, num_vectors: int) -> str:
    if num_vectors <= MAX_ROWS_FLAT:
        return f"exhaustive search is fast enough{' and exact' if chosen == 'Flat' else ''}"
    if graph_degree(chosen):
        return "a graph answers single queries fastest, where its memory fits"
    if "RFlat" in chosen and num_lists_in(chosen):
        return f"4-bit codes in lists, re-ranked, are the fastest for recall up to {MAX_TARGET_FOR_FEW_LISTS}"
    if num_lists_in(chosen):
        return f"{num_lists_in(chosen):,} inverted lists (about 4 sqrt(n), a power of two)"
    return "scanning the codes of all rows needs no inverted lists"


def _num_lists_for(num_vectors: int) -> int:
    return int(2 ** round(math.log2(4 * math.sqrt(num_vectors))))


def _num_train_vectors(factory: str, num_vectors: int, nlist: int) -> int:
    bare = re.sub(r"^IDMap2?,", "", factory)
    if bare in ("Flat", "SQfp16", "SQbf16") or re.fullmatch(r"HNSW\d*(,Flat)?", bare):
        return 0
    return min(num_vectors, max(MIN_TRAIN_VECTORS, TRAIN_VECTORS_PER_LIST * nlist))


def _half_octaves(last: int) -> list[int | None]:
    """1, 2, 3, 4, 6, 8, 12 ... and `last`: a step costs at most half as much again as the one before."""
    steps = {2**i for i in range(last.bit_length())} | {3 * 2**i for i in range(last.bit_length())}
    return [*sorted(step for step in steps if step < last), last]


def _search_grid(factory: str, num_vectors: int, dim: int, nlist: int) -> tuple[SearchParams, ...]:
    scan, refine = scan_and_refine_bytes(factory, dim)
    probes = _half_octaves(nlist) if nlist else [None]
    factors = list(_REFINE_FACTORS) if refine else [None]
    efforts = list(_EF_SEARCH) if graph_degree(factory) else [None]

    def bytes_read(params: SearchParams) -> float:
        share = params.num_probes / nlist if params.num_probes else 1.0
        visited = num_vectors * share + nlist * 4 * coded_dim(factory, dim) / max(scan, 1.0)
        if params.ef_search:
            visited = params.ef_search * graph_degree(factory)
        # A byte of a vector that is scored again costs about as much as one of a scanned code: the jumps
        # through memory take what the table lookups of the codes do (docs/log.md).
        return visited * scan + 10 * (params.refine_factor or 0) * refine

    grid = [
        SearchParams(num_probes=probe, ef_search=effort, refine_factor=factor)
        for probe in probes
        for effort in efforts
        for factor in factors
    ]
    return tuple(sorted(grid, key=bytes_read))
