"""The configuration of pseudo-labels (`train.labels.generate`); its defaults are GPL's settings.

GPL is Wang et al. 2022, arXiv 2112.07577. In a file of its own because reading a configuration needs it and
nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pipelines.collection_config import require

# GPL asks at least three queries of a passage. Its smallest corpus, SciFact, has about fifty; more of one
# passage repeat one another.
_FEWEST, _MOST = 3, 50


@dataclass(frozen=True, kw_only=True)
class PseudoLabelsConfig:
    """Rows for `margin_mse` made from the documents: queries of passages, mined negatives, scored margins.

    generator: a sequence-to-sequence checkpoint that writes queries: a folder or its URL, or a hub name.
    prefix: put before every passage, for generators that were trained with one.
    cross_encoder: gives a query and a passage one value; named like generator.
    num_queries: about so many in all, over a random sample of the passages where these are more.
    queries_per_passage: 0 takes as many as num_queries needs, from 3 to 50.
    max_passage_tokens, max_query_tokens: of the generator's tokenizer.
    top_p, top_k, temperature: of its sampling (nucleus sampling; top_k 0 for no such limit).
    mode: how negatives are searched, by the encoder that the training starts from, by words, or both fused.
    mining_depth: negatives are drawn from so many hits of a query, its own passage left out.
    negatives_per_query: rows that a query gives.
    batch_size: queries that are generated at once.
    num_actors: for generating, and then for mining and scoring; results do not depend on it.
    """

    generator: str = "BeIR/query-gen-msmarco-t5-base-v1"
    prefix: str = ""
    cross_encoder: str = "cross-encoder/ms-marco-MiniLM-L-6-v2"
    num_queries: int = 250_000
    queries_per_passage: int = 0
    max_passage_tokens: int = 350
    max_query_tokens: int = 64
    top_p: float = 0.95
    top_k: int = 25
    temperature: float = 1.0
    mode: Literal["dense", "bm25", "hybrid"] = "dense"
    mining_depth: int = 50
    negatives_per_query: int = 18
    batch_size: int = 64
    num_actors: int = 1
    cpus_per_actor: float = 1.0
    gpus_per_actor: float = 0.0
    threads_per_actor: int = 1

    def __post_init__(self) -> None:
        require(bool(self.generator), "generator must name a sequence-to-sequence checkpoint")
        require(bool(self.cross_encoder), "cross_encoder must name a cross-encoder")
        for name in ("num_queries", "negatives_per_query", "batch_size", "num_actors", "threads_per_actor"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1")
        for name in ("max_passage_tokens", "max_query_tokens"):
            require(getattr(self, name) >= 2, f"{name} must be at least 2")
        for name in ("queries_per_passage", "top_k", "cpus_per_actor", "gpus_per_actor"):
            require(getattr(self, name) >= 0, f"{name} must not be negative")
        require(0 < self.top_p <= 1, "top_p must be above 0 and at most 1")
        require(self.temperature > 0, "temperature must be positive")
        require(
            self.negatives_per_query <= self.mining_depth,
            f"negatives_per_query ({self.negatives_per_query}) must not be above mining_depth "
            f"({self.mining_depth})",
        )

    def queries_each(self, num_passages: int) -> int:
        """How many queries are generated for a passage of a collection of so many."""
        if self.queries_per_passage:
            return self.queries_per_passage
        return min(_MOST, max(_FEWEST, math.ceil(self.num_queries / max(1, num_passages))))
