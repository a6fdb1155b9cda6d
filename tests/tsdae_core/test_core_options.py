"""Options of training: precision, checkpointing, decoder size, vocabulary, reconstruction, warnings."""

import logging

import core_builders
import numpy as np
import pytest
import torch

from tsdae_core.backbone import layers_of
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.lm_head import LmHead
from tsdae_core.objective import build_objective
from tsdae_core.optim import OptimConfig, build_optimizer
from tsdae_core.reconstruct import reconstruct
from tsdae_core.scratch import train_tokenizer
from tsdae_core.step import training_step
from tsdae_core.tokens import tokenize_texts
from tsdae_core.tsdae import TsdaeConfig
from tsdae_core.vocabulary import add_tokens


def make_batch(objective, tokenizer, texts):
    tokens = tokenize_texts(texts, tokenizer, max_tokens=64)
    return objective.make_batch(tokens, np.arange(len(texts)), seed=0, epoch=0)


@pytest.mark.parametrize("packed", [True, False])
def test_bf16_autocast_trains_and_stays_finite(tokenizer, texts, make_encoder, packed):
    objective = build_objective("tsdae", tokenizer=tokenizer)
    batch = make_batch(objective, tokenizer, texts[:8])
    encoder = make_encoder()
    encoder.use_packed = packed
    model = objective.build_model(encoder, seed=0).train()
    exact = model(batch).loss_sum.item()
    optimizer = build_optimizer(model, OptimConfig(lr=1e-3))
    settings = {"global_num_targets": objective.num_targets(batch), "max_grad_norm": 1.0}
    losses = [
        training_step(model, batch, optimizer, autocast_dtype=torch.bfloat16, **settings).loss_sum
        for _ in range(10)
    ]
    assert losses[0] == pytest.approx(exact, rel=0.02)
    assert losses[0] != exact
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    assert {param.dtype for param in model.parameters()} == {torch.float32}
    with pytest.raises(ValueError, match=r"use torch\.bfloat16"):
        training_step(model, batch, optimizer, autocast_dtype=torch.float16, **settings)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("tie", ["tied", "untied"])
def test_gradient_checkpointing_changes_no_gradient(tokenizer, texts, make_encoder, packed, tie):
    objective = build_objective("tsdae", tokenizer=tokenizer, config=TsdaeConfig(tie=tie))
    batch = make_batch(objective, tokenizer, texts[:12])
    model = core_builders.shake(objective.build_model(make_encoder(dropout=0.1), seed=0)).train()
    model.encoder.use_packed = packed
    calls, results = [], []
    for backbone in (model.encoder.backbone, model.decoder_backbone or model.encoder.backbone):
        for layer in layers_of(backbone):
            layer.intermediate.register_forward_hook(lambda *_: calls.append(1))
    for enable in (False, True):
        if enable:
            model.enable_gradient_checkpointing()
        torch.manual_seed(0)
        calls.clear()
        sums = model(batch)
        sums.loss_sum.backward()
        results.append((sums.loss_sum.item(), len(calls), core_builders.gradients(model)))
    assert results[0][0] == results[1][0]
    assert results[1][1] == 2 * results[0][1]  # every layer runs once more, on the way back
    for name, want in results[0][2].items():
        torch.testing.assert_close(results[1][2][name], want, atol=1e-5, rtol=1e-5, msg=name)
    model.encoder.backbone.activation_checkpointing_enable()
    model.encoder.use_packed = False
    with pytest.raises(ValueError, match="enable_gradient_checkpointing"):
        model(batch)


@pytest.mark.parametrize(("packed", "backend"), [(True, "aot_eager"), (False, "eager")])
def test_compiled_blocks_give_the_same_gradients_with_one_graph_for_all_lengths(
    tokenizer, texts, make_encoder, packed, backend
):
    objective = build_objective("tsdae", tokenizer=tokenizer)
    encoder = make_encoder(num_layers=3)
    encoder.use_packed = packed
    model = core_builders.shake(objective.build_model(encoder, seed=0)).train()
    batches = [make_batch(objective, tokenizer, texts[a:b]) for a, b in ((0, 8), (8, 19), (19, 24))]

    def run(batch):
        sums = model(batch)
        sums.loss_sum.backward()
        return sums.loss_sum.item(), core_builders.gradients(model)

    plain = [run(batch) for batch in batches]
    torch._dynamo.reset()
    graphs = torch._dynamo.utils.counters["stats"]
    graphs.clear()
    model.compile_blocks(backend=backend)
    for batch, (loss, grads) in zip(batches, plain, strict=True):
        compiled_loss, compiled = run(batch)
        assert graphs["unique_graphs"] == 4  # two parts of a layer, bottleneck, head; layers share them
        assert compiled_loss == pytest.approx(loss, rel=1e-6)
        for name, want in grads.items():
            torch.testing.assert_close(compiled[name], want, atol=1e-5, rtol=1e-5, msg=name)


