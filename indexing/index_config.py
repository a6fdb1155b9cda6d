"""What the user wants from the index.

Owns the settings, their ranges and sizes written as text. Must not know what is built from them.
"""

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

Metric: TypeAlias = Literal["cosine", "inner_product"]

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


@dataclass(frozen=True, kw_only=True)
class IndexConfig:
    """Type, quality, memory and layout of the index.

    Attributes:
        metric: cosine (vectors and queries are normalised) or plain inner product.
        factory: a FAISS factory string, or "auto" to let `plan.plan_index` choose.
        prefer: throughput (many queries at once) or latency (one query at a time); only for "auto".
        layout: merged (one file), sharded (one for each build group, searched together), or auto, which
            merges where `build_memory` allows.
        target_recall_at_10: share of the exact best 10 that the index must find, in (0, 1].
        memory_budget: what the opened index may hold, such as "4GiB"; None = no limit. Only for "auto".
        build_memory: what one build or merge task may hold.
        train_cpus: what the one task that trains the index reserves on a node, and FAISS's threads in it.
        num_query_sample: rows on which recall is measured; as many others choose the search settings.
        allow_lower_recall: keep an index that misses the target instead of failing.
        seed: of k-means and of the samples.

    Raises:
        ValueError: a value outside its range.
    """

    metric: Metric = "cosine"
    factory: str = "auto"
    prefer: Literal["throughput", "latency"] = "throughput"
    layout: Literal["auto", "merged", "sharded"] = "auto"
    target_recall_at_10: float = 0.95
    memory_budget: str | None = None
    build_memory: str = "4GiB"
    train_cpus: int = 1
    num_query_sample: int = 200
    allow_lower_recall: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.metric not in ("cosine", "inner_product"):
            raise ValueError(f"index.metric must be cosine or inner_product, got {self.metric!r}")
        if self.prefer not in ("throughput", "latency"):
            raise ValueError(f"index.prefer must be throughput or latency, got {self.prefer!r}")
        if self.layout not in ("auto", "merged", "sharded"):
            raise ValueError(f"index.layout must be auto, merged or sharded, got {self.layout!r}")
        if not self.factory.strip():
            raise ValueError('index.factory is empty: give a FAISS factory string or "auto"')
        if not 0 < self.target_recall_at_10 <= 1:
            raise ValueError(f"index.target_recall_at_10 must be in (0, 1], got {self.target_recall_at_10}")
        if self.memory_budget is not None:
            parse_bytes(self.memory_budget, setting="index.memory_budget")
        parse_bytes(self.build_memory, setting="index.build_memory")
        if self.train_cpus < 1:
            raise ValueError(f"index.train_cpus must be at least 1, got {self.train_cpus}")
        if self.num_query_sample < 1:
            raise ValueError(f"index.num_query_sample must be at least 1, got {self.num_query_sample}")
        if self.seed < 0:
            raise ValueError(f"index.seed must be >= 0, got {self.seed}")

    @property
    def memory_budget_bytes(self) -> int | None:
        """The memory budget as a number; None = no limit."""
        if self.memory_budget is None:
            return None
        return parse_bytes(self.memory_budget, setting="index.memory_budget")

    @property
    def build_memory_bytes(self) -> int:
        """The memory of a build task as a number."""
        return parse_bytes(self.build_memory, setting="index.build_memory")


def parse_bytes(text: str, *, setting: str) -> int:
    """Read "4GiB", "500 MB" or "1048576" as a number of bytes, > 0.

    Raises:
        ValueError: not a size; names the setting.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?B)?\s*", text, re.IGNORECASE)
    size = int(float(found.group(1)) * _UNITS[(found.group(2) or "").upper()]) if found else 0
    if size < 1:
        raise ValueError(f'{setting} must be a size such as "4GiB" or "500MB", got {text!r}')
    return size


def format_bytes(size: float) -> str:
    """A size for people: 3 digits and a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:,.3g} TiB" if size < 1000 else f"{size:,.0f} TiB"
