"""The gate: what it lets through, what it stops, and with which numbers."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indexing.evaluation.rows import PerQueryRow
from pipelines.errors import InputError
from pipelines.promote_config import PromoteConfig
from pipelines.promotion_gate import Evaluation, judge

NDCG, RECALL = "ndcg_at_10", "recall_at_100"
OPEN = PromoteConfig(min_gain=-1.0, max_p_value=1.0, max_loss=1.0)


def evaluation(name, values, *, fingerprints=None):
    """values: {(task, measure): list of one value per query}."""
    tasks = {task: (fingerprints or {}).get(task, f"of {task}") for task, _ in values}
    named = {key: {f"q{i}": value for i, value in enumerate(column)} for key, column in values.items()}
    return Evaluation(name, tasks, named)


def failed(verdict):
    return [check.message for check in verdict.checks if not check.ok]


OLD = [0.1, 0.5, 0.3, 0.4, 0.2, 0.6, 0.1, 0.3]
BETTER = [value + 0.2 for value in OLD]


def test_a_clear_gain_on_every_query_passes_and_tells_its_numbers():
    verdict = judge(
        evaluation("version 2", {("a", NDCG): BETTER}),
        evaluation("version 1", {("a", NDCG): OLD}),
        PromoteConfig(),
    )
    assert verdict.passed
    assert verdict.gain == pytest.approx(0.2)
    assert verdict.p_value < 0.05
    assert "0.5125 against 0.3125 of version 1, a gain of +0.2000" in verdict.checks[0].message


@pytest.mark.parametrize(("min_gain", "passes"), [(0.2, True), (0.2001, False), (-0.5, True)])
def test_the_gain_must_reach_the_least_gain_exactly(min_gain, passes):
    gate = PromoteConfig(min_gain=min_gain, max_p_value=1.0)
    verdict = judge(evaluation("n", {("a", NDCG): BETTER}), evaluation("o", {("a", NDCG): OLD}), gate)
    assert verdict.passed is passes
    if not passes:
        assert len(failed(verdict)) == 1
        assert "+0.2000 (promote.min_gain 0.2001)" in failed(verdict)[0]


def test_a_gain_by_chance_is_stopped_by_the_paired_test_and_the_p_value_is_told():
    new = [*OLD[:-1], OLD[-1] + 0.5]
    verdict = judge(evaluation("n", {("a", NDCG): new}), evaluation("o", {("a", NDCG): OLD}), PromoteConfig())
    assert verdict.gain > 0
    assert failed(verdict) == [
        f"{NDCG} over 1 task: p = 1.0000 in the paired test over 8 queries (promote.max_p_value 0.05)"
    ]


def test_every_loss_elsewhere_is_told_largest_first_be_it_another_measure_or_another_task():
    old = {("a", NDCG): OLD, ("a", RECALL): [0.9] * 8, ("b", NDCG): [0.5] * 8}
    new = {("a", NDCG): [v + 0.3 for v in OLD], ("a", RECALL): [0.85] * 8, ("b", NDCG): [0.4] * 8}
    verdict = judge(evaluation("n", new), evaluation("o", old), PromoteConfig(max_p_value=1.0))
    assert verdict.gain == pytest.approx(0.1)
    assert failed(verdict) == [
        f"{NDCG} of b: -0.1000 (promote.max_loss 0.01)",
        f"{RECALL} of a: -0.0500 (promote.max_loss 0.01)",
    ]
    assert judge(
        evaluation("n", new), evaluation("o", old), PromoteConfig(max_p_value=1.0, max_loss=0.1)
    ).passed


def test_tasks_count_equally_however_many_queries_they_have():
    old = {("big", NDCG): [0.5] * 90, ("small", NDCG): [0.5] * 10}
    new = {("big", NDCG): [0.4] * 90, ("small", NDCG): [0.7] * 10}
    assert judge(evaluation("n", new), evaluation("o", old), OPEN).gain == pytest.approx(0.05)


COLUMN = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0]), min_size=4, max_size=4)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(columns=st.lists(st.tuples(COLUMN, COLUMN), min_size=1, max_size=3))
def test_the_gain_is_the_mean_over_tasks_and_a_version_never_beats_itself(columns):
    # Tasks of different sizes.
    new = {(f"t{i}", NDCG): left[: 4 - i] for i, (left, _) in enumerate(columns)}
    old = {(f"t{i}", NDCG): right[: 4 - i] for i, (_, right) in enumerate(columns)}
    verdict = judge(evaluation("n", new), evaluation("o", old), OPEN)
    means = [np.mean(new[key]) - np.mean(old[key]) for key in new]
    assert verdict.gain == pytest.approx(np.mean(means), abs=1e-9)
    assert 0 < verdict.p_value <= 1
    itself = judge(evaluation("n", new), evaluation("o", new), PromoteConfig())
    assert (itself.passed, itself.p_value, itself.gain) == (False, 1.0, 0.0)


SAME = {("a", NDCG): OLD, ("b", NDCG): OLD}


@pytest.mark.parametrize(
    ("candidate", "champion", "reason"),
    [
        (SAME, {("a", NDCG): OLD}, "version 1 was not measured on task 'b', version 2 was"),
        ({("a", NDCG): OLD}, SAME, "version 2 was not measured on task 'b', version 1 was"),
        (SAME, {**SAME, ("b", NDCG): OLD[:-1]}, "different queries of task 'b'"),
        (SAME, {**SAME, ("a", RECALL): OLD}, f"{RECALL} of different queries of task 'a'"),
        ({}, {}, "version 2 has no per-query values"),
    ],
)
def test_what_was_measured_differently_is_not_compared(candidate, champion, reason):
    with pytest.raises(InputError, match=reason):
        judge(evaluation("version 2", candidate), evaluation("version 1", champion), PromoteConfig())


def test_other_documents_or_judgements_under_the_same_name_are_not_compared():
    old = evaluation("version 1", SAME, fingerprints={"b": "other documents"})
    with pytest.raises(
        InputError, match="different queries, judgements or documents of task 'b'; evaluate both"
    ):
        judge(evaluation("version 2", SAME), old, PromoteConfig())


def test_a_measure_that_was_not_taken_is_named_with_those_that_were():
    with pytest.raises(
        InputError, match=r"'ndcg_at_100' was not measured; there are ndcg_at_10\. Did you mean"
    ):
        judge(evaluation("n", SAME), evaluation("o", SAME), PromoteConfig(measure="ndcg_at_100"))


def test_only_the_rows_of_the_named_system_are_taken():
    rows = [PerQueryRow("mine", "a", "q", NDCG, 0.5), PerQueryRow("BM25", "a", "q", NDCG, 0.9)]
    assert Evaluation.of("v", {"a": "f"}, rows, system="mine").values == {("a", NDCG): {"q": 0.5}}
