"""Encoding in 8-bit integers against float32, on the shipped encoder."""

import core_builders
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tsdae_core.int8 as int8
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.pretrained import small_encoder_path

needs_vnni = pytest.mark.skipif(not int8.is_supported(), reason="this CPU has no AVX-512 VNNI")
WORDS = ["index", "vector", "query", "returns", "a", "list", "of", "the", "names", "in", "which", "values"]


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder.load(small_encoder_path())


@pytest.fixture(scope="module")
def sentences():
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, size=length)) for length in rng.integers(1, 30, size=120)]


def cosines(a, b):
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@needs_vnni
def test_vectors_are_close_to_those_of_float32(encoder, sentences):
    exact, vectors = encoder.encode(sentences), encoder.encode(sentences, precision="int8")
    assert vectors.dtype == np.float32
    assert not np.array_equal(exact, vectors)
    found = cosines(exact, vectors)
    assert found.mean() >= 0.99
    assert found.min() >= 0.97
    scaled = encoder.encode(sentences, precision="int8", normalize=True)
    np.testing.assert_allclose(np.linalg.norm(scaled, axis=1), 1, atol=1e-5)


@needs_vnni
def test_a_vector_does_not_depend_on_the_texts_beside_it(encoder, sentences):
    """Up to roundings that fall the other way after sums in another order."""
    together = encoder.encode(sentences, precision="int8")
    for batch_tokens in (60, 900):
        apart = encoder.encode(sentences, precision="int8", batch_tokens=batch_tokens)
        assert cosines(together, apart).min() > 0.9995
    assert np.array_equal(together, encoder.encode(sentences, precision="int8"))
    halves = [encoder.encode(part, precision="int8") for part in (sentences[:50], sentences[50:])]
    assert cosines(together, np.concatenate(halves)).min() > 0.9995


@needs_vnni
def test_weights_are_taken_as_they_are_at_the_call(encoder, sentences):
    before, fingerprint = encoder.encode(sentences[:20], precision="int8"), encoder.fingerprint()
    changed = SentenceEncoder.load(small_encoder_path())
    changed.encode(sentences[:20], precision="int8")
    core_builders.shake(changed.backbone, size=0.05)
    after = changed.encode(sentences[:20], precision="int8")
    assert cosines(before, after).max() < 0.999
    assert cosines(after, changed.encode(sentences[:20])).min() > 0.97
    assert encoder.fingerprint() == fingerprint


@needs_vnni
@pytest.mark.parametrize("shape", [(30, 64), (64, 64), (16, 64), (64, 20)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_product_is_off_by_the_roundings_of_its_factors_only(shape, with_bias):
    torch.manual_seed(0)
    rows, weight = torch.randn(50, shape[1]), torch.randn(shape)
    if shape[0] > shape[1]:  # token states come in, and trained encoders have such columns
        rows[:, 3] *= 30.0
    rows[:, 4], weight[:, 5], weight[6] = 0.0, 0.0, 0.0
    bias = torch.randn(shape[0]) if with_bias else None
    linear = int8.Int8Linear(weight, bias)
    exact = linear(rows)
    torch.testing.assert_close(exact, F.linear(rows, weight, bias))
    linear.freeze()
    found = linear(rows)
    assert found.dtype == torch.float32
    assert not torch.equal(found, exact)
    relative = (found - exact).norm() / exact.norm()
    assert relative < 0.02
    assert torch.equal(torch.cat([linear(row[None]) for row in rows]), found)


@needs_vnni
def test_sums_are_not_cut_off():
    """Were two products added in 16 bits, as without VNNI, the largest would be."""
    linear, ones = int8.Int8Linear(torch.ones(16, 64), None), torch.ones(2, 64)
    linear(ones)
    linear.freeze()
    torch.testing.assert_close(linear(ones), torch.full((2, 16), 64.0), rtol=0.01, atol=0)


def test_what_is_not_fit_for_it_is_refused(tokenizer, texts, make_encoder, monkeypatch):
    with pytest.raises(ValueError, match="choose one of float32, int8"):
        make_encoder().encode(texts[:2], precision="int4")
    other = core_builders.hf_encoder(core_builders.family_config("distilbert", tokenizer), tokenizer)
    with pytest.raises(ValueError, match="BERT's shape, not 'distilbert'; use float32"):
        other.encode(texts[:2], precision="int8")
    with pytest.raises(ValueError, match=r"on a CPU, these are torch\.float32 on meta"):
        int8.check_int8(make_encoder().backbone.to("meta"))
    with pytest.raises(ValueError, match=r"these are torch\.bfloat16 on cpu"):
        make_encoder().to(torch.bfloat16).encode(texts[:2], precision="int8")
    monkeypatch.setattr(int8, "is_supported", lambda: False)
    with pytest.raises(ValueError, match="AVX-512 VNNI"):
        make_encoder().encode(texts[:2], precision="int8")
