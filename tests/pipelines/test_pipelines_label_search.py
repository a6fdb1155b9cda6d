"""The bisection for labelled rows, against made-up learning curves."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.study.claim_config import LabelSearch
from pipelines.study.label_search import Bisection

LIMITS = LabelSearch(match="TSDAE", settings=("SBERT",), low=16, high=65_536, steps=14)
TARGET = 0.5


def search(curve, *, precision=0.01, limits=LIMITS, untrained=0.0):
    """The search on a learner whose score is `curve` of the number of rows."""
    bisection = Bisection(limits, target=TARGET, precision=precision)
    while (number := bisection.next_number()) is not None:
        assert number == 0 or limits.low <= number <= limits.high
        assert number not in [trial.number for trial in bisection.trials]
        bisection.tell(number, [curve(number) if number else untrained])
    return bisection


def doubling(needed):
    """Gains 0.1 for each doubling and meets the target with `needed` rows."""
    return lambda number: TARGET + 0.1 * math.log2(number / needed)


@given(st.integers(20, 60_000))
def test_it_finds_the_least_number_that_is_enough(needed):
    found = search(doubling(needed))
    least = needed * 2**-0.1
    assert least <= found.answer <= least * 1.12 + 1
    assert found.too_few < least + 1
    assert len(found.trials) <= LIMITS.steps + 1


def test_a_plateau_that_begins_early_is_followed_down_to_its_beginning():
    """All of 200 rows and more score the same, within one deviation of the target from the first trial on."""
    found = search(lambda number: TARGET if number >= 200 else 0.3)
    assert [trial.number for trial in found.trials[:3]] == [0, 65_536, 16]
    assert 200 <= found.answer <= 220


def test_the_untrained_encoder_may_be_enough():
    found = search(doubling(100), untrained=TARGET)
    assert (found.answer, len(found.trials)) == (0, 1)


def test_where_the_smallest_number_is_enough_already_it_is_the_answer():
    found = search(doubling(1))
    assert (found.answer, found.too_few) == (LIMITS.low, 0)
    assert [trial.number for trial in found.trials] == [0, 65_536, 16]


@pytest.mark.parametrize("seed", range(5))
def test_a_noisy_curve_ends_at_a_number_that_was_seen_to_be_enough_with_one_too_few_below(seed):
    rng = np.random.default_rng(seed)
    found = search(
        lambda n: min(TARGET, 0.5 + 0.05 * math.log2(n / 1000)) + rng.normal(0, 0.02), precision=0.02
    )
    if found.answer is None:  # the largest number had bad luck
        assert len(found.trials) == 2
        return
    by_number = {trial.number: trial.score for trial in found.trials}
    assert by_number[found.answer] >= TARGET - 0.02 > by_number[found.too_few]
    assert found.answer < LIMITS.high
    assert not [n for n, score in by_number.items() if n < found.answer and score >= TARGET - 0.02]


def test_without_a_deviation_the_target_itself_is_to_be_met():
    found = search(doubling(1000), precision=0.0)
    assert 1000 <= found.answer <= 1100
    assert found.too_few < 1000


def test_where_all_rows_fall_short_there_is_no_answer():
    found = search(doubling(1_000_000))
    assert (found.answer, [trial.number for trial in found.trials]) == (None, [0, 65_536])


@pytest.mark.parametrize("steps", [2, 4])
def test_it_tries_so_many_numbers_beside_none(steps):
    limits = LabelSearch(match="a", settings=("b",), low=16, high=65_536, steps=steps)
    assert len(search(doubling(100), precision=0.0, limits=limits).trials) == steps + 1


def test_a_trial_keeps_the_spread_over_the_seeds():
    bisection = Bisection(LIMITS, target=TARGET, precision=0.0)
    bisection.tell(16, [0.1, 0.3])
    assert bisection.trials[0].std == pytest.approx(math.sqrt(0.02))
