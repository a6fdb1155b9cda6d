import pickle

import core_builders
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tsdae_core.mlm import MlmConfig
from tsdae_core.noise import NoiseConfig
from tsdae_core.objective import build_objective, make_batches
from tsdae_core.protected import ProtectedConfig
from tsdae_core.ragged import Ragged
from tsdae_core.tokens import SpecialFrame, tokenize_texts
from tsdae_core.tsdae import TsdaeConfig


@pytest.mark.parametrize("name", ["tsdae", "mlm"])
def test_objectives_pickle_without_model_and_make_flat_arrays(tokenizer, texts, name):
    objective = pickle.loads(pickle.dumps(build_objective(name, tokenizer=tokenizer)))
    tokens = tokenize_texts(texts[:6], tokenizer, max_tokens=64)
    batch = objective.make_batch(tokens, np.arange(6), seed=0, epoch=0)
    assert objective.name == name
    assert all(isinstance(value, np.ndarray) and value.ndim == 1 for value in batch.values())
    assert batch["row_ids"].tolist() == list(range(6))


def test_tsdae_batches_hold_framed_noise_and_framed_text(tokenizer, texts):
    objective = build_objective("tsdae", tokenizer=tokenizer)
    tokens = tokenize_texts(texts, tokenizer, max_tokens=64)
    batch = objective.make_batch(tokens, np.arange(len(texts)), seed=0, epoch=0)
    source = Ragged(batch["source_ids"], batch["source_lengths"])
    target = Ragged(batch["target_ids"], batch["target_lengths"])
    for index, text in enumerate(texts):
        assert target.row(index).tolist() == tokenizer(text, max_length=64, truncation=True)["input_ids"]
        row = source.row(index)
        assert (row[0], row[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
        assert 3 <= len(row) <= len(target.row(index))
    assert objective.num_targets(batch) == target.values.shape[0] - len(texts)
    assert 1 - (source.lengths - 2).sum() / (target.lengths - 2).sum() == pytest.approx(0.6, abs=0.05)


def test_the_end_token_is_a_target_even_when_it_is_also_the_padding(texts):
    tokenizer = core_builders.byte_level_tokenizer(texts)
    tokenizer.pad_token = tokenizer.eos_token
    objective = build_objective("tsdae", tokenizer=tokenizer)
    tokens = tokenize_texts(texts[:9], tokenizer, max_tokens=40)
    batch = objective.make_batch(tokens, np.arange(9), seed=0, epoch=0)
    model = objective.build_model(
        core_builders.hf_encoder(core_builders.roberta_config(tokenizer), tokenizer), seed=0
    ).eval()
    for packed in (True, False):
        model.encoder.use_packed = packed
        assert model(batch).num_targets == tokens.ids.values.shape[0] + 9
    ends = np.cumsum(batch["target_lengths"]) - 1
    assert (batch["target_ids"][ends] == tokenizer.eos_token_id).all()


def test_a_text_without_any_target_is_refused(tokenizer):
    objective = build_objective("tsdae", tokenizer=tokenizer)
    objective.frame = SpecialFrame((2,), ())
    with pytest.raises(ValueError, match="no token to predict"):
        objective.make_batch(
            tokenize_texts(["", "a"], tokenizer, max_tokens=8), np.arange(2), seed=0, epoch=0
        )


def test_the_decoder_is_tied_to_the_encoder_in_memory_not_to_a_file(tokenizer, texts, make_encoder):
    """A change of the encoder in memory is a change of the decoder, and no parameter exists twice."""
    objective = build_objective("tsdae", tokenizer=tokenizer)
    encoder = make_encoder().eval()
    model = objective.build_model(encoder, seed=0).eval()
    tokens = tokenize_texts(texts[:4], tokenizer, max_tokens=40)
    batch = objective.make_batch(tokens, np.arange(4), seed=0, epoch=0)
    vectors = encoder.embed(batch["source_ids"], batch["source_lengths"]).detach()
    before = model.reconstruct(vectors, batch["target_ids"], batch["target_lengths"]).loss_sum
    with torch.no_grad():
        encoder.backbone.encoder.layer[0].output.dense.weight.mul_(2)
    after = model.reconstruct(vectors, batch["target_ids"], batch["target_lengths"]).loss_sum
    assert not torch.equal(before, after)
    assert model.encoder is encoder
    pointers = [param.data_ptr() for param in model.parameters()]
    assert len(set(pointers)) == len(pointers) == len(model.state_dict())


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=10), st.integers(0, 3), st.data())
def test_mlm_batches_are_the_same_for_any_batching(tokenizer, lengths, seed, data):
    rng = np.random.default_rng(0)
    tokens = tokenize_texts(
        [" ".join(rng.choice(core_builders.LETTERS, size=n)) for n in lengths], tokenizer, max_tokens=64
    )
    objective = build_objective("mlm", tokenizer=tokenizer)
    row_ids = np.array(
        data.draw(st.lists(st.integers(0, 2**40), min_size=len(lengths), max_size=len(lengths)))
    )
    whole = objective.make_batch(tokens, row_ids, seed=seed, epoch=1)
    rows = Ragged(whole["input_ids"], whole["lengths"])
    for index, length in enumerate(lengths):
        alone = objective.make_batch(tokens.take([index]), row_ids[[index]], seed=seed, epoch=1)
        assert rows.row(index).tolist() == alone["input_ids"].tolist()
        assert (len(alone["target_places"]) >= 1) == (length > 0)


