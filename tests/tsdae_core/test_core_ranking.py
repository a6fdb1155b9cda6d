"""Equal texts in a batch are no negatives of each other, wherever they are."""

import core_builders
import core_losses
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tsdae_core.examples import column_batch
from tsdae_core.objective import build_objective
from tsdae_core.ranking import ranking_loss_sum
from tsdae_core.step import seed_step, training_step
from tsdae_core.text_keys import text_keys
from tsdae_core.tokens import special_frame, tokenize_texts

ROWS = st.integers(2, 4).flatmap(
    lambda width: st.lists(st.tuples(*[st.sampled_from("abcdefgh")] * width), min_size=1, max_size=7)
)


def loss_by_hand(rows, vectors, temperature):
    """Anchor by anchor over the candidates that say something else; NoDuplicates' rule, row by row."""
    total = 0.0
    for i, (anchor, positive, *_) in enumerate(rows):
        logits = []
        for j, other in enumerate(rows):
            for k, text in enumerate(other[1:], 1):
                is_its_own = (j, k) == (i, 1)
                says_the_same = text in (anchor, positive) or (k == 1 and other[0] == anchor)
                if is_its_own or not says_the_same:
                    logits.append(float(F.cosine_similarity(vectors[i, 0], vectors[j, k], 0)) / temperature)
                if is_its_own:
                    target = logits[-1]
        total += float(np.logaddexp.reduce(logits)) - target
    return total


@settings(max_examples=60)
@given(rows=ROWS, seed=st.integers(0, 9))
def test_the_loss_leaves_out_what_says_the_same_as_the_anchor_or_its_positive(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(len(rows), len(rows[0]), 5, generator=generator, dtype=torch.float64)
    keys = torch.tensor([[ord(text) for text in row] for row in rows])
    whole = ranking_loss_sum(
        vectors, vectors, own_keys_nK=keys, all_keys_NK=keys, first_row=0, temperature=0.3
    )
    assert float(whole) == pytest.approx(loss_by_hand(rows, vectors, 0.3), abs=1e-9)
    cut = seed % len(rows)  # two workers, of which one may have nothing
    parts = [
        ranking_loss_sum(
            vectors[part],
            vectors,
            own_keys_nK=keys[part],
            all_keys_NK=keys,
            first_row=part.start,
            temperature=0.3,
        )
        for part in (slice(0, cut), slice(cut, len(rows)))
    ]
    assert float(sum(parts)) == pytest.approx(float(whole), abs=1e-9)


def test_keys_are_equal_for_equal_tokens_and_for_no_others(tokenizer):
    texts = ["ab cd ab", "ab ab cd", "ab cd ab", "ab cd", "", "ab cd ab e", ""]
    frame = special_frame(tokenizer)
    batch = column_batch(tokenize_texts(texts, tokenizer, max_tokens=40), np.arange(7), frame=frame)
    (keys,) = text_keys(batch).T
    assert [keys.tolist().index(key) for key in keys.tolist()] == [0, 1, 0, 3, 4, 5, 4]
    whole = [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
    cut = tokenize_texts(texts, tokenizer, max_tokens=whole[0] + 2)  # the sixth text loses its end
    (cut_keys,) = text_keys(column_batch(cut, np.arange(7), frame=frame)).T
    assert cut_keys[5] == cut_keys[0] == keys[0]
    rows = core_losses.labelled(texts[:6], tokenizer, num_columns=2)
    pairs = text_keys(column_batch(rows, np.arange(3), frame=frame))
    assert pairs.tolist() == keys[[[0, 3], [1, 4], [2, 5]]].tolist()
    idle = column_batch(rows, np.arange(3), frame=frame) | {"row_ids": np.empty(0, np.int64)}
    assert text_keys(idle).shape == (0, 2)


def rows_of(name, texts, tokenizer, repeated, *, num_columns=3):
    if name == "simcse":
        rows = tokenize_texts(texts[:8], tokenizer, max_tokens=64)
    else:
        rows = core_losses.labelled(texts[: 8 * num_columns], tokenizer, num_columns=num_columns)
    return rows.take(repeated)


@pytest.mark.parametrize("name", ["simcse", "ranking"])
def test_copies_of_one_row_have_nothing_to_be_told_from(texts, tokenizer, name):
    objective = build_objective(name, tokenizer=tokenizer)
    model = objective.build_model(core_losses.dropout_free(tokenizer), seed=0).train()
    rows = rows_of(name, texts, tokenizer, [3, 3, 3], num_columns=2)
    loss = model(objective.make_batch(rows, np.arange(3), seed=0, epoch=0)).loss_sum
    loss.backward()
    assert float(loss.detach()) == 0.0  # 3 log 3 where they are negatives of each other
    assert not any(param.grad is not None and param.grad.any() for param in model.parameters())


@pytest.mark.parametrize("name", ["simcse", "ranking"])
def test_repeated_rows_in_other_micro_batches_are_found(texts, tokenizer, name):
    objective = build_objective(name, tokenizer=tokenizer)
    rows, results = rows_of(name, texts, tokenizer, [0, 1, 2, 0, 4, 1, 6, 0]), []
    for cuts in ([], [3], [2, 5]):
        model = objective.build_model(core_losses.dropout_free(tokenizer), seed=0).train()
        parts = [
            objective.make_batch(rows.take(part), part, seed=0, epoch=0)
            for part in np.split(np.arange(8), cuts)
        ]
        seed_step(0, 0, 0)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        stats = training_step(model, parts, optimizer, global_num_targets=8, max_grad_norm=1.0)
        results.append((stats.loss, stats.grad_norm))
    assert results[1] == pytest.approx(results[0], rel=1e-4)
    assert results[2] == pytest.approx(results[0], rel=1e-4)


def test_validation_leaves_them_out_too(texts, tokenizer):
    from tsdae_core.in_batch import group_loss

    objective = build_objective("ranking", tokenizer=tokenizer)
    model = objective.build_model(core_builders.bert_encoder(tokenizer, dropout=0.1), seed=0).eval()
    rows = rows_of("ranking", texts, tokenizer, [0, 1, 0, 2])
    parts = [
        objective.make_batch(rows.take(part), part, seed=0, epoch=0) for part in np.split(np.arange(4), [2])
    ]
    with torch.no_grad():
        found = group_loss(model, parts)
        vectors = torch.cat([model.vectors(part) for part in parts]).double()
    letters = [("a", "b", "c"), ("d", "e", "f"), ("a", "b", "c"), ("g", "h", "i")]
    assert float(found.loss_sum) == pytest.approx(loss_by_hand(letters, vectors, 0.05), rel=1e-4)
