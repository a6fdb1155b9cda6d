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
from dataclasses import dataclass, field

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
ID_BYTES = 8
TRAIN_VECTORS_PER_LIST = 50
# Comparing a row of the sample with so many centroids takes an hour of one core in all, and four times that
# for twice as many; through a graph over them the time hardly grows (docs/log.md, docs/scale.md).
MIN_LISTS_TRAINED_BY_GRAPH = 16_384
# Below this FAISS's k-means gives uneven lists (its own warning threshold).
MIN_TRAIN_VECTORS_PER_CENTROID = 39
MIN_TRAIN_VECTORS = 20_000
HNSW_LINK_BYTES = 4
# Of a graph's row beside its links: level, offset, and its share of the upper layers.
HNSW_ROW_BYTES = 16
# 8-bit scalar codes rank the best ten well enough up to here; half floats beyond.
MAX_TARGET_FOR_8_BIT = 0.9

# Parts of a vector for 8-bit product codes, in numbers: below 3 training takes minutes for nothing, beyond 32
# no re-ranking mends what is lost.
MIN_PART, MAX_PART = 3, 32
_EIGHT_BIT = re.compile(r"PQ\d+np")
_WHY_EIGHT_BIT = (
    "8-bit product codes, of the sizes that 4-bit ones do not have here: the most recall for their bytes, at "
    "several times the CPU time for a row scanned"
)

_REFINE_FACTORS = (1, 2, 4, 8, 16, 32, 64)
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
        bytes_per_vector: storage for each row, ids included, without the shared tables.
        resident_bytes_per_vector: the part of it that every search reads; the rest are vectors for
            re-ranking, which may stay on disk.
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
        ValueError: no rows, or no index type fits `memory_budget` (the message says what would).
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
        reasons.append("a graph cannot be merged: built in one task, or one graph for each shard")
    num_train = _num_train_vectors(bare, num_vectors, nlist)
    if num_train:
        through = ", through a graph" if nlist >= MIN_LISTS_TRAINED_BY_GRAPH else ""
        reasons.append(f"trained on {num_train:,} sampled vectors{through}")
    return IndexPlan(
        factory=f"IDMap,{bare}" if needs_id_map else bare,
        metric=config.metric,
        dim=dim,
        num_vectors=num_vectors,
        num_train_vectors=num_train,
        nlist=nlist,
        bytes_per_vector=bytes_per_vector(bare, dim),
        resident_bytes_per_vector=resident_bytes_per_vector(bare, dim),
        mergeable=mergeable,
        search_params_grid=_search_grid(bare, num_vectors, dim, nlist),
        seed=config.seed,
        reasons=tuple(reasons),
    )


def bytes_per_vector(factory: str, dim: int) -> int:
    """Storage of one row of the factory's type, 8 bytes of id included, without the shared tables."""
    return resident_bytes_per_vector(factory, dim) + math.ceil(_scan_and_refine_bytes(factory, dim)[1])


def resident_bytes_per_vector(factory: str, dim: int) -> int:
    """The part of `bytes_per_vector` that every search reads: codes, links and ids."""
    scan, refine = _scan_and_refine_bytes(factory, dim)
    degree = _graph_degree(factory)
    links = degree * 2 * HNSW_LINK_BYTES + HNSW_ROW_BYTES if degree else 0
    # Lists below a re-ranking store hold places, and an id map turns these into row ids: both are 8 bytes.
    num_ids = 2 if refine and _num_lists_in(factory) else 1
    return math.ceil(scan) + links + num_ids * ID_BYTES


def _choose(num_vectors: int, dim: int, config: IndexConfig) -> tuple[str, list[str]]:
    candidates, reasons = _candidates(num_vectors, dim, config)
    budget = config.memory_budget_bytes
    if budget is None:
        total = format_bytes(num_vectors * bytes_per_vector(candidates[0], dim))
        return candidates[0], [
            *reasons,
            f"{bytes_per_vector(candidates[0], dim):,} bytes a row, {total} in all",
        ]
    per_row = budget / num_vectors
    asked = f"{format_bytes(budget)} ({per_row:,.1f} a row)"
    for candidate in candidates:
        if (size := bytes_per_vector(candidate, dim)) <= per_row:
            return candidate, [*reasons, f"{size:,} bytes a row, within the budget of {asked}"]
    for candidate in candidates:
        size = resident_bytes_per_vector(candidate, dim)
        if size <= per_row:
            on_disk = bytes_per_vector(candidate, dim) - size
            whys = [
                f"{size:,} bytes a row, within the budget of {asked}; {on_disk:,} more for re-ranking on disk"
            ]
            if _EIGHT_BIT.search(candidate):
                whys.insert(0, _WHY_EIGHT_BIT)
            return candidate, [*reasons, *whys]
    sizes = ", ".join(
        f"{candidate} {resident_bytes_per_vector(candidate, dim):,}" for candidate in candidates
    )
    raise ValueError(
        f"no index type fits index.memory_budget={config.memory_budget} for {num_vectors:,} vectors of {dim} "
        f"dimensions: {per_row:,.1f} bytes a row (needed: {sizes}); raise the budget, cut the dimensions "
        "(embed.dim), or give index.factory yourself"
    )


