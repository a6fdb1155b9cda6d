"""The statistics behave as such: uniform under the null, sharp under a difference, seeded."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexing.evaluation.significance import bootstrap_interval, holm_correction, randomisation_test


def test_equal_systems_have_p_one():
    values = np.random.default_rng(0).random(50)
    assert randomisation_test(values, values) == 1.0


def test_p_is_about_uniform_when_there_is_no_difference():
    rng = np.random.default_rng(0)
    p_values = [randomisation_test(*rng.random((2, 40)), num_permutations=400) for _ in range(300)]
    for level in (0.05, 0.25, 0.5, 0.75):
        assert np.mean(np.array(p_values) <= level) == pytest.approx(level, abs=0.09)


def test_a_clear_difference_has_a_small_p():
    values = np.random.default_rng(0).random(60)
    assert randomisation_test(values, values + 0.1) == pytest.approx(1e-4, rel=0.01)


@given(seed=st.integers(0, 1000), num_queries=st.integers(1, 8))
def test_p_agrees_with_all_sign_patterns_of_small_data(seed, num_queries):
    rng = np.random.default_rng(seed)
    left, right = rng.integers(0, 4, (2, num_queries)) / 4
    differences = left - right
    patterns = np.array(list(itertools.product([-1, 1], repeat=num_queries)))
    wanted = np.mean(np.abs(patterns @ differences) >= abs(differences.sum()) - 1e-9)
    assert randomisation_test(left, right, num_permutations=4000) == pytest.approx(wanted, abs=0.05)


def test_the_test_is_symmetric_and_seeded():
    left, right = np.random.default_rng(3).random((2, 30))
    assert randomisation_test(left, right, seed=5) == randomisation_test(left, right, seed=5)
    assert randomisation_test(left, right) == pytest.approx(randomisation_test(right, left), abs=0.03)


def test_the_bootstrap_interval_covers_the_true_mean_as_often_as_promised():
    rng = np.random.default_rng(0)
    covered = [
        interval.low <= 0.5 <= interval.high
        for interval in (bootstrap_interval(rng.random(60), num_resamples=400) for _ in range(300))
    ]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.04)


def test_the_bootstrap_interval_matches_the_normal_one_on_many_values():
    values = np.random.default_rng(0).standard_normal(2000)
    interval = bootstrap_interval(values)
    half = 1.96 * values.std() / np.sqrt(2000)
    assert interval.low == pytest.approx(values.mean() - half, abs=0.006)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.006)


def test_a_single_value_has_a_point_interval():
    interval = bootstrap_interval([0.3])
    assert (interval.low, interval.mean, interval.high) == (0.3, 0.3, 0.3)


def test_holm_matches_a_worked_example_and_keeps_the_order():
    assert holm_correction([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm_correction([]) == []
    assert holm_correction([0.9, 0.8]) == [1.0, 1.0]


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="pair them by query"):
        randomisation_test([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="without NaN"):
        bootstrap_interval([np.nan])
    with pytest.raises(ValueError, match="without NaN"):
        bootstrap_interval([])
    with pytest.raises(ValueError, match="confidence"):
        bootstrap_interval([1.0], confidence=1.0)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        holm_correction([1.5])
