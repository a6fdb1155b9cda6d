"""The bisection for labelled rows, against a made-up learning curve."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.study.label_search import Bisection
from pipelines.study.study_config import LabelSearch

LIMITS = LabelSearch(match="TSDAE", settings=("SBERT",), low=16, high=65_536, steps=12)


def search(needed, *, precision=0.01, limits=LIMITS):
    """A learner that gains 0.1 for each doubling and meets the target with `needed` rows."""
    bisection = Bisection(limits, target=0.5, precision=precision)
    while (number := bisection.next_number()) is not None:
        assert limits.low <= number <= limits.high
        assert number not in [tried for tried, _ in bisection.points]
        bisection.tell(number, 0.5 + 0.1 * math.log2(number / needed))
    return bisection


@given(st.integers(17, 60_000))
def test_it_finds_the_number_to_one_deviation_in_few_trials(needed):
    found = search(needed)
    assert len(found.points) <= 12
    assert abs(math.log2(found.answer / needed)) <= 0.15
    assert found.points[0][0] == LIMITS.high


def test_where_all_rows_fall_short_there_is_no_answer_and_one_trial():
    found = search(1_000_000)
    assert (found.answer, len(found.points)) == (None, 1)


def test_where_all_numbers_are_enough_the_answer_comes_near_the_least():
    found = search(1)
    assert found.found is None
    assert found.answer < 16 * 1.3


@pytest.mark.parametrize("steps", [1, 3])
def test_it_stops_after_so_many_trials(steps):
    limits = LabelSearch(match="a", settings=("b",), low=16, high=65_536, steps=steps)
    assert len(search(100, precision=0.0, limits=limits).points) == steps
