"""The token embeddings' joint gradient against what autograd adds up by itself."""

import pytest
import torch
import torch.nn.functional as F

from tsdae_core.lm_loss import linear_cross_entropy_sum
from tsdae_core.token_table import TokenTable

VOCAB, WIDTH = 50, 6


def embedding(padding_idx: int | None = None) -> torch.nn.Embedding:
    return torch.nn.Embedding(VOCAB, WIDTH, padding_idx=padding_idx).double()


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, VOCAB, shape)


def head_loss(states: torch.Tensor, table: TokenTable, targets: torch.Tensor) -> torch.Tensor:
    return linear_cross_entropy_sum(states, table.weight, torch.zeros(VOCAB).double(), targets, table=table)


def plain_loss(states: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(states @ weight.t(), targets, reduction="sum")


@pytest.mark.parametrize("padding_idx", [None, 3])
def test_lookups_and_head_have_the_gradient_of_autograd(padding_idx):
    table = embedding(padding_idx)
    first, second, targets = ids(40), ids(30), ids(30)
    first[:3] = 3
    shared = TokenTable(table)
    states = shared.rows(second) * shared.rows(first).mean(0)
    head_loss(states, shared, targets).backward()
    found, table.weight.grad = table.weight.grad, None
    states = table(second) * table(first).mean(0)
    plain_loss(states, table.weight, targets).backward()
    torch.testing.assert_close(found, table.weight.grad)


def test_lookups_alone_and_two_heads_and_uses_beside_the_table_add_up():
    table, rows, targets = embedding(), ids(20), ids(20)
    shared = TokenTable(table)
    states = shared.rows(rows)
    late_ids = ids(5)
    late = shared.rows(late_ids)  # its backward comes first, before any head's
    loss = head_loss(states, shared, targets) + 0.5 * head_loss(states.tanh(), shared, targets)
    loss = loss + (table.weight**2).sum() + (shared.weight**3).sum() + late.sum()
    loss.backward()
    found, table.weight.grad = table.weight.grad, None
    states = table(rows)
    loss = plain_loss(states, table.weight, targets) + 0.5 * plain_loss(states.tanh(), table.weight, targets)
    loss = loss + (table.weight**2).sum() + (table.weight**3).sum() + table(late_ids).sum()
    loss.backward()
    torch.testing.assert_close(found, table.weight.grad)


def test_lookups_without_a_head_have_autograd_s_gradient():
    table, rows = embedding(), ids(2, 9)
    shared = TokenTable(table)
    (shared.rows(rows[0]).sin().sum() + shared.rows(rows[1]).cos().sum()).backward()
    found, table.weight.grad = table.weight.grad, None
    (table(rows[0]).sin().sum() + table(rows[1]).cos().sum()).backward()
    torch.testing.assert_close(found, table.weight.grad)


def test_gradients_of_steps_without_zeroing_add_up():
    table, rows, targets = embedding(), ids(20), ids(20)
    for _ in range(2):
        shared = TokenTable(table)
        head_loss(shared.rows(rows), shared, targets).backward()
    twice, table.weight.grad = table.weight.grad, None
    shared = TokenTable(table)
    head_loss(shared.rows(rows), shared, targets).backward()
    torch.testing.assert_close(twice, 2 * table.weight.grad)


def test_a_frozen_table_and_no_grad_give_plain_rows():
    table = embedding()
    table.weight.requires_grad_(False)
    states = TokenTable(table).rows(ids(4))
    assert not states.requires_grad
    trained = embedding()
    with torch.no_grad():
        assert not TokenTable(trained).rows(ids(4)).requires_grad


def test_a_second_backward_pass_is_refused():
    shared = TokenTable(embedding())
    loss = head_loss(shared.rows(ids(4)), shared, ids(4))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="compute the loss again"):
        loss.backward()


def test_what_others_hang_on_the_embedding_is_heard():
    table, rows = embedding(), ids(6)
    table.register_forward_hook(lambda _module, _args, out: 2 * out)
    shared = TokenTable(table)
    torch.testing.assert_close(shared.rows(rows), 2 * table.weight[rows])
    (head_loss(shared.rows(rows), shared, rows)).backward()
    found, table.weight.grad = table.weight.grad, None
    plain_loss(table(rows), table.weight, rows).backward()
    torch.testing.assert_close(found, table.weight.grad)
