"""How an index is spread over tasks and files: which vectors form a group, and how groups are merged.

Arithmetic on sizes and settings alone, so that a rerun decides alike. Knows nothing of FAISS or Ray.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from indexing.index_config import IndexConfig, format_bytes
from indexing.plan import IndexPlan
from pipelines.storage import Location

WayOfMerging: TypeAlias = Literal["in memory", "on disk", "shards"]

# More rows than this in one group would leave a cluster idle at the end of a build.
_MAX_ROWS_PER_GROUP = 1_000_000
# Merging in memory holds the index, one group, and twice what grows while it is copied to more room.
_MERGING_FACTOR = 2


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file of vectors: its folder, name without suffix, rows and sha256."""

    folder: Location
    name: str
    num_rows: int
    digest: str


def way_of_merging(plan: IndexPlan, config: IndexConfig) -> WayOfMerging:
    """What becomes of the groups: one index, merged in memory or on disk, or shards searched together.

    Raises:
        ValueError: `layout: merged`, but the type cannot be merged within `index.build_memory`.
    """
    if config.layout == "sharded":
        return "shards"
    size, budget = plan.num_vectors * plan.bytes_per_vector, config.build_memory_bytes
    if not plan.mergeable:
        if size <= budget:
            return "in memory"
        what = f"a graph over {plan.num_vectors:,} vectors needs {format_bytes(size)}"
    else:
        if _MERGING_FACTOR * size <= budget:
            return "in memory"
        if _merges_on_disk(plan):
            return "on disk"
        what = f"merging needs {format_bytes(_MERGING_FACTOR * size)}"
    if config.layout == "auto":
        return "shards"
    raise ValueError(
        f"{what}, index.build_memory is {config.build_memory}: raise it, set index.layout=auto or sharded, "
        "or use another index.factory (plain inverted lists such as IVF4096,SQ8 are merged on disk)"
    )


def group_sources(sources: Sequence[Source], plan: IndexPlan, config: IndexConfig) -> list[list[Source]]:
    """Consecutive sources in groups that one task can hold; a function of sizes and settings alone.

    Raises:
        ValueError: as `way_of_merging`.
    """
    if way_of_merging(plan, config) == "in memory" and not plan.mergeable:
        return [list(sources)]
    row_bytes = plan.bytes_per_vector + 4 * plan.dim
    limit = max(1, min(_MAX_ROWS_PER_GROUP, config.build_memory_bytes // row_bytes))
    groups: list[list[Source]] = [[]]
    rows = 0
    for source in sources:
        if groups[-1] and rows + source.num_rows > limit:
            groups.append([])
            rows = 0
        groups[-1].append(source)
        rows += source.num_rows
    return groups


def _merges_on_disk(plan: IndexPlan) -> bool:
    """Whether FAISS can: plain inverted lists, neither 4-bit codes nor a store for re-ranking."""
    return plan.nlist > 0 and not plan.factory.startswith("IDMap") and "fs" not in plan.factory.split(",")[-1]
