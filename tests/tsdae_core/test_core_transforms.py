"""Whitening against scikit-learn, the flow against autograd; both as modules of an encoder folder."""

import numpy as np
import pytest
import scipy.stats
import torch
from sentence_transformers import SentenceTransformer
from sklearn.decomposition import PCA

from tsdae_core.encoder import SentenceEncoder
from tsdae_core.flow import Flow, FlowConfig, fit_flow
from tsdae_core.flow_fit import fit_of
from tsdae_core.whitening import fit_whitening
from tsdae_core.whitening_config import WhiteningConfig


@pytest.fixture
def vectors():
    rng = np.random.default_rng(0)
    return (rng.normal(size=(500, 8)) @ rng.normal(size=(8, 8)) * 3 + 40).astype(np.float32)


def apply(module, vectors):
    with torch.no_grad():
        return module(torch.from_numpy(vectors)).numpy()


@pytest.mark.parametrize("num_dims", [None, 3])
def test_whitening_is_pca_whitening_whatever_the_blocks(vectors, num_dims):
    whitened = apply(fit_whitening([vectors], num_dims=num_dims), vectors)
    in_blocks = fit_whitening(np.split(vectors, [1, 7, 300]), num_dims=num_dims)
    np.testing.assert_allclose(apply(in_blocks, vectors), whitened, atol=1e-4)
    expected = PCA(n_components=num_dims, whiten=True, svd_solver="full").fit_transform(
        vectors.astype(np.float64)
    )
    signs = np.sign((expected * whitened).sum(0))
    np.testing.assert_allclose(whitened * signs, expected, atol=2e-4)
    np.testing.assert_allclose(np.cov(whitened.T), np.eye(whitened.shape[1]), atol=1e-3)


def test_whitening_keeps_the_directions_that_vary_and_refuses_more(vectors):
    flat = np.concatenate([vectors, vectors[:, :2]], axis=1).astype(np.float64)
    assert apply(fit_whitening([flat]), flat.astype(np.float32)).shape == (500, 8)
    with pytest.raises(ValueError, match="8 directions only"):
        fit_whitening([flat], num_dims=9)
    with pytest.raises(ValueError, match="at least 2"):
        fit_whitening([flat[:1]])
    with pytest.raises(ValueError, match="0 directions only"):
        fit_whitening([np.ones((3, 2))])


@pytest.fixture(scope="module")
def shaken_flow():
    flow = Flow(6, FlowConfig(num_steps=3, hidden_size=16), seed=1).double()
    with torch.no_grad():
        for param in flow.parameters():
            param.add_(0.3 * torch.randn(param.shape, generator=torch.Generator().manual_seed(0)))
        flow.mean += 2.0
        flow.std *= 1.5
    return flow


def test_the_flow_inverts_and_its_log_determinant_is_that_of_the_jacobian(shaken_flow):
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(3)).double()
    latent, log_det = shaken_flow.latent_and_log_det(x)
    torch.testing.assert_close(shaken_flow(x), latent)
    torch.testing.assert_close(shaken_flow.inverse(latent), x)
    for row in range(5):
        jacobian = torch.autograd.functional.jacobian(lambda v: shaken_flow(v[None])[0], x[row])
        torch.testing.assert_close(log_det[row], torch.linalg.slogdet(jacobian).logabsdet)
    normal = torch.distributions.Normal(0.0, 1.0)
    torch.testing.assert_close(shaken_flow.log_prob(x), normal.log_prob(latent).sum(1) + log_det)
    assert float((jacobian - torch.diag(jacobian.diag())).abs().max()) > 0.01  # it mixes dimensions


