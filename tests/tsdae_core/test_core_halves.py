"""Encoder halves (T5, BART) and decoder-only bodies (LLaMA, Qwen3): what is special about them."""

import logging

import core_builders
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from tsdae_core.encoder import SentenceEncoder
from tsdae_core.objective import build_objective
from tsdae_core.padded import run_padded
from tsdae_core.preflight import check_decoder_is_causal, check_decoder_uses_vector
from tsdae_core.tokens import tokenize_texts
from tsdae_core.tsdae import TsdaeConfig
from tsdae_core.vocabulary import add_tokens

HALVES, BODIES = ("t5", "bart"), ("llama", "qwen3")


def make_encoder(family, tokenizer):
    return core_builders.hf_encoder(core_builders.family_config(family, tokenizer), tokenizer).eval()


@pytest.mark.parametrize("family", BODIES)
def test_a_body_encodes_in_both_directions_and_decodes_in_one(tokenizer, family):
    backbone = make_encoder(family, tokenizer).backbone
    ids, lengths = torch.arange(5, 15), torch.tensor([10])
    changed = ids.clone()
    changed[-1] = 30
    for causal in (False, True):
        one, two = (run_padded(backbone, each, lengths, causal=causal) for each in (ids, changed))
        same = [torch.equal(one[place], two[place]) for place in range(9)]
        assert all(same) if causal else not any(same)


@pytest.mark.parametrize("family", HALVES + BODIES)
def test_published_checkpoints_load_with_the_weights_they_have(tokenizer, texts, family, tmp_path):
    config = core_builders.family_config(family, tokenizer)
    torch.manual_seed(0)
    auto = AutoModelForSeq2SeqLM if family in HALVES else AutoModelForCausalLM
    published = core_builders.shake(auto.from_config(config))
    published.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    encoder = SentenceEncoder.load(tmp_path, max_tokens=40)
    whole = published.base_model.state_dict()
    for name, value in encoder.backbone.state_dict().items():
        assert torch.equal(value, whole[f"encoder.{name}" if family in HALVES else name]), name
    assert np.isfinite(encoder.encode(texts[:4])).all()


@pytest.mark.parametrize("family", HALVES + BODIES)
@pytest.mark.parametrize("tie", ["untied", "scratch"])
def test_they_have_decoders_of_their_own_too(tokenizer, texts, family, tie):
    config = TsdaeConfig(tie=tie, num_decoder_layers=1)
    objective = build_objective("tsdae", tokenizer=tokenizer, config=config)
    tokens = tokenize_texts(texts[:8], tokenizer, max_tokens=40)
    batch = objective.make_batch(tokens, np.arange(8), seed=0, epoch=0)
    model = core_builders.shake(objective.build_model(make_encoder(family, tokenizer), seed=0))
    check_decoder_uses_vector(model, batch)
    check_decoder_is_causal(model, batch)
    model(batch).loss_sum.backward()
    assert not [name for name, param in model.named_parameters() if param.grad is None]


@pytest.mark.parametrize("family", HALVES + BODIES)
def test_added_words_are_saved_and_loaded(texts, family, tmp_path):
    tokenizer = core_builders.wordpiece_tokenizer(texts)
    encoder = make_encoder(family, tokenizer)
    assert add_tokens(encoder, ["abcdefghij"]) == 1
    encoder.save(tmp_path)
    again = SentenceEncoder.load(tmp_path)
    assert np.array_equal(again.encode(["abcdefghij a"]), encoder.encode(["abcdefghij a"]))


@pytest.mark.parametrize("family", HALVES + BODIES)
def test_a_folder_that_others_would_read_otherwise_is_named(tokenizer, family, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="tsdae_core"):
        make_encoder(family, tokenizer).save(tmp_path)
    assert ("load it with SentenceEncoder.load" in caplog.text) == (family != "t5")


@pytest.mark.parametrize("family", BODIES)
def test_a_body_can_encode_causally_and_a_saved_one_stays_so(tokenizer, texts, family, tmp_path, caplog):
    published = AutoModelForCausalLM.from_config(core_builders.family_config(family, tokenizer)).eval()
    published.save_pretrained(tmp_path / "published")
    tokenizer.save_pretrained(tmp_path / "published")
    settings = {"pooling": "mean", "max_tokens": 40}
    both = SentenceEncoder.load(tmp_path / "published", **settings)
    causal = SentenceEncoder.load(tmp_path / "published", attention="causal", **settings)
    assert (both.attention, causal.attention) == ("bidirectional", "causal")
    vectors = causal.encode(texts[:9])
    for text, vector in zip(texts[:9], vectors, strict=True):
        ids = tokenizer(text, return_tensors="pt", max_length=40, truncation=True)["input_ids"]
        want = published.base_model(ids).last_hidden_state[0].mean(0).detach().numpy()
        np.testing.assert_allclose(vector, want, atol=1e-5)
    assert np.abs(both.encode(texts[:9]) - vectors).max() > 1e-3
    assert both.fingerprint() != causal.fingerprint()
    with caplog.at_level(logging.WARNING, logger="tsdae_core"):
        causal.save(tmp_path / "ours")
    assert not [record for record in caplog.records if record.name.startswith("tsdae_core")]
    again = SentenceEncoder.load(tmp_path / "ours")
    assert again.attention == "causal"
    assert again.fingerprint() == causal.fingerprint()
    assert np.array_equal(again.encode(texts[:9]), vectors)
    turned = SentenceEncoder.load(tmp_path / "ours", attention="bidirectional")
    assert np.array_equal(turned.encode(texts[:9]), both.encode(texts[:9]))
    turned.save(tmp_path / "turned")
    assert SentenceEncoder.load(tmp_path / "turned").attention == "bidirectional"


def test_causal_encoding_is_refused_where_it_makes_no_sense(tokenizer, make_encoder):
    backbone = core_builders.hf_encoder(core_builders.family_config("llama", tokenizer), tokenizer).backbone
    with pytest.raises(ValueError, match="pool by mean or max"):
        SentenceEncoder(backbone, tokenizer, pooling="cls", max_tokens=40, attention="causal")
    with pytest.raises(ValueError, match="choose one of bidirectional, causal"):
        SentenceEncoder(backbone, tokenizer, pooling="mean", max_tokens=40, attention="both")
    bert = make_encoder().backbone
    with pytest.raises(ValueError, match="for decoder-only backbones"):
        SentenceEncoder(bert, tokenizer, pooling="mean", max_tokens=40, attention="causal")


@pytest.mark.parametrize(
    ("family", "changes", "reach"),
    [
        ("modernbert", {"layer_types": ["sliding_attention"] * 2, "local_attention": 6}, 3),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}, 3),
    ],
)
@pytest.mark.parametrize("causal", [False, True])
def test_both_passes_keep_the_window_of_a_layer(tokenizer, family, changes, reach, causal):
    """Two layers of a reach of 3 carry what is at most 6 places away, in the directions of the pass."""
    encoder = core_builders.hf_encoder(core_builders.family_config(family, tokenizer, **changes), tokenizer)
    ids, lengths, place = torch.arange(5, 30), torch.tensor([20, 5]), 10
    changed = ids.clone()
    changed[place] = 40
    with torch.no_grad():
        one, two = (
            run_padded(encoder.backbone.eval(), each, lengths, causal=causal)[:20] for each in (ids, changed)
        )
    moved = (one != two).any(1).nonzero().flatten().tolist()
    assert moved == list(range(place if causal else place - 2 * reach, place + 2 * reach + 1))
