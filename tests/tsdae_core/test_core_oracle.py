"""Equality with the losses of sentence-transformers and transformers: same weights, same ids, no dropout."""

import core_builders
import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import DenoisingAutoEncoderLoss
from transformers import AutoModelForMaskedLM

from tsdae_core.objective import build_objective
from tsdae_core.tokens import tokenize_texts

CROSS = {"value": "self.value", "output": "output.dense", "norm": "output.LayerNorm"}
HEADS = {
    "bert": {
        "dense": "cls.predictions.transform.dense",
        "norm": "cls.predictions.transform.LayerNorm",
        "bias": "cls.predictions.bias",
    },
    "roberta": {"dense": "lm_head.dense", "norm": "lm_head.layer_norm", "bias": "lm_head.bias"},
}


def reference_name(name, family):
    """Translate one of our parameter names into the reference decoder's."""
    part, _, rest = name.partition(".")
    if part in ("encoder", "backbone"):
        return f"{family}.{rest.removeprefix('backbone.')}"
    if part == "lm_head":
        module, _, leaf = rest.partition(".")
        return f"{HEADS[family][module]}.{leaf}".rstrip(".")
    layer, module, leaf = rest.split(".")
    return f"{family}.encoder.layer.{layer}.crossattention.{CROSS[module]}.{leaf}"


def padded(ids, lengths, pad_id):
    rows = np.split(ids, np.cumsum(lengths)[:-1])
    longest = max(lengths)
    input_ids = torch.tensor([[*row, *[pad_id] * (longest - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return {"input_ids": input_ids, "attention_mask": mask}


def encoder_of(family, texts, tokenizer):
    if family == "bert":
        return core_builders.bert_encoder(tokenizer)
    tokenizer = core_builders.byte_level_tokenizer(texts)
    return core_builders.hf_encoder(core_builders.roberta_config(tokenizer), tokenizer)


@pytest.fixture(params=["bert", "roberta"])
def setting(request, texts, tokenizer, tmp_path):
    family = request.param
    encoder = encoder_of(family, texts, tokenizer)
    tokenizer = encoder.tokenizer
    objective = build_objective("tsdae", tokenizer=tokenizer)
    model = objective.build_model(encoder, seed=5).train()
    core_builders.shake(model, seed=1)
    tokens = tokenize_texts(texts[:12], tokenizer, max_tokens=encoder.max_tokens)
    batch = objective.make_batch(tokens, np.arange(12), seed=0, epoch=0)
    encoder.save(tmp_path, lm_head=model.lm_head)
    reference = DenoisingAutoEncoderLoss(SentenceTransformer(str(tmp_path), device="cpu")).train()
    weights = dict(reference.decoder.named_parameters())
    with torch.no_grad():
        for name, param in model.named_parameters():
            weights[reference_name(name, family)].copy_(param)
    pair = [
        padded(batch[f"{side}_ids"], batch[f"{side}_lengths"], tokenizer.pad_token_id)
        for side in ("source", "target")
    ]
    return family, model, batch, reference, pair


@pytest.mark.parametrize("packed", [True, False])
def test_loss_and_every_shared_gradient_equal_the_reference(setting, packed):
    family, model, batch, reference, pair = setting
    model.encoder.use_packed = packed
    sums = model(batch)
    (sums.loss_sum / sums.num_targets).backward()
    expected = reference(pair, None)
    expected.backward()
    assert sums.loss_sum.item() / sums.num_targets == pytest.approx(expected.item(), abs=1e-5)
    theirs = {name: param.grad for name, param in reference.decoder.named_parameters()}
    for name, param in model.named_parameters():
        want = theirs.pop(reference_name(name, family))
        torch.testing.assert_close(
            param.grad, want, atol=1e-6, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
    left = {name for name, grad in theirs.items() if grad is not None and float(grad.abs().max()) > 1e-6}
    assert not left  # only the query and key of one-key attention remain, with no gradient


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_mlm_loss_and_every_gradient_equal_the_library_s_model(family, packed, texts, tokenizer, tmp_path):
    """transformers' own model, with the same masked ids and the tokens to predict as labels."""
    encoder = encoder_of(family, texts, tokenizer)
    encoder.use_packed = packed
    objective = build_objective("mlm", tokenizer=encoder.tokenizer)
    model = core_builders.shake(objective.build_model(encoder, seed=5), seed=1).train()
    tokens = tokenize_texts(texts[:12], encoder.tokenizer, max_tokens=encoder.max_tokens)
    batch = objective.make_batch(tokens, np.arange(12), seed=0, epoch=0)
    sums = model(batch)
    (sums.loss_sum / sums.num_targets).backward()
    encoder.save(tmp_path, lm_head=model.lm_head)
    reference = AutoModelForMaskedLM.from_pretrained(tmp_path).train()
    labels = np.full(len(batch["input_ids"]), -100)
    labels[batch["target_places"]] = batch["target_ids"]
    inputs = padded(batch["input_ids"], batch["lengths"], encoder.tokenizer.pad_token_id)
    expected = reference(**inputs, labels=padded(labels, batch["lengths"], -100)["input_ids"]).loss
    expected.backward()
    assert sums.loss_sum.item() / sums.num_targets == pytest.approx(expected.item(), abs=1e-5)
    theirs = {name: param.grad for name, param in reference.named_parameters()}
    for name, param in model.named_parameters():
        want = theirs.pop(reference_name(name, family))
        torch.testing.assert_close(
            param.grad, want, atol=1e-6, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert not theirs