def test_mlm_hides_the_right_shares_and_never_special_tokens(tokenizer, texts):
    objective = build_objective("mlm", tokenizer=tokenizer)
    tokens = tokenize_texts(texts * 40, tokenizer, max_tokens=64)
    batch = objective.make_batch(tokens, np.arange(len(tokens)), seed=0, epoch=0)
    places, targets = batch["target_places"], batch["target_ids"]
    original = objective.frame.wrap(tokens.ids).values
    assert np.array_equal(original[places], targets)
    untouched = np.ones(original.shape[0], dtype=bool)
    untouched[places] = False
    assert np.array_equal(batch["input_ids"][untouched], original[untouched])
    assert not np.isin(targets, [tokenizer.cls_token_id, tokenizer.sep_token_id]).any()
    shown = batch["input_ids"][places]
    assert np.mean(shown == tokenizer.mask_token_id) == pytest.approx(0.8, abs=0.02)
    assert np.mean(shown == targets) == pytest.approx(0.1, abs=0.02)
    assert 0.15 <= len(places) / tokens.ids.values.shape[0] < 0.20  # above 0.15: at least one per text


def test_whole_word_mlm_predicts_all_pieces_of_a_word_at_the_same_rate(tokenizer, texts):
    objective = build_objective("mlm", tokenizer=tokenizer, config=MlmConfig(whole_word=True))
    tokens = tokenize_texts(texts * 8, tokenizer, max_tokens=64)
    row_ids = np.arange(len(tokens))
    batch = objective.make_batch(tokens, row_ids, seed=0, epoch=0)
    original = objective.frame.wrap(tokens.ids)
    hidden = np.zeros(original.values.shape[0], dtype=bool)
    hidden[batch["target_places"]] = True
    kept = np.ones(original.values.shape[0], dtype=bool)
    kept[original.offsets[:-1]] = kept[original.offsets[1:] - 1] = False
    hidden = hidden[kept]
    for word in np.split(hidden, np.flatnonzero(tokens.word_starts)[1:]):
        assert word.all() or not word.any()
    assert (np.diff(np.flatnonzero(tokens.word_starts)) > 1).mean() > 0.3
    assert 0.15 <= hidden.mean() < 0.21
    shown = batch["input_ids"][batch["target_places"]]
    assert np.mean(shown == tokenizer.mask_token_id) == pytest.approx(0.8, abs=0.03)
    other = objective.make_batch(tokens, row_ids, seed=0, epoch=1)
    assert not np.array_equal(batch["target_places"], other["target_places"])  # drawn anew in every epoch
    alone = objective.make_batch(tokens.take([5]), row_ids[[5]], seed=0, epoch=0)
    assert alone["input_ids"].tolist() == Ragged(batch["input_ids"], batch["lengths"]).row(5).tolist()


@pytest.mark.parametrize("packed", [True, False])
def test_mlm_loss_is_cross_entropy_on_hidden_tokens_only(tokenizer, texts, make_encoder, packed):
    objective = build_objective("mlm", tokenizer=tokenizer)
    encoder = make_encoder().eval()
    encoder.use_packed = packed
    model = core_builders.shake(objective.build_model(encoder, seed=0)).eval()
    batch = objective.make_batch(
        tokenize_texts(texts[:10], tokenizer, max_tokens=64), np.arange(10), seed=0, epoch=0
    )
    sums = model(batch)
    sums.loss_sum.backward()
    assert not [
        name for name, param in model.named_parameters() if param.grad is None or not param.grad.any()
    ]
    rows = Ragged(batch["input_ids"], batch["lengths"])
    hidden = torch.cat(
        [model.backbone(torch.tensor(rows.row(i))[None].long()).last_hidden_state[0] for i in range(10)]
    )
    states = model.lm_head(hidden[torch.from_numpy(batch["target_places"])])
    logits = F.linear(states, model.backbone.embeddings.word_embeddings.weight, model.lm_head.bias)
    want = F.cross_entropy(logits, torch.from_numpy(batch["target_ids"]).long(), reduction="sum")
    torch.testing.assert_close(sums.loss_sum, want, rtol=1e-5, atol=1e-4)
    assert sums.num_targets == objective.num_targets(batch) == len(batch["target_places"])


