"""From the size of a corpus to an index type: pure arithmetic, with its reasons.

Owns the configuration, the choice of a FAISS factory string, the size of the training sample and the grid of
search settings that `indexing.build.tune_search` tries. Must not know FAISS objects or data.
The thresholds are the measured starting points (single thread, 384 dimensions): exhaustive
search answers in well under a millisecond up to 20,000 rows; 4-bit fast-scan codes re-ranked with the stored
vectors reach recall 0.99 up to 200,000; inverted lists are needed beyond.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Metric: TypeAlias = Literal["cosine", "inner_product"]

MAX_ROWS_FLAT = 20_000
MAX_ROWS_WITHOUT_LISTS = 200_000
MAX_ROWS_FLAT_COARSE = 10_000_000
ID_BYTES = 8
TRAIN_VECTORS_PER_LIST = 50
# Below this FAISS's k-means gives uneven lists (its own warning threshold).
MIN_TRAIN_VECTORS_PER_CENTROID = 39
MIN_TRAIN_VECTORS = 20_000
HNSW_LINK_BYTES = 4

_REFINE_FACTORS = (1, 2, 4, 8, 16, 32, 64)
_EF_SEARCH = (16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, kw_only=True)
class IndexConfig:
    """What the user wants from the index.

    Attributes:
        metric: cosine (vectors and queries are normalised) or plain inner product.
        factory: a FAISS factory string, or "auto" to let `plan_index` choose.
        target_recall_at_10: share of the exact best 10 that the index must find, in (0, 1].
        max_bytes_per_vector: memory budget for each row, ids included; None = no limit. Only for "auto".
        num_query_sample: queries on which recall is measured.
        allow_below_target: keep an index that misses the target instead of failing.
        seed: of k-means and of the samples.

    Raises:
        ValueError: a value outside its range.
    """

    metric: Metric = "cosine"
    factory: str = "auto"
    target_recall_at_10: float = 0.95
    max_bytes_per_vector: int | None = None
    num_query_sample: int = 200
    allow_below_target: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.metric not in ("cosine", "inner_product"):
            raise ValueError(f"index.metric must be cosine or inner_product, got {self.metric!r}")
        if not self.factory.strip():
            raise ValueError('index.factory is empty: give a FAISS factory string or "auto"')
        if not 0 < self.target_recall_at_10 <= 1:
            raise ValueError(f"index.target_recall_at_10 must be in (0, 1], got {self.target_recall_at_10}")
        if self.max_bytes_per_vector is not None and self.max_bytes_per_vector <= 0:
            raise ValueError(f"index.max_bytes_per_vector must be positive, got {self.max_bytes_per_vector}")
        if self.num_query_sample < 1:
            raise ValueError(f"index.num_query_sample must be at least 1, got {self.num_query_sample}")
        if self.seed < 0:
            raise ValueError(f"index.seed must be >= 0, got {self.seed}")


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
        bytes_per_vector: memory for each row, ids included, without the shared tables.
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
        ValueError: no rows, or no index type fits `max_bytes_per_vector` (the message says what would).
    """
    if num_vectors < 1 or dim < 1:
        raise ValueError(f"cannot plan an index for {num_vectors} vectors of {dim} dimensions")
    if config.factory == "auto":
        bare, reasons = _choose(num_vectors, dim, config)
    else:
        bare, reasons = config.factory.strip(), ["factory given in the configuration"]
    nlist = _num_lists_in(bare)
    needs_id_map = _needs_id_map(bare)
    if needs_id_map:
        reasons.append("IDMap keeps our row ids, which this type cannot store itself")
    mergeable = not _graph_degree(bare)
    if not mergeable:
        reasons.append("indexes of this type cannot be merged: build it in one task")
    num_train = _num_train_vectors(bare, num_vectors, nlist)
    if num_train:
        reasons.append(f"trained on {num_train:,} sampled vectors")
    return IndexPlan(
        factory=f"IDMap,{bare}" if needs_id_map else bare,
        metric=config.metric,
        dim=dim,
        num_vectors=num_vectors,
        num_train_vectors=num_train,
        nlist=nlist,
        bytes_per_vector=bytes_per_vector(bare, dim),
        mergeable=mergeable,
        search_params_grid=_search_grid(bare, num_vectors, dim, nlist),
        seed=config.seed,
        reasons=tuple(reasons),
    )


def bytes_per_vector(factory: str, dim: int) -> int:
    """Memory for one row of the factory's type, 8 bytes of id included, without the shared tables."""
    scan, refine = _scan_and_refine_bytes(factory, dim)
    links = _graph_degree(factory) * 2 * HNSW_LINK_BYTES
    return math.ceil(scan + refine + links) + ID_BYTES


def _choose(num_vectors: int, dim: int, config: IndexConfig) -> tuple[str, list[str]]:
    candidates, reasons = _candidates(num_vectors, dim)
    budget = config.max_bytes_per_vector
    if budget is None:
        return candidates[0], [*reasons, f"{bytes_per_vector(candidates[0], dim):,} bytes for each vector"]
    for candidate in candidates:
        size = bytes_per_vector(candidate, dim)
        if size <= budget:
            return candidate, [*reasons, f"{size:,} bytes for each vector, within the budget of {budget:,}"]
    sizes = ", ".join(f"{candidate} {bytes_per_vector(candidate, dim):,}" for candidate in candidates)
    raise ValueError(
        f"no index type fits index.max_bytes_per_vector={budget} for {dim} dimensions "
        f"(bytes needed: {sizes}); raise the budget, cut the dimensions, or give index.factory yourself"
    )


