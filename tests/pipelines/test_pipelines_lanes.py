"""Lanes: every row once per epoch, the same global batch for any number of workers, resume from k alone."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipelines import lanes
from pipelines.errors import InputError
from pipelines.lanes import LanePlan, chunks, step_digest


@st.composite
def plans(draw, longest=300, largest_seed=2**64 - 1):
    """Any plan; the block is made small, so that few rows already fill several blocks."""
    num_lanes = draw(st.integers(1, 12))
    return LanePlan(
        num_rows=draw(st.integers(1, longest)),
        batch_size=num_lanes * draw(st.integers(1, 5)),
        num_lanes=num_lanes,
        seed=draw(st.integers(0, largest_seed)),
    )


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(lanes, "_MIN_BLOCK_ROWS", 7)


def rows_of_step(plan, epoch, step, lane_numbers=None):
    taken = [plan.rows(lane, epoch, step, step + 1) for lane in lane_numbers or range(plan.num_lanes)]
    return np.concatenate(taken)


def test_the_block_of_the_shipped_code_is_larger_than_the_one_of_these_tests():
    plan = LanePlan(num_rows=10, batch_size=64, num_lanes=8, seed=0)
    assert plan.steps_per_chunk * plan.rows_per_step == 8


@settings(deadline=None)
@given(plan=plans(), epoch=st.integers(0, 5))
def test_every_row_is_used_exactly_once_in_an_epoch(plan, epoch):
    used = [plan.rows(lane, epoch, 0, plan.steps_per_epoch) for lane in range(plan.num_lanes)]
    np.testing.assert_array_equal(np.sort(np.concatenate(used)), np.arange(plan.num_rows))


@settings(deadline=None)
@given(plan=plans(), epoch=st.integers(0, 2))
def test_only_the_last_two_steps_of_an_epoch_are_not_full_and_none_is_empty(plan, epoch):
    sizes = [len(rows_of_step(plan, epoch, step)) for step in range(plan.steps_per_epoch)]
    assert sum(sizes) == plan.num_rows
    assert min(sizes) > 0
    assert set(sizes[:-2]) <= {plan.batch_size}
    assert sizes == sorted(sizes, reverse=True)


@settings(deadline=None)
@given(plan=plans(), data=st.data())
def test_the_rows_of_a_step_are_the_same_for_every_number_of_workers(plan, data):
    epoch, step = data.draw(st.integers(0, 2)), data.draw(st.integers(0, plan.steps_per_epoch - 1))
    expected = np.sort(rows_of_step(plan, epoch, step))
    assert len(np.unique(expected)) == len(expected)
    for workers in (n for n in range(1, plan.num_lanes + 1) if plan.num_lanes % n == 0):
        shares = [
            rows_of_step(plan, epoch, step, list(range(rank, plan.num_lanes, workers)))
            for rank in range(workers)
        ]
        np.testing.assert_array_equal(np.sort(np.concatenate(shares)), expected)


@settings(deadline=None)
@given(plan=plans(), data=st.data())
def test_rows_of_a_range_of_steps_are_the_rows_of_its_steps(plan, data):
    lane = data.draw(st.integers(0, plan.num_lanes - 1))
    first = data.draw(st.integers(0, plan.steps_per_epoch))
    last = data.draw(st.integers(first, plan.steps_per_epoch))
    one_by_one = [plan.rows(lane, 0, step, step + 1) for step in range(first, last)]
    expected = np.concatenate([np.empty(0, np.int64), *one_by_one])
    np.testing.assert_array_equal(plan.rows(lane, 0, first, last), expected)


@settings(deadline=None)
@given(plan=plans(), data=st.data())
def test_chunks_cover_the_remaining_steps_once_and_in_order(plan, data):
    num_steps = data.draw(st.integers(0, 4 * plan.steps_per_epoch))
    first = data.draw(st.integers(0, num_steps + 2))
    covered = []
    for chunk in chunks(plan, first_step=first, num_steps=num_steps):
        assert 0 <= chunk.first_step < chunk.last_step <= plan.steps_per_epoch
        assert chunk.last_step - chunk.first_step <= plan.steps_per_chunk
        start = chunk.epoch * plan.steps_per_epoch
        covered += range(start + chunk.first_step, start + chunk.last_step)
    assert covered == list(range(first, num_steps))


@settings(deadline=None)
@given(plan=plans(), data=st.data())
def test_chunks_of_a_resumed_run_hold_the_rows_that_were_left(plan, data):
    num_steps = data.draw(st.integers(1, 3 * plan.steps_per_epoch))
    first = data.draw(st.integers(0, num_steps - 1))

    def rows_by_step(first_step):
        found = {}
        for chunk in chunks(plan, first_step=first_step, num_steps=num_steps):
            for step in range(chunk.first_step, chunk.last_step):
                number = chunk.epoch * plan.steps_per_epoch + step
                found[number] = rows_of_step(plan, chunk.epoch, step).tolist()
        return found

    whole = rows_by_step(0)
    assert rows_by_step(first) == {step: rows for step, rows in whole.items() if step >= first}


@settings(deadline=None)
@given(plan=plans(longest=300), epoch=st.integers(0, 100))
def test_order_differs_between_epochs_and_seeds(plan, epoch):
    assume(plan.num_rows >= 20 * plan.num_lanes)
    other = LanePlan(
        num_rows=plan.num_rows, batch_size=plan.batch_size, num_lanes=plan.num_lanes, seed=plan.seed ^ 1
    )
    order = [plan.rows(0, epoch, 0, plan.steps_per_epoch).tolist()]
    order.append(plan.rows(0, epoch + 1, 0, plan.steps_per_epoch).tolist())
    order.append(other.rows(0, epoch, 0, plan.steps_per_epoch).tolist())
    assert sorted(order[0]) == sorted(order[1]) == sorted(order[2])
    assert len({tuple(rows) for rows in order}) == 3


@pytest.mark.parametrize("lane_rows", [7, 50])
def test_lanes_of_equal_length_walk_in_orders_of_their_own(lane_rows):
    plan = LanePlan(num_rows=4 * lane_rows, batch_size=4, num_lanes=4, seed=3)
    orders = {tuple(plan.rows(lane, 0, 0, lane_rows) - plan.lane_range(lane)[0]) for lane in range(4)}
    assert len(orders) == 4


def test_fewer_rows_than_lanes_still_use_every_row_in_one_step():
    plan = LanePlan(num_rows=3, batch_size=16, num_lanes=8, seed=0)
    assert plan.steps_per_epoch == 1
    assert sorted(rows_of_step(plan, 0, 0)) == [0, 1, 2]
    assert [len(plan.rows(lane, 0, 0, 1)) for lane in range(8)].count(0) == 5


def test_no_row_at_all_is_refused():
    with pytest.raises(InputError, match="no row"):
        LanePlan(num_rows=0, batch_size=8, num_lanes=8, seed=0)


ROW_IDS = st.lists(st.integers(0, 2**62), max_size=30).map(lambda ids: np.array(ids, np.int64))


@given(ids=ROW_IDS, step=st.integers(0, 2**40), data=st.data())
def test_the_digests_of_the_workers_add_up_to_the_digest_of_the_step(ids, step, data):
    owner = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(ids), max_size=len(ids))), np.int64)
    parts = [step_digest(ids[owner == rank], step) for rank in range(4)]
    assert sum(parts) % 2**64 == step_digest(ids, step)


@given(ids=ROW_IDS, step=st.integers(0, 2**40))
def test_the_digest_tells_another_step_another_row_and_a_doubled_row(ids, step):
    assume(len(ids))
    digest = step_digest(ids, step)
    changed = ids.copy()
    changed[0] ^= 1
    assert digest != step_digest(ids, step + 1)
    assert digest != step_digest(changed, step)
    assert digest != step_digest(np.append(ids, ids[0]), step)