def test_unknown_objectives_and_foreign_configs_are_refused(tokenizer):
    with pytest.raises(ValueError, match="choose one of tsdae, mlm"):
        build_objective("tsda", tokenizer=tokenizer)
    with pytest.raises(ValueError, match="needs a TsdaeConfig"):
        build_objective("tsdae", tokenizer=tokenizer, config=MlmConfig())
    with pytest.raises(ValueError, match="choose one of tied"):
        TsdaeConfig(tie="both")
    with pytest.raises(ValueError, match="shares"):
        MlmConfig(mask_prob=1.2)


def test_the_checkpoints_own_head_is_used_and_a_fresh_one_depends_on_the_seed(
    tokenizer, make_encoder, tmp_path
):
    from tsdae_core.encoder import SentenceEncoder

    objective = build_objective(
        "tsdae", tokenizer=tokenizer, config=TsdaeConfig(noise=NoiseConfig(ratio=0.3))
    )
    model = core_builders.shake(objective.build_model(make_encoder(), seed=0))
    model.encoder.save(tmp_path, lm_head=model.lm_head)
    again = objective.build_model(SentenceEncoder.load(tmp_path), seed=7)
    for name, value in model.lm_head.state_dict().items():
        assert torch.equal(value, again.lm_head.state_dict()[name])
    one, same, other = (objective.build_model(make_encoder(), seed=seed) for seed in (0, 0, 1))
    for name, value in one.state_dict().items():
        assert torch.equal(value, same.state_dict()[name])
    assert not torch.equal(one.lm_head.dense.weight, other.lm_head.dense.weight)
    assert not torch.equal(one.bottleneck[0].value.weight, other.bottleneck[0].value.weight)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("name", "given"), [("tsdae", ["a"]), ("mlm", ["a"]), ("mlm", ["a", ""]), ("mlm", [""])]
)
def test_texts_of_one_token_and_none_train(tokenizer, make_encoder, name, given, packed):
    objective = build_objective(name, tokenizer=tokenizer)
    tokens = tokenize_texts(given, tokenizer, max_tokens=8)
    batch = objective.make_batch(tokens, np.arange(len(given)), seed=0, epoch=0)
    encoder = make_encoder()
    encoder.use_packed = packed
    model = objective.build_model(encoder, seed=0)
    sums = model(batch)
    sums.loss_sum.backward()
    assert (
        sums.num_targets
        == objective.num_targets(batch)
        == (0 if given == [""] else {"tsdae": 2, "mlm": 1}[name])
    )
    assert not [
        key
        for key, param in model.named_parameters()
        if param.grad is None or not param.grad.isfinite().all()
    ]


_CUT = {
    "tsdae": TsdaeConfig(),
    "tsdae, masked decoder": TsdaeConfig(decoder_mask_ratio=0.5),
    "tsdae, words added": TsdaeConfig(noise=NoiseConfig(kind="add")),
    "protected": ProtectedConfig(),
    "mlm": MlmConfig(),
}


@pytest.mark.parametrize("name", _CUT)
@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(0, 4), max_size=6), st.integers(0, 2))
def test_batches_made_at_once_are_those_made_one_by_one(tokenizer, texts, name, sizes, epoch):
    objective = build_objective(name.split(",")[0], tokenizer=tokenizer, config=_CUT[name])
    bounds = np.cumsum([0, *sizes])
    row_ids = np.arange(bounds[-1]) * 7 + 3
    tokens = tokenize_texts(texts[: bounds[-1]], tokenizer, max_tokens=64)
    batches = make_batches(objective, tokens, row_ids, bounds, seed=1, epoch=epoch)
    assert len(batches) == len(sizes)
    for batch, start, end in zip(batches, bounds, bounds[1:], strict=False):
        rows = np.arange(start, end)
        alone = objective.make_batch(tokens.take(rows), row_ids[rows], seed=1, epoch=epoch)
        assert batch.keys() == alone.keys()
        for key, values in alone.items():
            assert batch[key].dtype == values.dtype
            np.testing.assert_array_equal(batch[key], values)
