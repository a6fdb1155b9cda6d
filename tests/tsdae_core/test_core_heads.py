"""Language-model heads of published checkpoints: found, used, kept, and no reason for a wrong warning."""

import logging

import core_builders
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

from tsdae_core.backbone import FAMILIES, word_embeddings
from tsdae_core.encoder import SentenceEncoder, load_lm_head
from tsdae_core.objective import build_objective
from tsdae_core.reconstruct import model_from_weights, reconstruct
from tsdae_core.tokens import tokenize_texts
from tsdae_core.tsdae import TsdaeConfig
from tsdae_core.vocabulary import add_tokens

CLASSES = {"encoder": AutoModelForMaskedLM, "half": AutoModelForSeq2SeqLM, "body": AutoModelForCausalLM}
# The ties of a published checkpoint: of T5 the value stands for the scale of its first version.
CASES = [
    *(("bert", tied) for tied in (True, False)),
    *(("eurobert", tied) for tied in (True, False)),
    ("rembert", False),
    *(("t5", tied) for tied in (True, False)),
    ("bart", True),
    *(("llama", tied) for tied in (True, False)),
    *(("qwen3", tied) for tied in (True, False)),
]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{'tied' if case[1] else 'untied'}")
def published(request, tokenizer, tmp_path):
    """A checkpoint of the family's own language-model class, on disk."""
    family, tied = request.param
    config = core_builders.family_config(family, tokenizer, tie_word_embeddings=tied)
    torch.manual_seed(0)
    model = CLASSES[FAMILIES[family].kind].from_config(config)
    core_builders.shake(model)
    if family == "t5" and not tied:
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    if family == "bart":
        torch.nn.init.normal_(model.final_logits_bias)
    model.save_pretrained(tmp_path / "published")
    tokenizer.save_pretrained(tmp_path / "published")
    return family, model.eval(), tmp_path / "published"


def states_and_logits(family, model):
    """What the published model's head is given, and what it makes of it."""
    ids = torch.arange(5, 15)[None]
    more = {"decoder_input_ids": ids} if FAMILIES[family].kind == "half" else {}
    with torch.no_grad():
        out = model(input_ids=ids, output_hidden_states=True, **more)
    states = out.decoder_hidden_states if more else out.hidden_states
    return states[-1][0], out.logits[0]


def test_the_checkpoints_own_head_gives_its_own_logits(published):
    family, model, folder = published
    encoder = SentenceEncoder.load(folder, max_tokens=40)
    states, logits = states_and_logits(family, model)
    table = word_embeddings(encoder.backbone).weight
    torch.testing.assert_close(
        encoder.lm_head.logits(states, embeddings_VE=table), logits, atol=1e-5, rtol=1e-5
    )
    tied = model.get_output_embeddings().weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    assert (encoder.lm_head.output is None) == tied
    assert not encoder.is_tuned


def test_an_own_head_trains_and_is_kept_with_its_encoder(published, tokenizer, texts, tmp_path, caplog):
    _, _, folder = published
    encoder = SentenceEncoder.load(folder, max_tokens=40, pooling="mean")
    objective = build_objective("tsdae", tokenizer=tokenizer)
    tokens = tokenize_texts(texts[:8], tokenizer, max_tokens=40)
    batch = objective.make_batch(tokens, np.arange(8), seed=0, epoch=0)
    model = objective.build_model(encoder, seed=0)
    assert model.lm_head is not encoder.lm_head
    model(batch).loss_sum.backward()
    assert not [name for name, param in model.lm_head.named_parameters() if param.grad is None]
    core_builders.shake(model.lm_head)
    encoder.save(tmp_path / "ours", lm_head=model.lm_head)
    again = SentenceEncoder.load(tmp_path / "ours")
    states, table = torch.randn(4, 32), word_embeddings(again.backbone).weight
    want = model.lm_head.logits(states, embeddings_VE=table)
    assert torch.equal(again.lm_head.logits(states, embeddings_VE=table), want)
    with caplog.at_level(logging.WARNING, logger="tsdae_core"):
        objective.build_model(again, seed=0)
    assert "tuned" not in caplog.text
    # Saved without its head, it is a finished encoder, and an old head in the folder is gone.
    encoder.save(tmp_path / "ours")
    assert SentenceEncoder.load(tmp_path / "ours").is_tuned


@pytest.mark.parametrize("family", ["bert", "eurobert", "rembert", "t5", "bart", "llama", "qwen3"])
def test_a_checkpoint_without_a_head_says_so(family, tokenizer, tmp_path, caplog):
    """As far as it can lack one: where the embeddings are the head, every checkpoint has it."""
    config = core_builders.family_config(family, tokenizer, tie_word_embeddings=family in ("t5", "bart"))
    core_builders.hf_encoder(config, tokenizer).save(tmp_path)
    with caplog.at_level(logging.INFO, logger="tsdae_core"):
        head = load_lm_head(tmp_path)
    has_none = family not in ("t5", "bart")
    assert (head is None) == has_none
    assert ("no language-model head; training starts a fresh one" in caplog.text) == has_none
    assert SentenceEncoder.load(tmp_path).is_tuned


def test_added_words_get_rows_of_an_output_matrix_too(tokenizer, texts, tmp_path):
    own = core_builders.wordpiece_tokenizer(texts)
    config = core_builders.family_config("llama", own, tie_word_embeddings=False)
    core_builders.shake(AutoModelForCausalLM.from_config(config)).save_pretrained(tmp_path)
    own.save_pretrained(tmp_path)
    encoder = SentenceEncoder.load(tmp_path, max_tokens=40)
    pieces = encoder.tokenizer("abcdefgh", add_special_tokens=False)["input_ids"]
    before = encoder.lm_head.output.detach().clone()
    add_tokens(encoder, ["abcdefgh"])
    assert encoder.lm_head.output.shape[0] == word_embeddings(encoder.backbone).num_embeddings
    torch.testing.assert_close(encoder.lm_head.output[-1], before[pieces].mean(0))
    encoder.save(tmp_path / "longer", lm_head=encoder.lm_head)
    assert torch.equal(SentenceEncoder.load(tmp_path / "longer").lm_head.output, encoder.lm_head.output)


def test_a_scratch_decoder_starts_a_head_that_fits_it(tokenizer, tmp_path):
    """Not the checkpoint's: that reads states which a fresh decoder does not make."""
    config = core_builders.family_config("llama", tokenizer, tie_word_embeddings=True)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    encoder = SentenceEncoder.load(tmp_path, max_tokens=40)
    assert not encoder.lm_head.state_dict()
    objective = build_objective("tsdae", tokenizer=tokenizer, config=TsdaeConfig(tie="scratch"))
    model = core_builders.shake(objective.build_model(encoder, seed=0)).eval()
    assert model.lm_head.dense is not None
    vectors = torch.from_numpy(encoder.encode(["a b"]))
    want = reconstruct(model, vectors, max_tokens=6)
    start = SentenceEncoder.load(tmp_path, max_tokens=40)
    assert reconstruct(model_from_weights(start, model.state_dict()), vectors, max_tokens=6) == want
