"""Choosing the search settings of an index, and the recall that it is then reported to have.

Settings are tuned on one sample of queries and judged on another, so that what is reported was not chosen to
look good. Vectors given here are ready for inner product, as in `indexing.build`. Must not know files or
encoders.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indexing.arrays import BoolArray, Float32Array, Int64Array, as_vectors
from indexing.faiss_library import FaissIndex, faiss_threads
from indexing.hits import NO_HIT, Hits
from indexing.index_config import IndexConfig
from indexing.plan import IndexPlan, SearchParams
from indexing.recall import RecallEstimate, estimate_recall
from indexing.search import IndexSearcher

RECALL_DEPTH = 10
DEEP_RECALL_DEPTH = 100


@dataclass(frozen=True, kw_only=True)
class TunedSearch:
    """The chosen search settings and the recall measured with them on queries that did not choose them.

    recall_at_100 is None where the exact hits are not that deep.
    """

    params: SearchParams
    recall_at_10: RecallEstimate
    recall_at_100: RecallEstimate | None


@dataclass(frozen=True, eq=False)
class _Sample:
    """Queries float32[nq, d], their exact hits, and their own rows int64[nq], which are left out."""

    queries: Float32Array
    exact: Hits
    own_ids: Int64Array | None

    def part(self, chosen: BoolArray) -> "_Sample":
        own_ids = None if self.own_ids is None else self.own_ids[chosen]
        return _Sample(self.queries[chosen], Hits(self.exact.ids[chosen], self.exact.scores[chosen]), own_ids)

    def recall(self, searcher: IndexSearcher, params: SearchParams, depth: int) -> RecallEstimate:
        found = searcher.search(self.queries, depth + (self.own_ids is not None), params=params)
        wanted = _without(self.exact, self.own_ids)
        return estimate_recall(_without(found, self.own_ids).first(depth), wanted, depth)


def tune_search(
    index: FaissIndex | Sequence[FaissIndex],
    queries: npt.ArrayLike,
    exact: Hits,
    plan: IndexPlan,
    config: IndexConfig,
    *,
    held_out: BoolArray | None = None,
    own_ids: Int64Array | None = None,
    num_threads: int = 1,
) -> TunedSearch:
    """The cheapest search settings of the plan's grid that reach the recall target for all but certain.

    Taken are the first whose 95 % interval on the queries for tuning lies above the target, or else those
    with the highest recall there. Whether the target is met is decided by the value on the held-out ones.

    Args:
        index: complete; or its parts.
        queries: float[nq, d], a sample of real queries or of the rows themselves.
        exact: `exact_search` for the same queries over the same rows, some places deeper than 10: ties at
            place 10 then count for the index (`hits.recall_at`). Over 100 places give recall@100, too.
        plan: whose grid is tried in its order.
        config: target, and whether missing it is allowed.
        held_out: bool[nq], the queries for which recall is reported; settings are tuned on the others. None:
            every second one. A single query does for both.
        own_ids: int64[nq], the queries' own rows, which are too easy to find: left out on both sides.
        num_threads: of FAISS.

    Raises:
        ValueError: the target is missed and not allowed to be: says what was measured and what to change; or
            shapes do not fit.
    """
    array = as_vectors(queries, what="queries", dim=plan.dim)
    if exact.num_queries != len(array) or exact.k < RECALL_DEPTH:
        raise ValueError(
            f"tune_search: expected exact hits for {len(array)} queries with k >= {RECALL_DEPTH}, "
            f"got {exact.num_queries} with k = {exact.k}"
        )
    reported = np.arange(len(array)) % 2 == 1 if held_out is None else held_out
    if len(array) > 1 and (reported.shape != (len(array),) or reported.all() or not reported.any()):
        raise ValueError("tune_search: some of the queries must be held out and some not")
    whole = _Sample(array, exact, own_ids)
    tuning, judging = (whole, whole) if len(array) == 1 else (whole.part(~reported), whole.part(reported))
    searcher = IndexSearcher(index, metric=plan.metric)
    with faiss_threads(num_threads):
        params = _cheapest(plan, config, lambda params: tuning.recall(searcher, params, RECALL_DEPTH))
        found = judging.recall(searcher, params, RECALL_DEPTH)
        if found.value < config.target_recall_at_10 and not config.allow_lower_recall:
            raise ValueError(_missed_target(found, plan, config))
        is_deep = exact.k - (own_ids is not None) >= DEEP_RECALL_DEPTH
        deep = judging.recall(searcher, params, DEEP_RECALL_DEPTH) if is_deep else None
    return TunedSearch(params=params, recall_at_10=found, recall_at_100=deep)


def _cheapest(
    plan: IndexPlan, config: IndexConfig, recall: Callable[[SearchParams], RecallEstimate]
) -> SearchParams:
    best, highest = plan.search_params_grid[0], -1.0
    for params in plan.search_params_grid:
        found = recall(params)
        if found.value > highest:
            best, highest = params, found.value
        if found.low >= config.target_recall_at_10:
            return params
        if found.value == 1.0:  # nothing finds more
            break
    return best


def _missed_target(found: RecallEstimate, plan: IndexPlan, config: IndexConfig) -> str:
    return (
        f"index {plan.factory}: recall@10 reaches only {found.value:.3f} (95 % interval {found.low:.3f} to "
        f"{found.high:.3f}, {found.num_queries} held-out rows), the target is {config.target_recall_at_10}; "
        "use a finer index.factory (for example one ending in RFlat or Refine(SQfp16)), raise "
        "index.memory_budget, lower index.target_recall_at_10, or set index.allow_lower_recall to keep this "
        "index"
    )


def _without(hits: Hits, own_ids: Int64Array | None) -> Hits:
    """The hits without each query's own row, one place fewer."""
    if own_ids is None:
        return hits
    is_other = hits.ids != own_ids[:, None]
    order = np.argsort(~is_other, axis=1, kind="stable")
    ids = np.take_along_axis(np.where(is_other, hits.ids, NO_HIT), order, axis=1)
    scores = np.take_along_axis(np.where(is_other, hits.scores, -np.inf), order, axis=1)
    return Hits(ids[:, :-1], scores[:, :-1].astype(np.float32)) if hits.k > 1 else Hits(ids, scores)
