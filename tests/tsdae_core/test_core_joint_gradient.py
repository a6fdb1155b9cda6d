"""The joint gradient of a weight that is used several times, against what autograd adds up by itself."""

import core_builders
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tsdae_core.joint_gradient as joint_gradient
from tsdae_core.joint_gradient import JointGradient, reuse_gradients
from tsdae_core.lm_loss import linear_cross_entropy_sum
from tsdae_core.objective import build_objective
from tsdae_core.tokens import tokenize_texts


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def loss_of(weight, bias, states, linear):
    return linear(linear(states, bias).tanh(), bias).square().sum() + (weight.sin() * 0.1).sum()


@pytest.mark.parametrize("bias", [numbers(5), None])
def test_uses_by_linear_and_by_others_have_the_gradient_of_autograd(bias):
    weight, states = numbers(5, 5).requires_grad_(), numbers(7, 5).requires_grad_()
    if bias is not None:
        bias.requires_grad_()
    inputs = [value for value in (weight, states, bias) if value is not None]
    joint = JointGradient(weight)
    found = torch.autograd.grad(loss_of(joint.weight, bias, states, joint.linear), inputs)
    plain = torch.autograd.grad(
        loss_of(weight, bias, states, lambda rows, bias: F.linear(rows, weight, bias)), inputs
    )
    for got, want in zip(found, plain, strict=True):
        torch.testing.assert_close(got, want)


def test_a_frozen_weight_and_frozen_states_get_no_gradient():
    weight, bias = numbers(3, 4), numbers(3).requires_grad_()
    JointGradient(weight).linear(numbers(2, 4), bias).sum().backward()
    torch.testing.assert_close(bias.grad, torch.full((3,), 2.0).double())
    trained, states = numbers(3, 4).requires_grad_(), numbers(2, 4)
    JointGradient(trained).linear(states, bias).sum().backward()
    torch.testing.assert_close(trained.grad, states.sum(0).expand(3, 4))
    with torch.no_grad():
        assert not JointGradient(trained).linear(states, bias).requires_grad


def test_under_autocast_the_product_is_torch_s_own():
    weight, states = torch.randn(3, 4, requires_grad=True), torch.randn(2, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = JointGradient(weight).linear(states, None)
        assert torch.equal(found, F.linear(states, weight))
    found.sum().backward()
    assert weight.grad.dtype == torch.float32


def step_gradient(weight, states, targets):
    joint = JointGradient(weight)
    bias = torch.zeros(weight.shape[0], dtype=weight.dtype)
    linear_cross_entropy_sum(states, joint.weight, bias, targets, table=joint).backward()
    return weight.grad


def test_memory_of_a_large_gradient_serves_again_and_only_once_a_step(monkeypatch):
    monkeypatch.setattr(joint_gradient, "_LARGE_BYTES", 0)
    weight = torch.nn.Parameter(numbers(9, 4))
    states, targets = numbers(6, 4), torch.randint(0, 9, (6,))
    want = step_gradient(weight, states, targets).clone()
    place = weight.grad.data_ptr()
    for _ in range(2):
        reuse_gradients([weight])
        assert weight.grad is None
        torch.testing.assert_close(step_gradient(weight, states, targets), want)
        assert weight.grad.data_ptr() == place
        # A second micro-batch adds to what is there, and must not be formed in the same place.
        torch.testing.assert_close(step_gradient(weight, states, targets), 2 * want)


def test_memory_of_another_precision_is_not_taken(monkeypatch):
    monkeypatch.setattr(joint_gradient, "_LARGE_BYTES", 0)
    weight = torch.nn.Parameter(numbers(9, 4))
    states, targets = numbers(6, 4), torch.randint(0, 9, (6,))
    step_gradient(weight, states, targets)
    reuse_gradients([weight])
    weight.data = weight.data.float()
    assert step_gradient(weight, states.float(), targets).dtype == torch.float32


@pytest.mark.parametrize("place", ["attention.output", "intermediate.dense", "output"])
def test_what_hangs_on_a_part_of_a_layer_is_heard(tokenizer, texts, make_encoder, place):
    objective = build_objective("tsdae", tokenizer=tokenizer)
    batch = objective.make_batch(
        tokenize_texts(texts[:8], tokenizer, max_tokens=64), np.arange(8), seed=0, epoch=0
    )
    model = core_builders.shake(objective.build_model(make_encoder(), seed=0))
    results = []
    for packed in (True, False):
        model.encoder.use_packed = packed
        layer = model.encoder.backbone.encoder.layer[0]
        with layer.get_submodule(place).register_forward_hook(lambda _module, _args, out: 1.5 * out):
            sums = model(batch)
            sums.loss_sum.backward()
        results.append((sums.loss_sum.item(), core_builders.gradients(model)))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-6)
    for name, want in results[1][1].items():
        torch.testing.assert_close(results[0][1][name], want, atol=1e-4, rtol=1e-4, msg=name)
