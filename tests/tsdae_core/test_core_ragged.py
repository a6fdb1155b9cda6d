import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsdae_core.ragged import Ragged

ROWS = st.lists(st.lists(st.integers(0, 1000), max_size=6), max_size=12)


@given(ROWS, st.data())
def test_take_returns_the_rows_in_the_asked_order(rows, data):
    ragged = Ragged.from_rows(rows)
    assert [ragged.row(index).tolist() for index in range(len(ragged))] == rows
    picks = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=20)) if rows else []
    taken = ragged.take(picks)
    assert [taken.row(index).tolist() for index in range(len(taken))] == [rows[pick] for pick in picks]
    assert taken.offsets[-1] == taken.values.shape[0]


def test_inconsistent_lengths_are_refused():
    with pytest.raises(ValueError, match="add up to 3"):
        Ragged(np.arange(4), np.array([1, 2]))
    with pytest.raises(ValueError, match="negative"):
        Ragged(np.arange(1), np.array([2, -1]))
    with pytest.raises(IndexError):
        Ragged.from_rows([[1]]).row(1)
