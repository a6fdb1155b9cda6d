"""The packed path and the padded path through the backbone's own forward give the same numbers."""

import core_builders
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tsdae_core.objective import build_objective
from tsdae_core.padded import run_padded
from tsdae_core.preflight import check_decoder_is_causal, check_decoder_uses_vector
from tsdae_core.tokens import tokenize_texts
from tsdae_core.tsdae import TsdaeConfig


def make_model(encoder, objective, *, seed=5):
    return core_builders.shake(objective.build_model(encoder, seed=seed), seed=2)


def loss_and_gradients(model, batch, *, packed):
    model.encoder.use_packed = packed
    sums = model(batch)
    sums.loss_sum.backward()
    return sums, core_builders.gradients(model)


def assert_same(model, batch):
    packed, packed_grads = loss_and_gradients(model, batch, packed=True)
    general, general_grads = loss_and_gradients(model, batch, packed=False)
    assert packed.num_targets == general.num_targets
    torch.testing.assert_close(packed.loss_sum, general.loss_sum, rtol=1e-5, atol=1e-5)
    for name, want in general_grads.items():
        scale = max(1.0, float(want.abs().max()))
        torch.testing.assert_close(packed_grads[name] / scale, want / scale, atol=1e-5, rtol=0, msg=name)


@settings(deadline=None, max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=40),
    pooling=st.sampled_from(["cls", "mean", "max"]),
    seed=st.integers(0, 3),
)
def test_packed_equals_general_for_any_batch_composition(tokenizer, lengths, pooling, seed):
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(core_builders.LETTERS, size=length)) for length in lengths]
    encoder = core_builders.bert_encoder(tokenizer, pooling=pooling)
    objective = build_objective("tsdae", tokenizer=tokenizer)
    tokens = tokenize_texts(texts, tokenizer, max_tokens=64)
    batch = objective.make_batch(tokens, np.arange(len(texts)), seed=seed, epoch=0)
    assert_same(make_model(encoder, objective), batch)


@pytest.mark.parametrize("tie", ["untied", "scratch"])
def test_packed_equals_general_with_a_decoder_of_its_own(texts, tokenizer, make_encoder, tie):
    objective = build_objective("tsdae", tokenizer=tokenizer, config=TsdaeConfig(tie=tie))
    batch = objective.make_batch(
        tokenize_texts(texts[:20], tokenizer, max_tokens=64), np.arange(20), seed=0, epoch=0
    )
    model = make_model(make_encoder(), objective)
    assert_same(model, batch)
    ours, decoders = model.encoder.backbone.state_dict(), model.decoder_backbone.state_dict()
    assert ours.keys() == decoders.keys()


def test_packed_equals_general_for_roberta_and_electra(texts):
    tokenizer = core_builders.byte_level_tokenizer(texts)
    for config in (
        core_builders.roberta_config(tokenizer),
        core_builders.family_config("electra", tokenizer),
    ):
        encoder = core_builders.hf_encoder(config, tokenizer)
        assert encoder.use_packed
        objective = build_objective("tsdae", tokenizer=tokenizer)
        tokens = tokenize_texts(texts[:20], tokenizer, max_tokens=40)
        batch = objective.make_batch(tokens, np.arange(20), seed=0, epoch=0)
        assert_same(make_model(encoder, objective).eval(), batch)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_every_parameter_gets_a_gradient(texts, tokenizer, make_encoder, packed, dropout):
    objective = build_objective("tsdae", tokenizer=tokenizer)
    batch = objective.make_batch(
        tokenize_texts(texts, tokenizer, max_tokens=64), np.arange(200), seed=0, epoch=0
    )
    model = make_model(make_encoder(dropout=dropout), objective).train()
    model.encoder.use_packed = packed
    model(batch).loss_sum.backward()
    assert not [
        name for name, param in model.named_parameters() if param.grad is None or not param.grad.any()
    ]


