import core_builders
import numpy as np
import pytest
import torch

from tsdae_core.scratch import ScratchConfig, build_scratch_encoder, train_tokenizer
from tsdae_core.tokens import tokenize_texts

SMALL = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32, "max_tokens": 32}


def test_the_tokenizer_is_deterministic_lower_cased_and_framed(texts):
    one, two = (train_tokenizer(iter(texts), vocab_size=120) for _ in range(2))
    assert one.backend_tokenizer.to_str() == two.backend_tokenizer.to_str()
    assert len(one) <= 120
    assert one("ABC")["input_ids"] == one("abc")["input_ids"]
    assert one.convert_ids_to_tokens(one("a b")["input_ids"]) == ["[CLS]", "a", "b", "[SEP]"]


@pytest.mark.parametrize("start", ["random", "svd"])
def test_weights_depend_on_the_seed_alone_and_leave_the_global_stream(texts, tokenizer, start):
    config = ScratchConfig(**SMALL, embedding_init=start)
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    one = build_scratch_encoder(config, tokenizer, pooling="mean", seed=1, texts=texts)
    torch.manual_seed(99)
    two = build_scratch_encoder(config, tokenizer, pooling="mean", seed=1, texts=texts)
    torch.manual_seed(3)
    build_scratch_encoder(config, tokenizer, pooling="mean", seed=2, texts=texts)
    assert torch.equal(before, torch.random.get_rng_state())
    assert one.fingerprint() == two.fingerprint()


def test_the_svd_start_brings_texts_of_one_topic_together():
    rng = np.random.default_rng(0)
    topics = [["".join(rng.choice(core_builders.LETTERS, size=5)) for _ in range(12)] for _ in range(4)]
    labels = np.arange(400) % 4
    texts = [" ".join(rng.choice(topics[label], size=6)) for label in labels]
    tokenizer = train_tokenizer(texts, vocab_size=400)

    def neighbour_accuracy(start):
        config = ScratchConfig(**SMALL, embedding_init=start)
        vectors = build_scratch_encoder(config, tokenizer, pooling="mean", seed=0, texts=texts).encode(
            texts, normalize=True
        )
        vectors -= vectors.mean(0)
        scores = vectors @ vectors.T
        np.fill_diagonal(scores, -np.inf)
        return np.mean(labels[scores.argmax(1)] == labels)

    assert neighbour_accuracy("svd") > 0.95
    table = build_scratch_encoder(
        ScratchConfig(**SMALL, embedding_init="svd"), tokenizer, pooling="mean", seed=0, texts=texts
    ).backbone.embeddings.word_embeddings.weight
    assert float(table.detach().std()) == pytest.approx(0.02, rel=0.3)


def test_the_lsa_start_averages_factors_in_cls_and_brings_a_head_that_reads_them(texts, tokenizer):
    config = ScratchConfig(**SMALL, embedding_init="lsa", dropout=0.0)
    encoder = build_scratch_encoder(config, tokenizer, pooling="cls", seed=0, texts=texts)
    rows = encoder.backbone.embeddings.word_embeddings.weight.detach().norm(dim=1)
    seen = np.unique(tokenize_texts(texts, tokenizer, max_tokens=config.max_tokens).ids.values)
    assert rows[torch.from_numpy(seen)].numpy() == pytest.approx(1.6, abs=1e-4)
    for layer in encoder.backbone.encoder.layer:
        assert torch.equal(layer.attention.self.value.weight, torch.eye(config.hidden_size))
    head = encoder.lm_head
    assert head is not None
    assert torch.equal(head.dense.weight, torch.eye(config.hidden_size))
    assert float(head.bias.detach().exp().sum()) == pytest.approx(1.0, abs=1e-4)
    # Sentences that share words are nearer than others already.
    same, other = (
        encoder.encode(["a b c d", "a b c e", "w x y z"], normalize=True)[[1, 2]]
        @ encoder.encode(["a b c d"], normalize=True)[0]
    )
    assert same > other


def test_bad_shapes_are_refused(tokenizer):
    with pytest.raises(ValueError, match="multiple of num_heads"):
        ScratchConfig(hidden_size=10, num_heads=4)
    with pytest.raises(ValueError, match="num_layers=0"):
        ScratchConfig(num_layers=0)
    with pytest.raises(ValueError, match="needs texts"):
        build_scratch_encoder(ScratchConfig(**SMALL, embedding_init="svd"), tokenizer, pooling="cls", seed=0)


@pytest.mark.parametrize("given", [[], ["a b"], ["", "a b", " "]])
def test_an_svd_of_too_few_texts_is_refused(tokenizer, given):
    config = ScratchConfig(**SMALL, embedding_init="svd")
    with pytest.raises(ValueError, match="at least two texts"):
        build_scratch_encoder(config, tokenizer, pooling="cls", seed=0, texts=given)


@pytest.mark.parametrize("given", [["a b"] * 3, ["a", "b"], ["a b c", "d"]])
def test_an_svd_of_texts_with_little_in_them_is_finite(tokenizer, given):
    config = ScratchConfig(**SMALL, embedding_init="svd")
    encoder = build_scratch_encoder(config, tokenizer, pooling="cls", seed=0, texts=given)
    assert np.isfinite(encoder.encode(given)).all()
