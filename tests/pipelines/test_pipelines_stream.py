"""Micro-batches and the Arrow form in which they travel; the same stream for any number of workers."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_builders import make_tokens, random_rows, write_token_shards

from pipelines import lanes, stream
from pipelines.lanes import LanePlan, chunks
from pipelines.storage import Location
from pipelines.stream import StepBatch, _BatchMaker, _grouped, _pack, _unpack, micro_batches
from tsdae_core.objective import build_objective
from tsdae_core.scratch import train_tokenizer

TEXTS = ["the cat sat on the mat", "a dog barked at the old cat", "seven small boats went out to sea"] * 4


@pytest.fixture(scope="module", params=["tsdae", "mlm"])
def objective(request):
    return build_objective(request.param, tokenizer=train_tokenizer(TEXTS, vocab_size=60))


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 12), max_size=15),
    max_tokens=st.integers(1, 30),
)
def test_micro_batches_keep_the_order_cover_all_rows_and_stay_within_the_budget(
    objective, lengths, max_tokens
):
    tokens = make_tokens([[7] * length for length in lengths])
    row_ids = np.arange(100, 100 + len(lengths))
    batches = micro_batches(objective, tokens, row_ids, seed=1, epoch=0, max_tokens=max_tokens)
    parts = [batch["row_ids"] for batch in batches]
    assert [row for part in parts for row in part] == row_ids.tolist()
    sizes = [[lengths[row - 100] for row in part] for part in parts]
    assert all(sum(size) <= max_tokens or len(size) == 1 for size in sizes)
    assert all(sizes)
    for size, following in itertools.pairwise(sizes):
        assert sum(size) + following[0] > max_tokens  # no smaller than the budget asks for


def test_micro_batches_hold_the_noise_of_the_whole_batch(objective):
    tokens, row_ids = make_tokens(random_rows(20)), np.arange(20)
    whole = micro_batches(objective, tokens, row_ids, seed=1, epoch=2, max_tokens=10**9)
    parts = micro_batches(objective, tokens, row_ids, seed=1, epoch=2, max_tokens=7)
    assert (len(whole), len(parts) > 5) == (1, True)
    assert sum(map(objective.num_targets, parts)) == objective.num_targets(whole[0])
    for key in ("row_ids", "source_ids", "target_ids", "input_ids"):
        if key in whole[0]:
            np.testing.assert_array_equal(np.concatenate([part[key] for part in parts]), whole[0][key])


def same_steps(left, right):
    assert [step.step for step in left] == [step.step for step in right]
    for one, other in zip(left, right, strict=True):
        assert one.row_ids.dtype == other.row_ids.dtype == np.int64
        np.testing.assert_array_equal(one.row_ids, other.row_ids)
        assert len(one.micro_batches) == len(other.micro_batches)
        for batch, copy in zip(one.micro_batches, other.micro_batches, strict=True):
            assert batch.keys() == copy.keys()
            for key, values in batch.items():
                assert values.dtype == copy[key].dtype, key
                np.testing.assert_array_equal(values, copy[key])


@settings(deadline=None, max_examples=40)
@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=6), first=st.integers(0, 2**40))
def test_steps_travel_unchanged_also_those_without_rows(objective, sizes, first):
    steps = []
    for i, size in enumerate(sizes):
        row_ids = np.arange(i * 10, i * 10 + size)
        tokens = make_tokens(random_rows(size, seed=i))
        batches = micro_batches(objective, tokens, row_ids, seed=1, epoch=0, max_tokens=6)
        steps.append(StepBatch(first + i, row_ids, batches))
    same_steps(list(_unpack(_pack(steps))), steps)


def test_a_group_in_which_every_step_is_empty_travels_unchanged():
    steps = [StepBatch(i, np.empty(0, np.int64), []) for i in range(3)]
    same_steps(list(_unpack(_pack(steps))), steps)


@given(sizes=st.lists(st.integers(1, 9), max_size=20), most=st.integers(9, 20))
def test_small_chunks_are_taken_together_in_order_up_to_one_block(sizes, most):
    parts = [lanes.Chunk(epoch, 0, size) for epoch, size in enumerate(sizes)]
    groups = _grouped(parts, most)
    assert [chunk for group in groups for chunk in group] == parts
    assert all(sum(chunk.last_step for chunk in group) <= most for group in groups)


def worker_steps(plan, rows, objective, *, rank, workers, first_step, num_steps):
    """What one worker's ingest tasks make, without Ray."""
    work = _grouped(chunks(plan, first_step=first_step, num_steps=num_steps), plan.steps_per_chunk)
    maker = _BatchMaker(plan, rows, objective, range(rank, plan.num_lanes, workers), work, 20)
    return [step for i in range(len(work)) for step in _unpack(maker({"id": np.array([i])}))]


