import pytest
import torch
import torch.nn.functional as F

import tsdae_core.lm_loss as lm_loss


@pytest.mark.parametrize("block_size", [1, 40 * 37, 1 << 23])
def test_loss_and_gradients_equal_plain_cross_entropy(block_size, monkeypatch):
    monkeypatch.setattr(lm_loss, "_BLOCK_SIZE", block_size)
    monkeypatch.setattr(lm_loss, "_MIN_ROWS", 7)
    torch.manual_seed(0)
    inputs = [torch.randn(101, 8) * 3, torch.randn(40, 8), torch.randn(40)]
    targets = torch.randint(0, 40, (101,))
    ours = [value.clone().requires_grad_() for value in inputs]
    plain = [value.clone().requires_grad_() for value in inputs]
    loss = lm_loss.linear_cross_entropy_sum(*ours, targets)
    expected = F.cross_entropy(F.linear(*plain), targets, reduction="sum")
    (loss * 0.37).backward()
    (expected * 0.37).backward()
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-4)
    for got, want in zip(ours, plain, strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-4, atol=1e-5)


def test_huge_logits_stay_finite_and_no_targets_cost_nothing():
    weight, bias = torch.eye(4) * 1e4, torch.zeros(4)
    loss = lm_loss.linear_cross_entropy_sum(torch.eye(4) * 1e4, weight, bias, torch.tensor([0, 1, 2, 0]))
    assert float(loss) == pytest.approx(1e8)
    empty = lm_loss.linear_cross_entropy_sum(
        torch.zeros(0, 4, requires_grad=True), weight, bias, torch.zeros(0).long()
    )
    empty.backward()
    assert float(empty.detach()) == 0.0


def test_without_gradients_none_are_formed(monkeypatch):
    monkeypatch.setattr(lm_loss, "_Gradients", None)
    with torch.no_grad():
        lm_loss.linear_cross_entropy_sum(
            torch.ones(3, 2), torch.ones(5, 2), torch.zeros(5), torch.tensor([0, 1, 2])
        )
