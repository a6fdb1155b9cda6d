"""When a training stops, which validation was best, and how its figures are told."""

import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pipeline_builders import make_tokens

from pipelines.step_meter import Feeding, StepMeter, num_positions
from pipelines.stopping import best_step, has_stopped
from pipelines.stream import micro_batches
from pipelines.train_config import EarlyStopping, TrainConfig
from pipelines.train_job import History, digest_window
from tsdae_core.objective import build_objective
from tsdae_core.scratch import train_tokenizer

VALUES = st.lists(st.integers(0, 5).map(float), max_size=12)


def history(metric, values):
    curve = [(10 * i, value) for i, value in enumerate(values)]
    name = "retrieval_mrrs" if metric == "retrieval" else "validation_losses"
    return History(**{name: curve})


@given(metric=st.sampled_from(["retrieval", "validation_loss"]), values=VALUES, patience=st.integers(1, 4))
def test_it_stops_after_so_many_validations_without_a_gain_and_never_before(metric, values, patience):
    config = EarlyStopping(metric=metric, patience=patience)
    gains = values if metric == "retrieval" else [-value for value in values]
    stopped_at = next(
        (i for i in range(len(values) + 1) if has_stopped(history(metric, values[:i]), config)), None
    )
    expected = None
    for count in range(1, len(values) + 1):
        best = int(np.argmax(gains[:count]))
        if count - 1 - best >= patience:
            expected = count
            break
    assert stopped_at == expected
    if values:
        assert best_step(history(metric, values), config) == 10 * int(np.argmax(gains))


def test_small_gains_do_not_count_and_patience_0_never_stops():
    values = [0.5, 0.504, 0.508, 0.511]
    creeping = history("retrieval", values)
    assert best_step(creeping, EarlyStopping(min_delta=0.01)) == 30
    assert best_step(history("retrieval", values[:3]), EarlyStopping(min_delta=0.01)) == 0
    assert has_stopped(history("retrieval", values[:3]), EarlyStopping(min_delta=0.01, patience=2))
    assert not has_stopped(history("retrieval", [0.5] * 100), EarlyStopping())
    assert best_step(History(), EarlyStopping()) is None
    assert not has_stopped(History(), EarlyStopping(patience=1))


def test_settings_that_need_held_out_rows_are_refused_without_them():
    with pytest.raises(ValueError, match="need held-out rows"):
        TrainConfig(validation_rows=0, keep="best")
    with pytest.raises(ValueError, match="need held-out rows"):
        TrainConfig(validation_rows=0, early_stopping=EarlyStopping(patience=2))
    with pytest.raises(ValueError, match="patience must not be negative"):
        EarlyStopping(patience=-1)


def test_history_survives_json_and_a_resumed_window_goes_on():
    import json

    full = History(
        losses=[(3, 1.5)],
        retrieval_mrrs=[(0, 0.25)],
        stream_digest=2**63 + 5,
        stream_digests=[2**63, 5],
        open_window=[(1.5, 3), (2.5, 4)],
    )
    assert History.from_plain(json.loads(json.dumps(full.to_plain()))) == full
    same, fewer = StepMeter(padded=False), [StepMeter(padded=False) for _ in range(3)]
    same.carry_on(full.open_window, rank=1, world_size=2)
    assert same.loss_and_targets == (2.5, 4)
    for rank, meter in enumerate(fewer):
        meter.carry_on(full.open_window, rank=rank, world_size=3)
    assert [meter.loss_and_targets for meter in fewer] == [(4.0, 7), (0.0, 0), (0.0, 0)]


@pytest.mark.parametrize(("num_steps", "window"), [(7, 1), (1_000, 1), (1_001, 2), (100_000, 100)])
def test_the_digests_of_a_stream_do_not_depend_on_workers_or_on_a_restart(num_steps, window):
    digests = [2**64 - 1 - 3 * step for step in range(min(num_steps, 301))]

    def count(histories, first, last):
        for step in range(first, last):
            for history in histories:
                history.count_rows(digests[step] // len(histories), step=step, num_steps=num_steps)
            rest = digests[step] % len(histories)
            histories[0].count_rows(rest, step=step, num_steps=num_steps)

    assert digest_window(num_steps) == window
    alone, two = History(), [History(), History()]
    count([alone], 0, len(digests))
    middle = len(digests) // 2
    count(two, 0, middle)
    saved = two[0].with_digests_of(two)
    three = [saved, saved.without_sums(), saved.without_sums()]
    count(three, middle, len(digests))
    assert three[0].with_digests_of(three) == alone
    starts = range(0, len(digests), window)
    assert alone.stream_digests == [sum(digests[i : i + window]) % 2**64 for i in starts]
    assert alone.stream_digest == sum(digests) % 2**64


def test_a_checkpoint_from_before_the_digests_of_steps_is_read_and_gone_on_from():
    plain = History(stream_digest=7, losses=[(3, 1.5)]).to_plain()
    del plain["stream_digests"]
    history = History.from_plain(plain)
    history.count_rows(5, step=2, num_steps=9)
    assert (history.stream_digest, history.stream_digests, history.losses) == (12, [0, 0, 5], [(3, 1.5)])


class Alone:
    """One worker's side of `Parallel`."""

    world_size, device = 1, torch.device("cpu")

    def sum(self, *values):
        return list(values)

    def gather(self, value):
        return [value]


@pytest.mark.parametrize(("padded", "share"), [(False, "0%"), (True, "30%")])
def test_padding_waiting_and_memory_are_measured_and_told(padded, share):
    from pipelines.stream import StepBatch

    objective = build_objective("tsdae", tokenizer=train_tokenizer(["a b c d e f g"] * 4, vocab_size=30))
    (batch,) = micro_batches(
        objective, make_tokens([[7] * 8, [7] * 2]), np.arange(2), seed=0, epoch=0, max_tokens=99
    )
    lengths = batch["source_lengths"]
    assert num_positions(batch) == 2 * int(lengths.max()) + 2 * 10
    batch["source_lengths"] = batch["target_lengths"]  # both passes alike: 14 tokens in 20 positions
    meter = StepMeter(padded=padded, started_s=time.monotonic() - 10)
    meter.fed(wait_s=2.0, tokens_waiting=500)
    meter.add(StepBatch(0, np.arange(2), [batch]), loss_sum=24.0, num_targets=12, grad_norm=0.5)
    measured = meter.summed(Alone())
    assert measured.loss == 2.0
    note = measured.note()
    assert f"padding {share}" in note
    assert "waiting for data 20% (500 tokens ready)" in note
    assert measured.memory_mib[0] > 50
    metrics = measured.metrics(loss_name="nats_per_token", rate=0.1)
    assert metrics["tokens_per_s"] == pytest.approx(2.8, rel=0.05)
    assert metrics["starved_share"] == pytest.approx(0.2, rel=0.05)
    feeding = Feeding(first_batch_s=3)
    assert feeding.told() == ""
    feeding.add(meter)
    assert "20% of the time was waiting for batches: feeding is the slower side" in feeding.told()
    feeding.wait_s = 0.1
    assert "training is the slower side" in feeding.told()