def noised_rows(step, ends):
    """Each row's noised and target bytes of a step, by row id."""
    found = {}
    for batch in step.micro_batches:
        for kind in ends:
            offsets = np.cumsum([0, *batch[f"{kind}_lengths"]])
            for row_id, start, end in zip(batch["row_ids"], offsets, offsets[1:], strict=False):
                found[int(row_id), kind] = batch[f"{kind}_ids"][start:end].tobytes()
    return found


@pytest.mark.parametrize("tokens_at_once", [1, 9, 2**16])
def test_how_many_batches_are_made_at_once_changes_none(tmp_path, monkeypatch, tokens_at_once):
    monkeypatch.setattr(stream, "_TOKENS_AT_ONCE", tokens_at_once)
    objective = build_objective("tsdae", tokenizer=train_tokenizer(TEXTS, vocab_size=60))
    tokens, row_ids = make_tokens(random_rows(30)), np.arange(30)
    rows = write_token_shards(Location.parse(tmp_path), [(row_ids, tokens)])
    plan = LanePlan(num_rows=30, batch_size=8, num_lanes=4, seed=5)
    steps = worker_steps(plan, rows, objective, rank=1, workers=2, first_step=0, num_steps=4)
    for step in steps:
        expected = micro_batches(
            objective, tokens.take(step.row_ids), step.row_ids, seed=5, epoch=0, max_tokens=20
        )
        same_steps([step], [StepBatch(step.step, step.row_ids, expected)])
    assert len({row for step in steps for row in step.row_ids.tolist()}) == sum(
        end - start for start, end in map(plan.lane_range, (1, 3))
    )


@pytest.mark.parametrize("num_rows", [1, 3, 40, 101])
def test_one_two_and_four_workers_get_the_same_global_batches_and_noise(tmp_path, monkeypatch, num_rows):
    monkeypatch.setattr(lanes, "_MIN_BLOCK_ROWS", 7)
    objective = build_objective("tsdae", tokenizer=train_tokenizer(TEXTS, vocab_size=60))
    half = num_rows // 2
    tokens = make_tokens(random_rows(num_rows))
    row_ids = np.arange(num_rows) * 7 + 3
    parts = [np.arange(half), np.arange(half, num_rows)]
    rows = write_token_shards(
        Location.parse(tmp_path), [(row_ids[part], tokens.take(part)) for part in parts if len(part)]
    )
    plan = LanePlan(num_rows=num_rows, batch_size=8, num_lanes=4, seed=5)
    num_steps = 2 * plan.steps_per_epoch + 1

    def global_steps(workers, first_step=0):
        streams = [
            worker_steps(
                plan, rows, objective, rank=rank, workers=workers, first_step=first_step, num_steps=num_steps
            )
            for rank in range(workers)
        ]
        for steps_of_worker in streams:
            assert [step.step for step in steps_of_worker] == list(range(first_step, num_steps))
        merged = []
        for shares in zip(*streams, strict=True):
            found = {}
            for share in shares:
                noised = noised_rows(share, ("source", "target"))
                assert not found.keys() & noised.keys()
                found |= noised
            merged.append(found)
        return merged

    alone = global_steps(1)
    epoch = alone[: plan.steps_per_epoch]
    assert sorted(row for step in epoch for row, kind in step if kind == "source") == row_ids.tolist()
    for step, found in enumerate(alone):
        for (row_id, kind), noised in found.items():
            row = tokens.take([(row_id - 3) // 7])
            epoch = step // plan.steps_per_epoch
            batch = objective.make_batch(row, np.array([row_id]), seed=5, epoch=epoch)
            assert batch[f"{kind}_ids"].tobytes() == noised
    assert global_steps(2) == alone
    assert global_steps(4) == alone
    for first_step in range(1, num_steps):
        assert global_steps(2, first_step) == alone[first_step:]
