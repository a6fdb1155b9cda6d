"""The decoder's masked input and the unit of the loss."""

import core_builders
import numpy as np
import pytest
import torch

from tsdae_core.decoder import build_bottleneck
from tsdae_core.mlm import MlmConfig
from tsdae_core.objective import build_objective
from tsdae_core.optim import OptimConfig, build_optimizer
from tsdae_core.ragged import Ragged
from tsdae_core.step import training_step
from tsdae_core.token_table import TokenTable
from tsdae_core.tokens import tokenize_texts
from tsdae_core.tsdae import TsdaeConfig


def batch_of(tokenizer, texts, *, row_ids=None, seed=0, epoch=0, **config):
    objective = build_objective("tsdae", tokenizer=tokenizer, config=TsdaeConfig(**config))
    tokens = tokenize_texts(texts, tokenizer, max_tokens=64)
    row_ids = np.arange(len(texts)) if row_ids is None else row_ids
    return objective, objective.make_batch(tokens, row_ids, seed=seed, epoch=epoch)


def test_the_decoder_mask_is_keyed_hits_its_share_and_no_special_token(tokenizer, texts):
    _, batch = batch_of(tokenizer, texts, decoder_mask_ratio=0.4)
    _, plain = batch_of(tokenizer, texts)
    assert "decoder_ids" not in plain
    for name, value in plain.items():
        assert np.array_equal(value, batch[name]), name
    hidden = batch["decoder_ids"] != batch["target_ids"]
    assert (batch["decoder_ids"][hidden] == tokenizer.mask_token_id).all()
    ordinary = ~np.isin(batch["target_ids"], [tokenizer.cls_token_id, tokenizer.sep_token_id])
    assert not hidden[~ordinary].any()
    assert hidden[ordinary].mean() == pytest.approx(0.4, abs=0.04)
    rows = Ragged(batch["decoder_ids"], batch["target_lengths"])
    for index in (3, 7):
        _, alone = batch_of(tokenizer, [texts[index]], row_ids=np.array([index]), decoder_mask_ratio=0.4)
        assert np.array_equal(alone["decoder_ids"], rows.row(index))
    for other in ({"seed": 1}, {"epoch": 1}):
        _, changed = batch_of(tokenizer, texts, decoder_mask_ratio=0.4, **other)
        assert not np.array_equal(changed["decoder_ids"], batch["decoder_ids"])


@pytest.mark.parametrize("packed", [True, False])
def test_the_decoder_reads_masked_inputs_and_predicts_the_whole_text(tokenizer, texts, make_encoder, packed):
    objective, batch = batch_of(tokenizer, texts[:8], decoder_mask_ratio=0.5)
    encoder = make_encoder().eval()
    encoder.use_packed = packed
    model = core_builders.shake(objective.build_model(encoder, seed=0)).eval()
    masked = model(batch)
    open_batch = {name: value for name, value in batch.items() if name != "decoder_ids"}
    assert masked.loss_sum.item() != model(open_batch).loss_sum.item()
    assert masked.num_targets == model(open_batch).num_targets
    # Masked inputs with the same targets, by hand.
    vectors = encoder.embed(batch["source_ids"], batch["source_lengths"])
    ends = np.cumsum(batch["target_lengths"]) - 1
    inputs = np.delete(batch["decoder_ids"], ends)
    states, order = model.decode(vectors, inputs, batch["target_lengths"] - 1)
    labels = torch.from_numpy(
        np.delete(batch["target_ids"], ends - batch["target_lengths"] + 1)[order]
    ).long()
    table = TokenTable(encoder.backbone.embeddings.word_embeddings)
    want = model.lm_head.loss_sum(states, labels, table=table)
    torch.testing.assert_close(masked.loss_sum, want)


def test_the_loss_per_sentence_is_the_papers_sum(tokenizer, texts, make_encoder):
    objective, batch = batch_of(tokenizer, texts[:8], loss_per="sentence")
    by_token, same = batch_of(tokenizer, texts[:8])
    assert objective.num_targets(batch) == 8
    model = objective.build_model(make_encoder(), seed=0).train()
    sums, reference = model(batch), by_token.build_model(make_encoder(), seed=0).train()(same)
    assert sums.num_targets == 8
    assert sums.loss_sum.item() == reference.loss_sum.item()
    stats = training_step(
        model, batch, build_optimizer(model, OptimConfig()), global_num_targets=8, max_grad_norm=1e9
    )
    assert stats.loss == pytest.approx(reference.loss_sum.item() / 8, rel=1e-6)


def test_settings_out_of_range_are_refused(tokenizer):
    with pytest.raises(ValueError, match="decoder_mask_ratio"):
        TsdaeConfig(decoder_mask_ratio=1.0)
    with pytest.raises(ValueError, match="choose one of token, sentence"):
        TsdaeConfig(loss_per="batch")
    bare = core_builders.byte_level_tokenizer(["a b"])
    bare.mask_token = None
    with pytest.raises(ValueError, match="mask token"):
        build_objective("tsdae", tokenizer=bare, config=TsdaeConfig(decoder_mask_ratio=0.1))
    with pytest.raises(ValueError, match="mask token"):
        build_objective("mlm", tokenizer=bare, config=MlmConfig())


def test_an_identity_bottleneck_adds_the_vector_itself_and_needs_its_width(tokenizer, make_encoder):
    objective = build_objective("tsdae", tokenizer=tokenizer, config=TsdaeConfig(bottleneck_init="identity"))
    layer = objective.build_model(make_encoder().eval(), seed=0).eval().bottleneck[0]
    width = layer.value.in_features
    hidden, vectors = torch.randn(5, width), torch.randn(2, width)
    rows = torch.tensor([0, 0, 1, 1, 1])
    assert torch.equal(layer(hidden, vectors, rows), layer.norm(hidden + vectors[rows]))
    plain = build_objective("tsdae", tokenizer=tokenizer).build_model(make_encoder().eval(), seed=0).eval()
    assert not torch.equal(plain.bottleneck[0](hidden, vectors, rows), layer(hidden, vectors, rows))
    with pytest.raises(ValueError, match="bottleneck_init"):
        build_bottleneck(make_encoder().backbone, vector_width=width + 1, seed=0, init="identity")
    with pytest.raises(ValueError, match="bottleneck_init"):
        TsdaeConfig(bottleneck_init="ones")
