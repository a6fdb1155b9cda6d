import core_builders
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tsdae_core.objective import build_objective
from tsdae_core.ragged import Ragged
from tsdae_core.retromae import RetromaeConfig
from tsdae_core.tokens import tokenize_texts

ROWS = 8


@pytest.fixture
def setting(tokenizer, texts, make_encoder):
    objective = build_objective("retromae", tokenizer=tokenizer)
    tokens = tokenize_texts(texts[:ROWS], tokenizer, max_tokens=64)
    batch = objective.make_batch(tokens, np.arange(ROWS), seed=0, epoch=0)
    model = core_builders.shake(objective.build_model(make_encoder(), seed=0)).eval()
    return objective, batch, model


def masked_loss(head, hidden, batch, prefix, table):
    places = torch.from_numpy(batch[f"{prefix}target_places"])
    logits = F.linear(head(hidden[places]), table, head.bias)
    targets = torch.from_numpy(batch[f"{prefix}target_ids"]).long()
    return F.cross_entropy(logits, targets, reduction="sum")


@pytest.mark.parametrize("packed", [True, False])
def test_the_loss_is_mlm_of_the_encoder_and_masked_rebuilding_from_the_vector(setting, packed):
    """The decoder written out sentence by sentence: embeddings, one layer, vector after its attention."""
    objective, batch, model = setting
    model.tsdae.encoder.use_packed = packed
    sums = model(batch)
    backbone, decoder = model.tsdae.encoder.backbone, model.tsdae.decoder_backbone
    rows = Ragged(batch["input_ids"], batch["lengths"])
    shown = Ragged(batch["decoder_input_ids"], batch["decoder_lengths"])
    hidden, rebuilt = [], []
    for index in range(ROWS):
        ids = torch.tensor(rows.row(index))[None].long()
        hidden.append(backbone(ids).last_hidden_state[0])
        (layer,) = decoder.encoder.layer
        state = decoder.embeddings(torch.tensor(shown.row(index))[None].long())
        attended = layer.attention(state)[0][0]
        (add,) = model.tsdae.bottleneck
        attended = add.norm(attended + add.output(add.value(hidden[-1][0])))
        rebuilt.append(layer.output(layer.intermediate(attended), attended))
    head = model.tsdae.lm_head
    want = masked_loss(head, torch.cat(hidden), batch, "", backbone.embeddings.word_embeddings.weight)
    want = want + masked_loss(
        head, torch.cat(rebuilt), batch, "decoder_", decoder.embeddings.word_embeddings.weight
    )
    torch.testing.assert_close(sums.loss_sum, want, rtol=1e-5, atol=1e-3)
    assert sums.num_targets == objective.num_targets(batch)
    sums.loss_sum.backward()
    assert not [name for name, param in model.named_parameters() if param.grad is None]


def test_both_sides_mask_their_own_share_of_tokens(tokenizer, texts):
    objective = build_objective("retromae", tokenizer=tokenizer)
    tokens = tokenize_texts(texts * 20, tokenizer, max_tokens=64)
    batch = objective.make_batch(tokens, np.arange(len(tokens)), seed=0, epoch=0)
    size = tokens.ids.values.shape[0]
    for prefix, share in (("", 0.3), ("decoder_", 0.5)):
        assert len(batch[f"{prefix}target_places"]) / size == pytest.approx(share, abs=0.03)
        assert (batch[f"{prefix}input_ids"][batch[f"{prefix}target_places"]] == tokenizer.mask_token_id).all()
    both = np.intersect1d(batch["target_places"], batch["decoder_target_places"])
    assert len(both) / size == pytest.approx(0.15, abs=0.03)  # independent of each other


def test_other_pooling_and_shares_out_of_range_are_refused(tokenizer, make_encoder):
    objective = build_objective("retromae", tokenizer=tokenizer)
    with pytest.raises(ValueError, match="pooling cls"):
        objective.build_model(make_encoder(pooling="mean"), seed=0)
    for name in ("encoder_mask_prob", "decoder_mask_prob"):
        with pytest.raises(ValueError, match=name):
            RetromaeConfig(**{name: 1.0})
    with pytest.raises(ValueError, match="at least 1"):
        RetromaeConfig(num_decoder_layers=0)
