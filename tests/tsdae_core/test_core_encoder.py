import json
import logging

import core_builders
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForMaskedLM, DistilBertConfig

from tsdae_core.encoder import SentenceEncoder, load_lm_head
from tsdae_core.lm_head import LmHead
from tsdae_core.pooling import Dense, DenseConfig, Normalize


def with_heads(encoder, *heads):
    return SentenceEncoder(
        encoder.backbone, encoder.tokenizer, pooling=encoder.pooling, max_tokens=64, heads=heads
    )


def reference_vectors(folder, texts):
    return SentenceTransformer(str(folder), device="cpu").encode(texts, batch_size=16)


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
@pytest.mark.parametrize("with_head", [True, False])
def test_a_saved_encoder_gives_equal_vectors_everywhere(texts, make_encoder, tmp_path, pooling, with_head):
    encoder = make_encoder(pooling=pooling).eval()
    head = core_builders.shake(LmHead.for_backbone(encoder.backbone, seed=0)) if with_head else None
    encoder.save(tmp_path, lm_head=head)
    vectors = encoder.encode(texts)
    np.testing.assert_allclose(vectors, reference_vectors(tmp_path, texts), atol=1e-5)
    loaded = SentenceEncoder.load(tmp_path)
    assert loaded.pooling == pooling
    assert loaded.max_tokens == encoder.max_tokens
    assert np.array_equal(loaded.encode(texts), vectors)
    assert loaded.fingerprint() == encoder.fingerprint()
    inputs = encoder.tokenizer(texts[:3], return_tensors="pt", padding=True)
    first = AutoModel.from_pretrained(tmp_path).eval()(**inputs).last_hidden_state[:, 0].detach().numpy()
    if pooling == "cls":
        np.testing.assert_allclose(vectors[:3], first, atol=1e-5)
    assert not list(tmp_path.glob("*.bin"))
    assert (tmp_path / "model.safetensors").is_file()


def test_the_saved_head_comes_back_and_works_in_the_masked_lm_class(make_encoder, tmp_path, caplog):
    encoder = make_encoder().eval()
    head = core_builders.shake(LmHead.for_backbone(encoder.backbone, seed=0))
    encoder.save(tmp_path / "with", lm_head=head)
    encoder.save(tmp_path / "without")
    loaded = load_lm_head(tmp_path / "with")
    assert all(torch.equal(loaded.state_dict()[name], value) for name, value in head.state_dict().items())
    with caplog.at_level(logging.INFO, logger="tsdae_core"):
        assert load_lm_head(tmp_path / "without") is None
    assert "no language-model head" in caplog.text
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "with").eval()
    ids = torch.arange(5, 15)[None]
    hidden = encoder.backbone(ids).last_hidden_state[0]
    logits = head(hidden) @ encoder.backbone.embeddings.word_embeddings.weight.T + head.bias
    torch.testing.assert_close(model(ids).logits[0], logits, atol=1e-5, rtol=1e-5)


def test_a_plain_checkpoint_is_loaded_without_pooler_and_pools_by_cls(make_encoder, texts, tmp_path):
    encoder = make_encoder().eval()
    model = AutoModel.from_config(encoder.backbone.config)
    model.save_pretrained(tmp_path)
    encoder.tokenizer.save_pretrained(tmp_path)
    loaded = SentenceEncoder.load(tmp_path)
    assert loaded.pooling == "cls"
    assert not [name for name, _ in loaded.named_parameters() if "pooler" in name]
    assert SentenceEncoder.load(tmp_path, pooling="mean", max_tokens=12).max_tokens == 12
    ids = loaded.tokenizer(texts[0], return_tensors="pt")
    want = model.eval()(**ids).last_hidden_state[0, 0].detach().numpy()
    np.testing.assert_allclose(loaded.encode(texts[:1])[0], want, atol=1e-5)


def test_dense_and_normalize_modules_of_a_folder_are_kept(texts, make_encoder, tmp_path):
    dense = core_builders.shake(Dense(DenseConfig(32, 7, True, "Tanh")), size=0.5)
    encoder = with_heads(make_encoder(pooling="mean"), dense, Normalize()).eval()
    encoder.save(tmp_path / "ours")
    vectors = encoder.encode(texts)
    assert vectors.shape == (len(texts), encoder.dim) == (len(texts), 7)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    reference = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    np.testing.assert_allclose(vectors, reference.encode(texts), atol=1e-5)
    reference.save(str(tmp_path / "theirs"))  # the other library's own writing of the same model
    again = SentenceEncoder.load(tmp_path / "theirs")
    np.testing.assert_allclose(vectors, again.encode(texts), atol=1e-6)
    assert again.max_tokens == encoder.max_tokens


def test_unsupported_modules_and_missing_folders_are_refused(make_encoder, tmp_path):
    make_encoder().save(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": "2_LSTM", "type": "sentence_transformers.models.LSTM"})
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValueError, match="LSTM"):
        SentenceEncoder.load(tmp_path)
    with pytest.raises(ValueError, match="no folder here"):
        SentenceEncoder.load(tmp_path / "missing")