def test_dropout_keeps_the_expected_cross_contribution(texts, tokenizer, make_encoder):
    """Dropping heads per token and rescaling leaves the mean of the contribution unchanged."""
    objective = build_objective("tsdae", tokenizer=tokenizer)
    layer = make_model(make_encoder(dropout=0.3), objective).bottleneck[0]
    layer.norm, layer.dropout = torch.nn.Identity(), torch.nn.Identity()
    torch.manual_seed(0)
    vectors, rows = torch.randn(2, 32), torch.tensor([0, 1]).repeat_interleave(20_000)
    hidden = torch.zeros(40_000, 32)
    noisy = layer.train()(hidden, vectors, rows)
    exact = layer.eval()(hidden, vectors, rows)
    assert not torch.allclose(noisy[0], exact[0])
    torch.testing.assert_close(noisy[:20_000].mean(0), exact[0], atol=0.02, rtol=0)
    torch.testing.assert_close(noisy[20_000:].mean(0), exact[20_000], atol=0.02, rtol=0)


def test_eval_mode_is_deterministic_and_train_mode_drops_out(texts, tokenizer, make_encoder):
    objective = build_objective("tsdae", tokenizer=tokenizer)
    batch = objective.make_batch(
        tokenize_texts(texts[:8], tokenizer, max_tokens=64), np.arange(8), seed=0, epoch=0
    )
    model = make_model(make_encoder(dropout=0.3), objective).eval()
    assert model(batch).loss_sum.item() == model(batch).loss_sum.item()
    model.train()
    assert model(batch).loss_sum.item() != model(batch).loss_sum.item()


def test_the_decoder_sees_the_source_only_through_the_vector(texts, tokenizer, make_encoder):
    objective = build_objective("tsdae", tokenizer=tokenizer)
    tokens = tokenize_texts(texts[:8], tokenizer, max_tokens=64)
    first, second = (objective.make_batch(tokens, np.arange(8), seed=seed, epoch=0) for seed in (0, 1))
    model = make_model(make_encoder(), objective).eval()
    vectors = model.encoder.embed(first["source_ids"], first["source_lengths"])
    assert model(first).loss_sum.item() != model(second).loss_sum.item()
    same = [
        model.reconstruct(vectors, each["target_ids"], each["target_lengths"]).loss_sum
        for each in (first, second)
    ]
    assert torch.equal(*same)


def test_preflight_refuses_a_decoder_that_ignores_the_vector(texts, tokenizer, make_encoder):
    objective = build_objective("tsdae", tokenizer=tokenizer)
    batch = objective.make_batch(
        tokenize_texts(texts[:8], tokenizer, max_tokens=64), np.arange(8), seed=0, epoch=0
    )
    model = make_model(make_encoder(), objective)
    check_decoder_uses_vector(model, batch)
    for layer in model.bottleneck:
        torch.nn.init.zeros_(layer.output.weight)
    with pytest.raises(ValueError, match="ignores the sentence vector"):
        check_decoder_uses_vector(model, batch)


@pytest.mark.parametrize("packed", [True, False])
def test_preflight_refuses_a_decoder_that_looks_ahead(texts, tokenizer, make_encoder, packed, monkeypatch):
    objective = build_objective("tsdae", tokenizer=tokenizer)
    batch = objective.make_batch(
        tokenize_texts(texts[:8], tokenizer, max_tokens=64), np.arange(8), seed=0, epoch=0
    )
    model = make_model(make_encoder(), objective)
    model.encoder.use_packed = packed
    check_decoder_is_causal(model, batch)
    name = "run_packed" if packed else "run_padded"
    import tsdae_core.decoder as decoder

    honest = getattr(decoder, name)
    monkeypatch.setattr(decoder, name, lambda *args, **kwargs: honest(*args, **{**kwargs, "causal": False}))
    with pytest.raises(ValueError, match="sees later tokens"):
        check_decoder_is_causal(model, batch)


def test_a_padded_batch_does_not_change_a_sentence(tokenizer, make_encoder):
    backbone = make_encoder().backbone.eval()
    long, short = torch.arange(5, 25), torch.arange(5, 9)
    alone = run_padded(backbone, short, torch.tensor([4]), causal=False)
    beside = run_padded(backbone, torch.cat([long, short]), torch.tensor([20, 4]), causal=False)[20:]
    torch.testing.assert_close(alone, beside, atol=1e-6, rtol=1e-5)
