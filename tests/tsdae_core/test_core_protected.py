"""TSDAE that protects a tuned start, against its definition in numpy."""

import core_builders
import numpy as np
import pytest
import torch

from tsdae_core.objective import build_objective
from tsdae_core.optim import OptimConfig, build_optimizer
from tsdae_core.protected import ProtectedConfig
from tsdae_core.step import training_step
from tsdae_core.tokens import tokenize_texts
from tsdae_core.tsdae import TsdaeConfig

ROWS = 10


def built(tokenizer, texts, config):
    objective = build_objective("protected", tokenizer=tokenizer, config=config)
    batch = objective.make_batch(
        tokenize_texts(texts[:ROWS], tokenizer, max_tokens=64), np.arange(ROWS), seed=0, epoch=0
    )
    model = objective.build_model(core_builders.bert_encoder(tokenizer, pooling="mean"), seed=0).train()
    return objective, model, batch


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("loss_per", ["token", "sentence"])
@pytest.mark.parametrize("keep", ["similarity", "vector", "both"])
def test_the_term_is_what_it_says_and_weighs_as_tsdae_does(tokenizer, texts, keep, loss_per):
    config = ProtectedConfig(keep=keep, weight=7.0, tsdae=TsdaeConfig(loss_per=loss_per))
    objective, model, batch = built(tokenizer, texts, config)
    before = unit(model.tsdae.encoder.encode(texts[:ROWS]))
    core_builders.shake(model.tsdae.encoder, seed=4, size=0.2)
    now = unit(model.tsdae.encoder.encode(texts[:ROWS]))
    by_vector = 1 - (now * before).sum(1)
    by_similarity = ((now @ now.T - before @ before.T) ** 2).sum(1) / (ROWS - 1)
    penalty = {"vector": by_vector, "similarity": by_similarity, "both": by_vector + by_similarity}[keep]
    assert penalty.max() > 1e-3
    counts = np.ones(ROWS) if loss_per == "sentence" else batch["target_lengths"] - 1
    plain = model.tsdae(batch)
    sums = model(batch)
    assert sums.num_targets == plain.num_targets == objective.num_targets(batch)
    added = float((sums.loss_sum - plain.loss_sum).detach())
    assert added == pytest.approx(7.0 * float((penalty * counts).sum()), rel=1e-3)


def test_at_the_start_nothing_is_added_and_the_frozen_copy_stays_as_it_was(tokenizer, texts):
    _, model, batch = built(tokenizer, texts, ProtectedConfig())
    plain, sums = model.tsdae(batch), model(batch)
    torch.testing.assert_close(sums.loss_sum, plain.loss_sum)
    sums.loss_sum.backward()
    ours = core_builders.gradients(model)
    model.tsdae(batch).loss_sum.backward()
    for name, want in core_builders.gradients(model).items():
        torch.testing.assert_close(ours[name], want, atol=1e-4, rtol=1e-3, msg=name)
    frozen = {name: value.clone() for name, value in model.start.state_dict().items()}
    optimizer = build_optimizer(model, OptimConfig(lr=1e-2))
    for _ in range(3):
        training_step(model, batch, optimizer, global_num_targets=sums.num_targets, max_grad_norm=1.0)
    moved = model.tsdae.encoder.state_dict()
    assert all(torch.equal(value, model.start.state_dict()[name]) for name, value in frozen.items())
    assert any(not torch.equal(value, moved[name]) for name, value in frozen.items())
    assert not [name for name in model.state_dict() if "start" in name]


@pytest.mark.parametrize("keep", ["similarity", "vector"])
def test_protection_keeps_similarities_that_plain_tsdae_moves(tokenizer, texts, keep):
    moved = {}
    for weight in (0.0, 1000.0):
        _, model, batch = built(tokenizer, texts, ProtectedConfig(keep=keep, weight=weight))
        before = unit(model.tsdae.encoder.encode(texts[:ROWS]))
        at_start = float(model.tsdae(batch).loss_sum.detach())
        optimizer = build_optimizer(model, OptimConfig(lr=1e-3))
        for _ in range(8):
            training_step(model, batch, optimizer, global_num_targets=100, max_grad_norm=1.0)
        now = unit(model.tsdae.encoder.encode(texts[:ROWS]))
        moved[weight] = np.abs(now @ now.T - before @ before.T).mean()
        reconstruction = float(model.tsdae(batch).loss_sum.detach())
        assert reconstruction < at_start
    assert moved[1000.0] < 0.5 * moved[0.0]


@pytest.mark.parametrize("changes", [{"keep": "all"}, {"weight": -1.0}])
def test_bad_settings_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        ProtectedConfig(**changes)
