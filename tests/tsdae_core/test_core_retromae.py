"""RetroMAE against its definition, written out sentence by sentence and token by token."""

import copy
from itertools import pairwise

import core_builders
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import BertConfig

from tsdae_core.objective import build_objective
from tsdae_core.optim import OptimConfig, build_optimizer
from tsdae_core.pooling import Dense, DenseConfig
from tsdae_core.ragged import Ragged
from tsdae_core.retromae import RetromaeConfig
from tsdae_core.step import seed_step, training_step
from tsdae_core.tokens import SpecialFrame, tokenize_texts

ROWS = 8


def encoder_of(family, texts, tokenizer):
    if family == "bert":
        return core_builders.bert_encoder(tokenizer)
    tokenizer = core_builders.byte_level_tokenizer(texts)
    return core_builders.hf_encoder(core_builders.roberta_config(tokenizer), tokenizer)


def setting(encoder, texts, **settings):
    """Objective, batch and model with weights that hide no mistake."""
    objective = build_objective("retromae", tokenizer=encoder.tokenizer, config=RetromaeConfig(**settings))
    tokens = tokenize_texts(texts[:ROWS], encoder.tokenizer, max_tokens=encoder.max_tokens)
    batch = objective.make_batch(tokens, np.arange(ROWS), seed=0, epoch=0)
    return objective, batch, core_builders.shake(objective.build_model(encoder, seed=0), seed=3).train()


def seen_squares(batch):
    """The L x L selections of `decoder_seen`."""
    sizes = batch["lengths"] ** 2
    bits = np.unpackbits(batch["decoder_seen"], count=sizes.sum()).astype(bool)
    return [
        part.reshape(length, length)
        for part, length in zip(np.split(bits, np.cumsum(sizes)[:-1]), batch["lengths"], strict=True)
    ]


def masked_loss(head, hidden, batch, prefix, table):
    places = torch.from_numpy(batch[f"{prefix}target_places"])
    logits = F.linear(head(hidden[places]), table, head.bias)
    targets = torch.from_numpy(batch[f"{prefix}target_ids"]).long()
    return F.cross_entropy(logits, targets, reduction="sum")


def basic_states(model, ids, vector):
    """One layer in both directions, the vector added after its attention."""
    decoder = model.tsdae.decoder_backbone
    (layer,), (add,) = decoder.encoder.layer, model.tsdae.bottleneck
    attended = layer.attention(decoder.embeddings(ids))[0][0]
    attended = add.norm(attended + add.output(add.value(vector)))
    return layer.output(layer.intermediate(attended), attended)


def enhanced_states(model, ids, vector, seen):
    """Two streams, and one softmax for each position and head over what the position sees."""
    embed, layer = model.encoder.backbone.embeddings, model.layer
    context = torch.cat([vector[None], embed(ids)[0][1:]])
    query = embed(inputs_embeds=vector.expand(1, len(context), -1))[0]
    parts = layer.attention.self
    queries, keys, values = parts.query(query), parts.key(context), parts.value(context)
    size = queries.shape[1] // parts.num_attention_heads
    states = []
    for position, sees in enumerate(torch.from_numpy(seen)):
        heads = []
        for columns in torch.arange(queries.shape[1]).split(size):
            scores = keys[sees][:, columns] @ queries[position, columns] / size**0.5
            heads.append(scores.softmax(0) @ values[sees][:, columns])
        attended = layer.attention.output.dense(torch.cat(heads))
        attended = layer.attention.output.LayerNorm(attended + query[position])
        inner = F.gelu(layer.intermediate.dense(attended))
        states.append(layer.output.LayerNorm(layer.output.dense(inner) + attended))
    return torch.stack(states)