@pytest.mark.parametrize("tie", ["tied", "untied", "scratch"])
def test_a_decoder_can_have_one_layer(tokenizer, texts, make_encoder, tie):
    objective = build_objective(
        "tsdae", tokenizer=tokenizer, config=TsdaeConfig(tie=tie, num_decoder_layers=1)
    )
    batch = make_batch(objective, tokenizer, texts[:12])
    model = core_builders.shake(objective.build_model(make_encoder(), seed=0)).train()
    assert len(model.bottleneck) == 1
    assert model.encoder.backbone.config.num_hidden_layers == 2
    losses = []
    for packed in (True, False):
        model.encoder.use_packed = packed
        model.zero_grad()
        sums = model(batch)
        sums.loss_sum.backward()
        losses.append(sums.loss_sum.item())
        assert not [name for name, param in model.named_parameters() if param.grad is None]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    with pytest.raises(ValueError, match="1 to 2 layers"):
        build_objective(
            "tsdae", tokenizer=tokenizer, config=TsdaeConfig(tie=tie, num_decoder_layers=3)
        ).build_model(make_encoder(), seed=0)
    with pytest.raises(ValueError, match="at least 1"):
        TsdaeConfig(tie=tie, num_decoder_layers=0)


def test_reconstruction_returns_the_texts_a_model_has_learned(tokenizer, texts, make_encoder):
    short = ["a bd c", "ef gh", "c c ab"]
    objective = build_objective("tsdae", tokenizer=tokenizer)
    batch = make_batch(objective, tokenizer, short)
    batch |= {"source_ids": batch["target_ids"], "source_lengths": batch["target_lengths"]}
    model = objective.build_model(make_encoder(), seed=0).train()
    optimizer = build_optimizer(model, OptimConfig(lr=5e-3))
    for _ in range(60):
        training_step(
            model, batch, optimizer, global_num_targets=objective.num_targets(batch), max_grad_norm=1.0
        )
    vectors = torch.from_numpy(model.encoder.encode(short))
    assert reconstruct(model, vectors) == short
    assert reconstruct(model, vectors, num_beams=3) == short
    assert model.training
    assert len(reconstruct(model, vectors[:1], max_tokens=4)[0].split()) <= 2
    with pytest.raises(ValueError, match="num_beams"):
        reconstruct(model, vectors, num_beams=0)


def test_added_words_start_as_the_mean_of_their_pieces_and_survive(texts, tmp_path):
    tokenizer = train_tokenizer(texts, vocab_size=150)
    encoder = core_builders.bert_encoder(tokenizer)
    head = core_builders.shake(LmHead.for_backbone(encoder.backbone, seed=0))
    encoder.save(tmp_path / "base", lm_head=head)
    encoder = SentenceEncoder.load(tmp_path / "base")
    word = "abcdefgh"
    pieces = encoder.tokenizer(word, add_special_tokens=False)["input_ids"]
    before = encoder.backbone.embeddings.word_embeddings.weight.detach().clone()
    size = len(encoder.tokenizer)
    assert add_tokens(encoder, [word, word, "a"]) == 1
    (place,) = encoder.tokenizer(word, add_special_tokens=False)["input_ids"]
    assert place == size
    table = encoder.backbone.embeddings.word_embeddings.weight
    torch.testing.assert_close(table[place], before[pieces].mean(0))
    assert torch.equal(table[:size], before)
    torch.testing.assert_close(encoder.lm_head.bias[place], head.bias[pieces].mean())
    objective = build_objective("tsdae", tokenizer=encoder.tokenizer)
    batch = make_batch(objective, encoder.tokenizer, [f"ab {word} c"] * 4)
    model = objective.build_model(encoder, seed=0).train()
    optimizer = build_optimizer(model, OptimConfig(lr=1e-2))
    training_step(model, batch, optimizer, global_num_targets=objective.num_targets(batch), max_grad_norm=1.0)
    assert not torch.equal(encoder.backbone.embeddings.word_embeddings.weight[place], before[pieces].mean(0))
    encoder.save(tmp_path / "longer", lm_head=model.lm_head)
    again = SentenceEncoder.load(tmp_path / "longer")
    assert again.fingerprint() == encoder.fingerprint()
    assert again.tokenizer(word, add_special_tokens=False)["input_ids"] == [place]
    assert torch.equal(again.lm_head.bias, model.lm_head.bias)
    with pytest.raises(ValueError, match="has no tokens"):
        add_tokens(encoder, [" "])


def test_a_tuned_start_model_is_warned_about_and_a_plain_one_is_not(
    tokenizer, make_encoder, tmp_path, caplog
):
    objective = build_objective("tsdae", tokenizer=tokenizer)
    encoder = make_encoder()
    encoder.save(tmp_path / "tuned")
    encoder.save(tmp_path / "ours", lm_head=LmHead.for_backbone(encoder.backbone, seed=0))
    with caplog.at_level(logging.WARNING, logger="tsdae_core"):
        objective.build_model(SentenceEncoder.load(tmp_path / "ours"), seed=0)
        assert not caplog.records
        objective.build_model(SentenceEncoder.load(tmp_path / "tuned"), seed=0)
    assert "tuned sentence encoder" in caplog.text