def _candidates(num_vectors: int, dim: int) -> tuple[list[str], list[str]]:
    if num_vectors <= MAX_ROWS_FLAT:
        reason = f"{num_vectors:,} vectors: exhaustive search is fast enough and exact"
        return ["Flat", "SQfp16", "SQ8"], [reason]
    can_halve, can_quarter = dim % 2 == 0, dim % 4 == 0
    half, quarter = f"PQ{dim // 2}x4fs", f"PQ{dim // 4}x4fs"
    no_codes = [] if can_halve else [f"{dim} dimensions do not split into equal parts: no product quantiser"]
    if num_vectors <= MAX_ROWS_WITHOUT_LISTS:
        reason = (
            f"{num_vectors:,} vectors: scanning 4-bit codes of all rows, re-ranked, needs no inverted lists"
        )
        refined = [f"{quarter},RFlat"] if can_quarter else [f"{half},RFlat"] if can_halve else []
        compact = [f"{half},Refine(SQ8)"] if can_halve else []
        plain = ["SQ8"] + ([half] if can_halve else [])
        return refined + compact + plain, [reason, *no_codes]
    nlist = _num_lists_for(num_vectors)
    coarse = f"IVF{nlist}" if num_vectors <= MAX_ROWS_FLAT_COARSE else f"IVF{nlist}_HNSW32"
    reason = f"{num_vectors:,} vectors: {nlist:,} inverted lists (about 4 sqrt(n), a power of two)"
    compact = [f"{coarse},{half},Refine(SQ8)"] if can_halve else []
    plain = [f"{coarse},SQ8"] + ([f"{coarse},{half}"] if can_halve else [])
    return compact + plain, [reason, *no_codes]


def _num_lists_for(num_vectors: int) -> int:
    return int(2 ** round(math.log2(4 * math.sqrt(num_vectors))))


def _num_lists_in(factory: str) -> int:
    found = re.search(r"(?:^|,)IVF(\d+)", factory)
    return int(found.group(1)) if found else 0


def _without_coarse(factory: str) -> str:
    return re.sub(r"IVF\d+(_HNSW\d*|\(.*?\))?", "IVF", factory)


def _needs_id_map(factory: str) -> bool:
    if factory.startswith("IDMap"):
        return False
    return _num_lists_in(factory) == 0 or bool(re.search(r"R(Flat|efine)", factory))


def _graph_degree(factory: str) -> int:
    found = re.search(r"HNSW(\d*)", _without_coarse(factory))
    return int(found.group(1) or 32) if found else 0


def _num_train_vectors(factory: str, num_vectors: int, nlist: int) -> int:
    bare = re.sub(r"^IDMap2?,", "", factory)
    if bare in ("Flat", "SQfp16", "SQbf16") or re.fullmatch(r"HNSW\d*(,Flat)?", bare):
        return 0
    return min(num_vectors, max(MIN_TRAIN_VECTORS, TRAIN_VECTORS_PER_LIST * nlist))


def _scan_and_refine_bytes(factory: str, dim: int) -> tuple[float, float]:
    body = _without_coarse(factory)
    refine_part = re.search(r",R(?:efine\((.*?)\)|Flat)$", body)
    refine = 0.0
    if refine_part:
        refine = _code_bytes(refine_part.group(1) or "Flat", dim)
        body = body[: refine_part.start()]
    return _code_bytes(body.split(",")[-1], dim), refine


def _code_bytes(code: str, dim: int) -> float:
    product = re.fullmatch(r"PQ(\d+)(?:x(\d+))?(?:fs|np)*(?:_\d+)?", code)
    if product:
        return int(product.group(1)) * int(product.group(2) or 8) / 8
    scalar = {"SQ8": 1.0, "SQ6": 0.75, "SQ4": 0.5, "SQfp16": 2.0, "SQbf16": 2.0}
    if code in scalar:
        return dim * scalar[code]
    if code.startswith("RaBitQ"):
        return dim / 8 + ID_BYTES
    return dim * 4.0


def _search_grid(factory: str, num_vectors: int, dim: int, nlist: int) -> tuple[SearchParams, ...]:
    scan, refine = _scan_and_refine_bytes(factory, dim)
    probes = [2**i for i in range(nlist.bit_length()) if 2**i < nlist] + [nlist] if nlist else [None]
    factors = list(_REFINE_FACTORS) if refine else [None]
    efforts = list(_EF_SEARCH) if _graph_degree(factory) else [None]

    def bytes_read(params: SearchParams) -> float:
        share = params.num_probes / nlist if params.num_probes else 1.0
        visited = num_vectors * share + nlist * 4 * dim / max(scan, 1.0)
        if params.ef_search:
            visited = params.ef_search * _graph_degree(factory)
        # Re-ranking jumps through memory: each vector costs about four times a sequential read.
        return visited * scan + 4 * 10 * (params.refine_factor or 0) * refine

    grid = [
        SearchParams(num_probes=probe, ef_search=effort, refine_factor=factor)
        for probe in probes
        for effort in efforts
        for factor in factors
    ]
    return tuple(sorted(grid, key=bytes_read))
