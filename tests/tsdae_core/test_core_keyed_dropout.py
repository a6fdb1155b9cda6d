"""Dropout that does not depend on how a global batch is cut."""

from itertools import pairwise

import core_builders
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tsdae_core.backbone import FAMILIES
from tsdae_core.contrastive_tension import CtConfig
from tsdae_core.keyed_dropout import LayerDropout, PassKeys, begin_pass, has_dropout, keyed_dropout
from tsdae_core.objective import build_objective
from tsdae_core.retromae import RetromaeConfig
from tsdae_core.step import training_step
from tsdae_core.tokens import tokenize_texts

PROB = 0.25
ROWS = 12
CONFIGS = {"ct": CtConfig(num_negatives=2), "retromae basic": RetromaeConfig(decoding="basic")}


def with_dropout(model, prob=PROB):
    """Whatever a configuration or a module calls dropout, on."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = prob
        for holder in (module, getattr(module, "config", None)):
            for name, value in list(vars(holder).items()) if holder is not None else ():
                if (
                    "drop" in name
                    and "layer" not in name
                    and "classif" not in name
                    and isinstance(value, float)
                ):
                    setattr(holder, name, prob)
    return model.train()


def parts_of(objective, tokens, cuts):
    bounds = [0, *cuts, ROWS]
    rows = [np.arange(start, end) for start, end in pairwise(bounds)]
    return [objective.make_batch(tokens.take(part), part, seed=0, epoch=0) for part in rows]


def step_gradients(model, objective, tokens, cuts, *, key=7):
    parts = parts_of(objective, tokens, cuts)
    total = sum(objective.num_targets(part) for part in parts)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    torch.manual_seed(len(cuts))  # a generator that others would draw from
    stats = training_step(
        model, parts, optimizer, global_num_targets=total, max_grad_norm=1e9, dropout_key=key
    )
    return stats.loss, core_builders.gradients(model)


def assert_same(first, second):
    assert first[0] == pytest.approx(second[0], rel=1e-5)
    for name, want in first[1].items():
        torch.testing.assert_close(second[1][name], want, atol=2e-5, rtol=1e-3, msg=name)


@pytest.fixture
def tokens(texts, tokenizer):
    return tokenize_texts(texts[:ROWS], tokenizer, max_tokens=40)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", ["tsdae", "mlm", "simcse", "ct", "retromae", "retromae basic", "protected"])
def test_the_cut_into_micro_batches_changes_no_gradient(tokenizer, tokens, make_encoder, name, packed):
    encoder = make_encoder(dropout=PROB)
    encoder.use_packed = packed
    objective = build_objective(name.split()[0], tokenizer=tokenizer, config=CONFIGS.get(name))
    model = with_dropout(objective.build_model(encoder, seed=0))
    whole = step_gradients(model, objective, tokens, [])
    assert_same(whole, step_gradients(model, objective, tokens, [6]))
    assert_same(whole, step_gradients(model, objective, tokens, [3, 6, 9]))
    other_step = step_gradients(model, objective, tokens, [], key=8)
    assert other_step[0] != pytest.approx(whole[0], rel=1e-4)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_s_dropout_is_keyed(tokenizer, tokens, family):
    encoder = core_builders.hf_encoder(core_builders.family_config(family, tokenizer), tokenizer)
    objective = build_objective("tsdae", tokenizer=tokenizer)
    model = with_dropout(core_builders.shake(objective.build_model(encoder, seed=0)))
    assert has_dropout(model)
    assert_same(
        step_gradients(model, objective, tokens, []), step_gradients(model, objective, tokens, [2, 7])
    )


@pytest.mark.parametrize("packed", [True, False])
def test_layers_that_are_computed_again_drop_the_same(tokenizer, tokens, make_encoder, packed):
    encoder = make_encoder(dropout=PROB)
    encoder.use_packed = packed
    objective = build_objective("tsdae", tokenizer=tokenizer)
    model = with_dropout(objective.build_model(encoder, seed=0))
    kept = step_gradients(model, objective, tokens, [5])
    model.enable_gradient_checkpointing()
    assert_same(kept, step_gradients(model, objective, tokens, [5]))


def keys_of(num_tokens):
    rows = torch.zeros(num_tokens, dtype=torch.int64)
    with keyed_dropout(3):
        return begin_pass(torch.arange(num_tokens), rows, torch.arange(num_tokens), num_rows=1)


def test_masks_keep_the_share_they_should_and_scale_it():
    with LayerDropout(keys_of(2000), 0):
        dropped = F.dropout(torch.ones(2000, 48), PROB, training=True)
        again = F.dropout(torch.ones(2000, 48), PROB, training=True)
    assert dropped.unique().tolist() == pytest.approx([0.0, 1 / (1 - PROB)])
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.02)
    # Tokens, columns and places in the network are independent of one another.
    assert dropped.mean(0).std().item() < 0.03
    assert dropped.mean(1).std().item() == pytest.approx((PROB / (1 - PROB) / 48) ** 0.5, rel=0.15)
    assert torch.corrcoef(torch.stack([dropped.flatten(), again.flatten()]))[0, 1].abs() < 0.02


def test_attention_drops_like_the_library_on_average():
    torch.manual_seed(0)
    query, key, value = (torch.randn(4, 2, 9, 8) for _ in range(3))
    mask = torch.zeros(4, 1, 1, 9)
    mask[1, ..., 5:] = -torch.inf
    exact = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    runs = []
    for number in range(400):
        keys = PassKeys(keys_of(36).tokens.view(4, 9) + number, 0)
        run = LayerDropout(keys, 0).attention
        runs.append(run(query, key, value, keys_BL=keys.tokens, attn_mask=mask, dropout_p=PROB))
    torch.testing.assert_close(torch.stack(runs).mean(0), exact, atol=0.15, rtol=0)
    assert (runs[0] - exact).abs().max() > 0.3


def test_equal_sentences_share_masks_unless_they_are_views_and_passes_differ():
    ids, rows = torch.tensor([5, 6, 5, 6]), torch.tensor([0, 0, 1, 1])
    positions = torch.tensor([0, 1, 0, 1])
    with keyed_dropout(1):
        first = begin_pass(ids, rows, positions, num_rows=2).tokens
        second = begin_pass(ids, rows, positions, num_rows=2).tokens
        views = begin_pass(ids, rows, positions, num_rows=2, views_B=np.arange(2)).tokens
    assert torch.equal(first[:2], first[2:])
    assert not torch.isin(second, first).any()
    assert len(views.unique()) == 4
    with keyed_dropout(None):
        assert begin_pass(ids, rows, positions, num_rows=2) is None


def test_a_model_without_dropout_is_told_apart(tokenizer, make_encoder):
    assert not has_dropout(make_encoder(dropout=0.0))
    assert has_dropout(make_encoder(dropout=0.1))