@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(0, 40), max_size=30), st.sampled_from([1, 50, 4096]), st.booleans())
def test_encode_keeps_order_for_any_batching(tokenizer, lengths, batch_tokens, packed):
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(core_builders.LETTERS, size=length)) for length in lengths]
    encoder = core_builders.bert_encoder(tokenizer, pooling="mean").eval()
    encoder.use_packed = packed
    vectors = encoder.encode((text for text in texts), batch_tokens=batch_tokens)
    assert vectors.dtype == np.float32
    assert vectors.shape == (len(texts), 32)
    for text, vector in zip(texts[:5], vectors, strict=False):
        np.testing.assert_allclose(encoder.encode([text])[0], vector, atol=1e-5)


@pytest.mark.parametrize("packed", [True, False])
def test_encode_pads_no_more_than_it_must(tokenizer, texts, make_encoder, packed):
    """Packed: not at all outside attention. Padded: to the longest of texts of neighbouring lengths."""
    encoder = make_encoder().eval()
    encoder.use_packed = packed
    seen = []
    table = encoder.backbone.embeddings.word_embeddings
    table.register_forward_hook(lambda _module, _args, out: seen.append(tuple(out.shape[:2])))
    lengths = sorted(len(ids) for ids in tokenizer(texts, max_length=64, truncation=True)["input_ids"])
    encoder.encode(iter(texts), batch_tokens=300)
    if packed:
        assert sum(rows * length for rows, length in seen) == sum(lengths)
        return
    taken = 0
    for rows, length in seen:
        assert length == lengths[taken + rows - 1]  # the longest of the batch, no more
        assert rows * length <= 300
        taken += rows
        if taken < len(lengths):
            assert (rows + 1) * lengths[taken] > 300  # one more would not have fitted
    assert taken == len(texts)


def test_encode_equals_sentence_transformers_on_odd_texts(make_encoder, tmp_path):
    texts = ["", "a", "😀", "ab " * 500, "Ab, cd? ef!", " \n\t"]
    encoder = make_encoder().train()
    encoder.save(tmp_path)
    np.testing.assert_allclose(encoder.encode(texts), reference_vectors(tmp_path, texts), atol=1e-5)
    assert encoder.training  # encode leaves the mode as it was


def test_normalize_is_the_callers_choice(texts, make_encoder):
    encoder = make_encoder()
    plain, unit = encoder.encode(texts), encoder.encode(texts, normalize=True)
    np.testing.assert_allclose(unit, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-6)
    with pytest.raises(ValueError, match="batch_tokens"):
        encoder.encode(texts, batch_tokens=0)


def test_the_fingerprint_changes_with_whatever_changes_a_vector(tokenizer, make_encoder):
    prints = {
        make_encoder().fingerprint(),
        make_encoder(pooling="mean").fingerprint(),
        make_encoder(seed=1).fingerprint(),
    }
    prints.add(with_heads(make_encoder(), Normalize()).fingerprint())
    encoder = make_encoder()
    with torch.no_grad():
        next(encoder.parameters())[3, 3] += 1e-6
    prints.add(encoder.fingerprint())
    assert len(prints) == 5
    assert make_encoder().fingerprint() == make_encoder().fingerprint()


def test_more_tokens_than_positions_are_refused(make_encoder):
    encoder = make_encoder()
    with pytest.raises(ValueError, match="64 positions"):
        SentenceEncoder(encoder.backbone, encoder.tokenizer, pooling="cls", max_tokens=65)


@pytest.mark.parametrize("family", ["roberta", "distilbert"])
def test_other_families_save_with_head_and_load_back(texts, tmp_path, family):
    tokenizer = core_builders.byte_level_tokenizer(texts)
    sizes = {"dim": 32, "n_heads": 4, "n_layers": 2, "hidden_dim": 48, "max_position_embeddings": 64}
    config = {
        "roberta": lambda: core_builders.roberta_config(tokenizer),
        "distilbert": lambda: DistilBertConfig(vocab_size=len(tokenizer), **sizes),
    }[family]()
    encoder = core_builders.hf_encoder(config, tokenizer).eval()
    head = core_builders.shake(LmHead.for_backbone(encoder.backbone, seed=0))
    encoder.save(tmp_path, lm_head=head)
    np.testing.assert_allclose(encoder.encode(texts), reference_vectors(tmp_path, texts), atol=1e-5)
    loaded = SentenceEncoder.load(tmp_path)
    assert loaded.fingerprint() == encoder.fingerprint()
    assert all(
        torch.equal(loaded.lm_head.state_dict()[name], value) for name, value in head.state_dict().items()
    )


def test_unknown_pooling_and_lengths_are_refused(make_encoder, tmp_path):
    make_encoder().save(tmp_path)
    with pytest.raises(ValueError, match="choose one of cls, mean, max"):
        SentenceEncoder.load(tmp_path, pooling="average")
    with pytest.raises(ValueError, match="max_tokens=0 must be positive"):
        SentenceEncoder.load(tmp_path, max_tokens=0)
