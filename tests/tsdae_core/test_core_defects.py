"""Defects of the reference: the rest of their tests, and that each of them has one."""

import ast
import copy
from pathlib import Path

import core_builders
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tsdae_core.encoder import SentenceEncoder
from tsdae_core.lm_head import LmHead
from tsdae_core.objective import build_objective
from tsdae_core.pooling import Dense, DenseConfig
from tsdae_core.token_table import TokenTable
from tsdae_core.tokens import tokenize_texts

ROOT = Path(__file__).parents[2]


def batch_of(tokenizer, texts):
    objective = build_objective("tsdae", tokenizer=tokenizer)
    tokens = tokenize_texts(texts, tokenizer, max_tokens=64)
    return objective, objective.make_batch(tokens, np.arange(len(texts)), seed=0, epoch=0)


@pytest.mark.parametrize("packed", [True, False])
def test_a_bfloat16_encoder_in_memory_is_tied_as_it_is(tokenizer, texts, make_encoder, packed):
    encoder = make_encoder()
    encoder.use_packed = packed
    objective, batch = batch_of(tokenizer, texts[:8])
    exact = objective.build_model(encoder, seed=0)(batch).loss_sum.item()
    model = objective.build_model(encoder.to(torch.bfloat16), seed=0)
    sums = model(batch)
    sums.loss_sum.backward()
    assert {param.dtype for param in model.parameters()} == {torch.bfloat16}
    assert sums.loss_sum.item() == pytest.approx(exact, rel=0.02)
    assert not [name for name, param in model.named_parameters() if not param.grad.isfinite().all()]


def test_unknown_words_stay_in_the_target(tokenizer):
    _, batch = batch_of(tokenizer, ["a ж b"])
    middle = batch["target_ids"].tolist()[1:-1]
    assert middle == tokenizer("a ж b", add_special_tokens=False)["input_ids"]
    assert tokenizer.unk_token_id in middle


def test_the_padding_side_of_the_tokenizer_does_not_matter(tokenizer, texts, make_encoder):
    left = copy.deepcopy(tokenizer)
    left.padding_side = left.truncation_side = "left"
    right_encoder, left_encoder = make_encoder(), make_encoder()
    left_encoder.tokenizer = left
    assert np.array_equal(left_encoder.encode(texts[:9]), right_encoder.encode(texts[:9]))
    for name, value in batch_of(left, texts[:9])[1].items():
        assert np.array_equal(value, batch_of(tokenizer, texts[:9])[1][name]), name


@pytest.mark.parametrize("width", [8, 48])
def test_a_dense_layer_after_pooling_trains(tokenizer, texts, make_encoder, width):
    plain = make_encoder()
    dense = Dense(DenseConfig(32, width, True, "Tanh"))
    encoder = SentenceEncoder(plain.backbone, tokenizer, pooling="mean", max_tokens=64, heads=(dense,))
    objective, batch = batch_of(tokenizer, texts[:12])
    model = core_builders.shake(objective.build_model(encoder, seed=0))
    model(batch).loss_sum.backward()
    assert dense.linear.weight.grad.any()
    assert not [name for name, param in model.named_parameters() if param.grad is None]


class LargestTensor(TorchDispatchMode):
    """Remembers the most numbers that any operation has returned."""

    num_values = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(each, torch.Tensor):
                self.num_values = max(self.num_values, each.numel())
        return out


def test_the_logits_of_all_targets_never_exist_at_once(monkeypatch):
    import tsdae_core.lm_loss as lm_loss

    monkeypatch.setattr(lm_loss, "_BLOCK_SIZE", 1000 * 16)
    monkeypatch.setattr(lm_loss, "_MIN_ROWS", 1)
    head = LmHead(bias=torch.zeros(1000))
    states, table = torch.randn(256, 8, requires_grad=True), TokenTable(torch.nn.Embedding(1000, 8))
    with LargestTensor() as largest:
        head.loss_sum(states, torch.arange(256), table=table).backward()
    assert largest.num_values == 1000 * 16 < 256 * 1000


def test_every_defect_has_a_test_that_exists():
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in (ROOT / "docs" / "method.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| D")
    ]
    assert [row[0] for row in rows] == [f"D{number}" for number in range(1, 21)]
    found = {
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    named = {row[0]: row[3].strip("`") for row in rows}
    assert not {defect: name for defect, name in named.items() if name not in found}