def test_a_flow_is_likelier_than_standardisation_on_vectors_it_has_not_seen(vectors):
    seen, held_out = vectors[:400], vectors[400:]
    config = FlowConfig(lr=1e-2, num_steps=2, hidden_size=32, num_epochs=5)
    flow, _ = fit_flow(seen, config, seed=0)
    fit = fit_of(flow, held_out)
    alone = scipy.stats.norm.logpdf(held_out.astype(float), seen.mean(0), seen.std(0, ddof=1)).sum(1).mean()
    assert fit.log_prob_before == pytest.approx(alone, abs=1e-3)
    with torch.no_grad():
        density = float(flow.log_prob(torch.from_numpy(held_out)).mean())
    assert fit.log_prob_after == pytest.approx(density, abs=1e-3)
    standard = (held_out - seen.mean(0)) / seen.std(0, ddof=1)
    far = np.linalg.norm(apply(flow, held_out) - standard) / np.linalg.norm(standard)
    assert fit.moved == pytest.approx(far, rel=1e-3)
    assert fit.log_prob_after > fit.log_prob_before + 0.3
    assert not fit.is_standardisation


def test_at_the_papers_rate_few_vectors_leave_a_flow_a_standardisation(vectors):
    flow, _ = fit_flow(vectors, FlowConfig(), seed=0)
    fit = fit_of(flow, vectors)
    assert 0 < fit.moved < 0.01
    assert fit.is_standardisation
    assert abs(fit.log_prob_after - fit.log_prob_before) < 0.05
    assert f"{fit.log_prob_before:,.3f} -> {fit.log_prob_after:,.3f} nats per vector" in fit.in_words


def test_a_fitted_flow_starts_as_standardisation_and_gains_likelihood(vectors):
    tiny = FlowConfig(lr=1e-12, num_steps=2, hidden_size=8)
    start, _ = fit_flow(vectors, tiny, seed=0)
    standard = (vectors - vectors.mean(0)) / vectors.std(0, ddof=1)
    np.testing.assert_allclose(apply(start, vectors), standard, atol=1e-4)
    config = FlowConfig(lr=1e-2, num_steps=2, hidden_size=32, num_epochs=5)
    flow, losses = fit_flow(vectors, config, seed=0)
    assert losses[-1] < losses[0] - 0.5
    again, same = fit_flow(vectors, config, seed=0)
    assert same == losses
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in flow.state_dict().items())


@pytest.mark.parametrize("kind", ["whitening", "flow"])
def test_an_encoder_folder_carries_its_transform(make_encoder, texts, tmp_path, kind):
    encoder = make_encoder(pooling="mean")
    plain = encoder.encode(texts[:80])
    before = encoder.fingerprint()
    if kind == "whitening":
        transform = fit_whitening([plain], num_dims=10)
    else:
        transform, _ = fit_flow(plain, FlowConfig(lr=1e-2, hidden_size=16), seed=0)
    encoder.heads.append(transform)
    vectors = encoder.encode(texts[:80])
    np.testing.assert_allclose(vectors, apply(transform, plain), atol=1e-3, rtol=1e-3)
    assert encoder.dim == vectors.shape[1] == (10 if kind == "whitening" else plain.shape[1])
    encoder.save(tmp_path)
    again = SentenceEncoder.load(tmp_path)
    assert again.fingerprint() == encoder.fingerprint() != before
    np.testing.assert_array_equal(again.encode(texts[:80]), vectors)
    if kind == "whitening":
        theirs = SentenceTransformer(str(tmp_path), device="cpu").encode(texts[:80])
        np.testing.assert_allclose(theirs, vectors, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("changes", [{"lr": 0.0}, {"num_steps": 0}, {"weight_decay": -1.0}])
def test_flow_settings_out_of_range_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        FlowConfig(**changes)


def test_whitening_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match="num_dims=0"):
        WhiteningConfig(num_dims=0)


def test_a_flow_needs_two_dimensions_and_two_vectors():
    with pytest.raises(ValueError, match="2 dimensions"):
        Flow(1, FlowConfig(), seed=0)
    with pytest.raises(ValueError, match="2 vectors"):
        fit_flow(np.ones((1, 3)), seed=0)