def written_out(model, batch, decoding):
    """The loss of a batch without any code of the objective's models."""
    owner = model.tsdae if decoding == "basic" else model
    backbone, head = owner.encoder.backbone, owner.lm_head
    rows = Ragged(batch["input_ids"], batch["lengths"])
    shown = Ragged(batch["decoder_input_ids"], batch["lengths"])
    squares = seen_squares(batch) if decoding == "enhanced" else None
    hidden, rebuilt = [], []
    for index in range(ROWS):
        hidden.append(backbone(torch.tensor(rows.row(index))[None].long()).last_hidden_state[0])
        ids, vector = torch.tensor(shown.row(index))[None].long(), hidden[-1][0]
        if squares is None:
            rebuilt.append(basic_states(model, ids, vector))
        else:
            rebuilt.append(enhanced_states(model, ids, vector, squares[index]))
    table = backbone.embeddings.word_embeddings.weight
    own = table if squares is not None else owner.decoder_backbone.embeddings.word_embeddings.weight
    loss = masked_loss(head, torch.cat(hidden), batch, "", table)
    return loss + masked_loss(head, torch.cat(rebuilt), batch, "decoder_", own)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("decoding", ["enhanced", "basic"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_loss_and_every_gradient_equal_the_definition(family, decoding, packed, texts, tokenizer):
    encoder = encoder_of(family, texts, tokenizer)
    encoder.use_packed = packed
    objective, batch, model = setting(encoder, texts, decoding=decoding)
    plain = copy.deepcopy(model)
    sums = model(batch)
    sums.loss_sum.backward()
    expected = written_out(plain, batch, decoding)
    expected.backward()
    torch.testing.assert_close(sums.loss_sum, expected, rtol=1e-5, atol=1e-3)
    assert sums.num_targets == objective.num_targets(batch)
    for name, param in model.named_parameters():
        want = plain.get_parameter(name).grad
        torch.testing.assert_close(
            param.grad, want, atol=1e-4, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_the_layer_that_decodes_is_the_encoders_own_a_copy_or_fresh(texts, tokenizer, make_encoder):
    built = {}
    for tie in ("tied", "untied", "scratch"):
        encoder = make_encoder()
        objective = build_objective("retromae", tokenizer=tokenizer, config=RetromaeConfig(tie=tie))
        model = built[tie] = objective.build_model(encoder, seed=0)
        tokens = tokenize_texts(texts[:ROWS], tokenizer, max_tokens=64)
        batch = objective.make_batch(tokens, np.arange(ROWS), seed=0, epoch=0)
        model(batch).loss_sum.backward()
        assert not [name for name, param in model.named_parameters() if param.grad is None]
    own = built["untied"].encoder.backbone.encoder.layer[0].state_dict()
    copied, fresh = built["untied"].layer.state_dict(), built["scratch"].layer.state_dict()
    assert built["tied"].layer is None
    assert all(torch.equal(value, copied[name]) for name, value in own.items())
    assert not torch.equal(own["output.dense.weight"], fresh["output.dense.weight"])
    again = build_objective("retromae", tokenizer=tokenizer, config=RetromaeConfig(tie="scratch"))
    same = again.build_model(make_encoder(), seed=0).layer.state_dict()
    assert all(torch.equal(value, same[name]) for name, value in fresh.items())


def test_every_token_is_rebuilt_from_a_selection_of_its_own(tokenizer, texts):
    """Never from itself, always from the vector's place and the end; words are seen or hidden whole."""
    objective = build_objective("retromae", tokenizer=tokenizer)
    tokens = tokenize_texts(texts[:60], tokenizer, max_tokens=64)
    batch = objective.make_batch(tokens, np.arange(60), seed=0, epoch=0)
    assert batch["decoder_target_ids"].tolist() == tokens.ids.values.tolist()
    assert batch["decoder_input_ids"].tolist() == objective.frame.wrap(tokens.ids).values.tolist()
    first, shares, split, differ = 0, [], 0, 0
    for seen, length in zip(seen_squares(batch), tokens.ids.lengths, strict=True):
        starts = tokens.word_starts[first : first + length]
        first += length
        assert seen[:, 0].all()
        assert seen[1:-1, -1].all()
        assert not seen.diagonal()[1:].any()
        inner = seen[1:-1, 1:-1]
        shares.append((inner.sum(), length * (length - 1)))
        for position, row in enumerate(inner):
            words = np.split(row, np.flatnonzero(starts)[1:])
            numbers = np.split(np.arange(length), np.flatnonzero(starts)[1:])
            split += sum(
                len(set(word.tolist())) > 1
                for word, places in zip(words, numbers, strict=True)
                if position not in places
            )
        differ += sum(not np.array_equal(a, b) for a, b in pairwise(inner))
    assert split == 0
    seen_count, all_count = np.array(shares).sum(0)
    assert seen_count / all_count == pytest.approx(0.5, abs=0.03)
    assert differ > 0.9 * (len(tokens.ids.values) - 60)


@pytest.mark.parametrize("decoding", ["enhanced", "basic"])
def test_a_sentence_is_masked_the_same_in_any_batch_and_anew_in_every_epoch(tokenizer, texts, decoding):
    config = RetromaeConfig(decoding=decoding)
    objective = build_objective("retromae", tokenizer=tokenizer, config=config)
    tokens = tokenize_texts(texts[:9], tokenizer, max_tokens=64)
    row_ids = np.arange(9) * 31 + 5
    whole = objective.make_batch(tokens, row_ids, seed=2, epoch=1)
    alone = objective.make_batch(tokens.take([4]), row_ids[[4]], seed=2, epoch=1)
    later = objective.make_batch(tokens, row_ids, seed=2, epoch=2)
    for name in ("input_ids", "decoder_input_ids"):
        rows = Ragged(whole[name], whole["lengths"])
        assert rows.row(4).tolist() == alone[name].tolist()
    assert not np.array_equal(whole["input_ids"], later["input_ids"])
    if decoding == "enhanced":
        assert np.array_equal(seen_squares(whole)[4], seen_squares(alone)[0])
        assert not np.array_equal(whole["decoder_seen"], later["decoder_seen"])
    else:
        assert not np.array_equal(whole["decoder_input_ids"], later["decoder_input_ids"])


@pytest.mark.parametrize("whole_word", [True, False])
def test_both_sides_of_basic_decoding_mask_their_own_share(tokenizer, texts, whole_word):
    """The encoder's side as BERT's, 80/10/10; what the decoder predicts it never sees."""
    config = RetromaeConfig(decoding="basic", whole_word=whole_word)
    objective = build_objective("retromae", tokenizer=tokenizer, config=config)
    tokens = tokenize_texts(texts * 20, tokenizer, max_tokens=64)
    batch = objective.make_batch(tokens, np.arange(len(tokens)), seed=0, epoch=0)
    size = tokens.ids.values.shape[0]
    for prefix, share, hidden in (("", 0.3, 0.8), ("decoder_", 0.5, 1.0)):
        places = batch[f"{prefix}target_places"]
        assert len(places) / size == pytest.approx(share, abs=0.04)
        shown = batch[f"{prefix}input_ids"][places]
        assert np.mean(shown == tokenizer.mask_token_id) == pytest.approx(hidden, abs=0.02)
    both = np.intersect1d(batch["target_places"], batch["decoder_target_places"])
    assert len(both) / size == pytest.approx(0.15, abs=0.03)  # independent of each other


@pytest.mark.parametrize("decoding", ["enhanced", "basic"])
def test_it_learns_under_dropout_and_in_bfloat16(tokenizer, texts, make_encoder, decoding):
    _, batch, model = setting(make_encoder(dropout=0.1), texts, decoding=decoding)
    optimizer = build_optimizer(model, OptimConfig(lr=3e-3))
    losses = []
    for step in range(20):
        seed_step(0, step, 0)
        stats = training_step(
            model,
            batch,
            optimizer,
            global_num_targets=model(batch).num_targets,
            max_grad_norm=1.0,
            autocast_dtype=torch.bfloat16,
            dropout_key=step + 1,
        )
        losses.append(stats.loss)
    assert np.mean(losses[-3:]) < 0.8 * losses[0]


def test_what_it_cannot_do_is_refused(tokenizer, make_encoder):
    objective = build_objective("retromae", tokenizer=tokenizer)
    with pytest.raises(ValueError, match="pooling cls"):
        objective.build_model(make_encoder(pooling="mean"), seed=0)
    distilbert = core_builders.hf_encoder(
        core_builders.family_config("distilbert", tokenizer), tokenizer, pooling="cls"
    )
    told = r"shape \(bert, electra.*this distilbert has not; use decoding basic"
    with pytest.raises(ValueError, match=told):
        objective.build_model(distilbert, seed=0)
    narrow = make_encoder()
    narrow.heads.append(Dense(DenseConfig(32, 16, bias=True, activation="Tanh")))
    with pytest.raises(ValueError, match="width 32, got 16"):
        objective.build_model(narrow, seed=0)
    for name in ("encoder_mask_prob", "decoder_mask_prob"):
        with pytest.raises(ValueError, match=name):
            RetromaeConfig(**{name: 1.0})
    with pytest.raises(ValueError, match="at least 1"):
        RetromaeConfig(decoding="basic", num_decoder_layers=0)
    for changes in ({"num_decoder_layers": 2}, {"bottleneck_init": "identity"}):
        with pytest.raises(ValueError, match="use decoding basic"):
            RetromaeConfig(**changes)
    with pytest.raises(ValueError, match="choose one of enhanced, basic"):
        RetromaeConfig(decoding="best")


def test_a_tokenizer_that_begins_texts_with_no_token_has_no_place_for_the_vector(tokenizer, monkeypatch):
    monkeypatch.setattr("tsdae_core.mlm.special_frame", lambda _: SpecialFrame((), (3,)))
    with pytest.raises(ValueError, match="this tokenizer adds none"):
        build_objective("retromae", tokenizer=tokenizer)
    build_objective("retromae", tokenizer=tokenizer, config=RetromaeConfig(decoding="basic"))


def fill(module, order=None):
    """Weights by a formula, so that another program can be given the same ones."""
    with torch.no_grad():
        for number, name in enumerate(order or sorted(name for name, _ in module.named_parameters())):
            param = module.get_parameter(name)
            wave = torch.sin(torch.arange(param.numel(), dtype=torch.float64) * 0.7 + number) * 0.3
            param.copy_(wave.reshape(param.shape) + (1 if name.lower().endswith("norm.weight") else 0))


def test_enhanced_decoding_has_the_loss_and_the_gradients_of_the_authors_program(tokenizer):
    """Known values of RetroMAE's modules in FlagEmbedding 1.2.11, the authors' package, run with these
    weights, tokens and selections; its two mean losses were multiplied by their 3 and 8 tokens and added."""
    config = BertConfig(
        vocab_size=256, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=40, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    encoder = core_builders.hf_encoder(config, tokenizer)
    model = build_objective("retromae", tokenizer=tokenizer).build_model(encoder, seed=0).train()
    backbone, head, layer = encoder.backbone, model.lm_head, model.layer
    fill(backbone)
    fill(layer)
    fill(head, ["norm.bias", "norm.weight", "dense.bias", "dense.weight"])
    with torch.no_grad():
        head.bias.copy_(torch.cos(torch.arange(256.0)) * 0.2)
    sums = model(known_batch())
    assert sums.num_targets == 11
    assert sums.loss_sum.item() == pytest.approx(63.703323, rel=1e-6)
    sums.loss_sum.backward()
    for owner, norm in ((backbone, 12.4620686), (layer, 1.6437064)):
        assert grad_norm(owner.parameters()) == pytest.approx(norm, rel=1e-5)
    parts = [*head.dense.parameters(), *head.norm.parameters()]
    assert grad_norm(parts) == pytest.approx(15.8174496, rel=1e-5)


def known_batch():
    """Two sentences of 7 and 5 tokens; 3 words hidden from the encoder, and what each token sees."""
    lengths, hidden = np.array([7, 5]), np.array([2, 4, 8])
    ids = [[2, *((5 + (7 * i + 11 * b) % 43) for i in range(n - 2)), 3] for b, n in enumerate(lengths)]
    ids = np.concatenate(ids)
    shown = ids.copy()
    shown[hidden] = 4
    inner = np.array([1, 2, 3, 4, 5, 8, 9, 10])
    squares = []
    for sentence, length in enumerate(lengths):
        row, column = np.indices((length, length))
        seen = (column == 0) | (column == length - 1) | ((row * 5 + column * 3 + sentence) % 4 < 2)
        squares.append((seen & (row != column)).reshape(-1))
    return {
        "row_ids": np.arange(2), "lengths": lengths, "input_ids": shown,
        "target_places": hidden, "target_ids": ids[hidden],
        "decoder_input_ids": ids, "decoder_lengths": lengths,
        "decoder_target_places": inner, "decoder_target_ids": ids[inner],
        "decoder_seen": np.packbits(np.concatenate(squares)),
    }  # fmt: skip


def grad_norm(params):
    return torch.cat([param.grad.flatten() for param in params]).norm().item()
