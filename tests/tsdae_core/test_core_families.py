"""Every supported backbone family, on a small random model built here."""

from pathlib import Path

import core_builders
import numpy as np
import pytest
import torch

from tsdae_core.backbone import FAMILIES, REFUSED, family_named, layers_of, word_embeddings
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.head_files import HEAD_NAMES
from tsdae_core.objective import build_objective
from tsdae_core.preflight import check_decoder_is_causal, check_decoder_uses_vector
from tsdae_core.tokens import tokenize_texts
from tsdae_core.tsdae import TsdaeConfig


@pytest.fixture(params=sorted(FAMILIES))
def family(request):
    return request.param


def test_a_family_trains_every_parameter_and_passes_the_preflight(texts, tokenizer, family):
    encoder = core_builders.hf_encoder(core_builders.family_config(family, tokenizer), tokenizer)
    objective = build_objective("tsdae", tokenizer=tokenizer)
    tokens = tokenize_texts(texts[:30], tokenizer, max_tokens=40)
    batch = objective.make_batch(tokens, np.arange(30), seed=0, epoch=0)
    model = core_builders.shake(objective.build_model(encoder, seed=0)).train()
    check_decoder_uses_vector(model, batch)
    check_decoder_is_causal(model, batch)
    model(batch).loss_sum.backward()
    trained = [(name, param.grad) for name, param in model.named_parameters() if param.requires_grad]
    assert not [name for name, grad in trained if grad is None or not grad.any()]


def test_mlm_gives_every_parameter_of_a_family_a_gradient(texts, tokenizer, family):
    """Or distributed training stops: it waits for all of them."""
    encoder = core_builders.hf_encoder(core_builders.family_config(family, tokenizer), tokenizer)
    objective = build_objective("mlm", tokenizer=tokenizer)
    tokens = tokenize_texts(texts[:30], tokenizer, max_tokens=40)
    model = objective.build_model(encoder, seed=0).train()
    model(objective.make_batch(tokens, np.arange(30), seed=0, epoch=0)).loss_sum.backward()
    trained = [(name, param.grad) for name, param in model.named_parameters() if param.requires_grad]
    assert not [name for name, grad in trained if grad is None]