def _candidates(num_vectors: int, dim: int, config: IndexConfig) -> tuple[list[str], list[str]]:
    """Bare factory strings that can meet the target, the most wanted first."""
    if num_vectors <= MAX_ROWS_FLAT:
        reason = f"{num_vectors:,} vectors: exhaustive search is fast enough and exact"
        return ["Flat", "SQfp16", "SQ8"], [reason]
    half, quarter = _product_codes(dim)
    needs_half_floats = config.target_recall_at_10 > MAX_TARGET_FOR_8_BIT
    stored = ["SQfp16", "SQ8"] if needs_half_floats else ["SQ8"]
    reasons = [] if half else [f"{dim} dimensions do not split into equal parts: no product quantiser"]
    if needs_half_floats:
        reasons.append(f"recall over {MAX_TARGET_FOR_8_BIT} needs vectors finer than 8 bits to rank with")
    graphs = []
    if config.prefer == "latency" and num_vectors <= MAX_ROWS_GRAPH:
        graphs = [f"HNSW32,{kind}" for kind in stored]
        reasons.insert(0, "a graph answers single queries fastest, where its memory fits")
    if num_vectors <= MAX_ROWS_WITHOUT_LISTS:
        why = f"{num_vectors:,} vectors: scanning 4-bit codes of all rows, re-ranked, needs no inverted lists"
        scanned = [f"{quarter or half},RFlat", *(f"{half},Refine({kind})" for kind in stored)] if half else []
        small = [f"{code},Refine({stored[0]})" for code in _eight_bit_codes(dim, below=quarter or half)]
        if num_vectors >= MIN_ROWS_WITH_LISTS and config.target_recall_at_10 <= MAX_TARGET_FOR_FEW_LISTS:
            listed = [f"IVF{_num_lists_for(num_vectors)},{code}" for code in scanned[:1]]
            why = f"{num_vectors:,} vectors, recall of up to {MAX_TARGET_FOR_FEW_LISTS}: 4-bit codes in lists"
            return graphs + listed + scanned + stored + small, [why, *reasons]
        return graphs + scanned + stored + small, [why, *reasons]
    nlist = _num_lists_for(num_vectors)
    coarse = f"IVF{nlist}" if num_vectors <= MAX_ROWS_FLAT_COARSE else f"IVF{nlist}_HNSW32"
    why = f"{num_vectors:,} vectors: {nlist:,} inverted lists (about 4 sqrt(n), a power of two)"
    codes = [code for code in (half, quarter) if code]
    refined = [f"{coarse},{code},Refine({kind})" for kind in stored for code in codes]
    plain = [f"{coarse},{kind}" for kind in stored]
    # The finest first: with vectors on disk every candidate that is scored again costs a read.
    smallest = ["RaBitQ", *_eight_bit_codes(dim, below=quarter or half)]
    smallest.sort(key=lambda code: -_code_bytes(code, dim))
    return graphs + refined + plain + [f"{coarse},{code},Refine({stored[0]})" for code in smallest], [
        why,
        *reasons,
    ]


def _product_codes(dim: int) -> tuple[str, str]:
    """4-bit product codes of d/2 and d/4 parts; "" where d does not split."""
    half = f"PQ{dim // 2}x4fs" if dim % 2 == 0 else ""
    return half, f"PQ{dim // 4}x4fs" if dim % 4 == 0 else ""


def _eight_bit_codes(dim: int, *, below: str) -> list[str]:
    """8-bit product codes, the finest first, smaller than the 4-bit ones there are."""
    limit = _code_bytes(below, dim) if below else dim
    parts = [part for part in range(MIN_PART, MAX_PART + 1) if dim % part == 0 and dim // part < limit]
    return [f"PQ{dim // part}np" for part in parts]


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


def _half_octaves(last: int) -> list[int | None]:
    """1, 2, 3, 4, 6, 8, 12 ... and `last`: a step costs at most half as much again as the one before."""
    steps = {2**i for i in range(last.bit_length())} | {3 * 2**i for i in range(last.bit_length())}
    return [*sorted(step for step in steps if step < last), last]


def _search_grid(factory: str, num_vectors: int, dim: int, nlist: int) -> tuple[SearchParams, ...]:
    scan, refine = _scan_and_refine_bytes(factory, dim)
    probes = _half_octaves(nlist) if nlist else [None]
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