def test_a_family_trains_in_bf16_with_layers_computed_again(texts, tokenizer, family):
    """The same bf16 gradients with and without gradient checkpointing, all finite, near the fp32 loss."""
    encoder = core_builders.hf_encoder(core_builders.family_config(family, tokenizer), tokenizer)
    objective = build_objective("tsdae", tokenizer=tokenizer)
    tokens = tokenize_texts(texts[:6], tokenizer, max_tokens=40)
    batch = objective.make_batch(tokens, np.arange(6), seed=0, epoch=0)
    model = core_builders.shake(objective.build_model(encoder, seed=0)).train()
    torch.manual_seed(0)
    exact = model(batch).loss_sum.item()
    results = []
    for enable in (False, True):
        if enable:
            model.enable_gradient_checkpointing()
        torch.manual_seed(0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(batch).loss_sum
        loss.backward()
        results.append((loss.item(), core_builders.gradients(model)))
    assert results[0][0] == results[1][0] == pytest.approx(exact, rel=0.05)
    for name, want in results[0][1].items():
        assert want.isfinite().all(), name
        torch.testing.assert_close(results[1][1][name], want, atol=1e-2, rtol=1e-2, msg=name)


def test_a_tied_decoder_can_run_the_first_layer_of_a_family_alone(texts, tokenizer, family):
    encoder = core_builders.hf_encoder(core_builders.family_config(family, tokenizer), tokenizer).eval()
    objective = build_objective("tsdae", tokenizer=tokenizer, config=TsdaeConfig(num_decoder_layers=1))
    if family == "albert":
        with pytest.raises(ValueError, match="several groups"):
            objective.build_model(encoder, seed=0)
        return
    layers = layers_of(encoder.backbone)
    batch = objective.make_batch(
        tokenize_texts(texts[:8], tokenizer, max_tokens=40), np.arange(8), seed=0, epoch=0
    )
    model = core_builders.shake(objective.build_model(encoder, seed=0)).eval()
    vectors = encoder.encode(texts[:8])
    check_decoder_uses_vector(model, batch)
    check_decoder_is_causal(model, batch)
    model(batch).loss_sum.backward()
    assert not [
        name for name, param in model.named_parameters() if param.requires_grad and param.grad is None
    ]
    assert layers_of(encoder.backbone) == layers
    assert len(model.bottleneck) == 1
    assert np.array_equal(encoder.encode(texts[:8]), vectors)
    # The upper layers take no part in the decoder.
    given = torch.from_numpy(vectors)
    before = model.reconstruct(given, batch["target_ids"], batch["target_lengths"]).loss_sum
    core_builders.shake(layers[-1])
    after = model.reconstruct(given, batch["target_ids"], batch["target_lengths"]).loss_sum
    assert before.item() == after.item()


def test_a_family_saves_and_loads_with_its_head(texts, tokenizer, family, tmp_path):
    encoder = core_builders.hf_encoder(core_builders.family_config(family, tokenizer), tokenizer).eval()
    head = build_objective("mlm", tokenizer=tokenizer).build_model(encoder, seed=0).lm_head
    core_builders.shake(head)
    encoder.save(tmp_path, lm_head=head)
    loaded = SentenceEncoder.load(tmp_path)
    assert np.array_equal(loaded.encode(texts[:20]), encoder.encode(texts[:20]))
    assert loaded.fingerprint() == encoder.fingerprint()
    assert not loaded.is_tuned
    assert loaded.lm_head.state_dict().keys() == head.state_dict().keys()
    for name, value in head.state_dict().items():
        assert torch.equal(loaded.lm_head.state_dict()[name], value), name
    states = torch.randn(3, 32)
    table = word_embeddings(loaded.backbone).weight
    want = head.logits(states, embeddings_VE=table)
    assert torch.equal(loaded.lm_head.logits(states, embeddings_VE=table), want)


def test_padding_does_not_change_a_vector(texts, tokenizer, family):
    encoder = core_builders.hf_encoder(core_builders.family_config(family, tokenizer), tokenizer).eval()
    together = encoder.encode(texts[:6], batch_tokens=10_000)
    alone = np.concatenate([encoder.encode([text]) for text in texts[:6]])
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_a_deberta_with_a_convolution_is_refused(texts, tokenizer):
    config = core_builders.family_config("deberta-v2", tokenizer, conv_kernel_size=3)
    encoder = core_builders.hf_encoder(config, tokenizer)
    objective = build_objective("tsdae", tokenizer=tokenizer)
    tokens = tokenize_texts(texts[:8], tokenizer, max_tokens=40)
    batch = objective.make_batch(tokens, np.arange(8), seed=0, epoch=0)
    with pytest.raises(ValueError, match="has a convolution"):
        check_decoder_is_causal(objective.build_model(encoder, seed=0), batch)


def test_what_cannot_work_is_refused_with_its_reason():
    for name, reason in REFUSED.items():
        with pytest.raises(ValueError, match="is not supported") as error:
            family_named(name)
        assert reason in str(error.value)
    with pytest.raises(ValueError, match="nobody has checked"):
        family_named("gpt2")


def test_the_table_of_the_documentation_is_the_code():
    text = (Path(__file__).parents[2] / "docs" / "backbones.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line[:2] == "| "
    ]
    supported = {row[0]: row[1:4] for row in rows if len(row) == 5 and row[0] != "model type"}
    assert supported.keys() == FAMILIES.keys()
    for name, (path, head, layers) in supported.items():
        assert path == ("packed" if FAMILIES[name].packed else "general"), name
        names = HEAD_NAMES[name]
        assert head == ("output matrix" if names.dense is None else "transform"), name
        assert layers == ("post-norm" if FAMILIES[name].post_norm else "pre-norm"), name
    assert {row[0]: row[1] for row in rows if len(row) == 2 and row[0] != "model type"} == REFUSED
