"""SimCSE, CT and the supervised objectives against sentence-transformers' own losses."""

import pickle

import core_builders
import core_losses
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sentence_transformers.sentence_transformer import losses
from transformers import AutoModel

from tsdae_core.contrastive_tension import CtConfig
from tsdae_core.examples import LabelledTexts, row_tokens
from tsdae_core.objective import build_objective
from tsdae_core.optim import OptimConfig, build_optimizer, learning_rate
from tsdae_core.simcse import SimcseConfig
from tsdae_core.step import seed_step, training_step
from tsdae_core.supervised import NliConfig, RankingConfig, StsConfig
from tsdae_core.tokens import tokenize_texts

ROWS = 12
UNSUPERVISED, SUPERVISED = ("simcse", "ct"), ("nli", "sts", "ranking", "margin_mse")


@pytest.fixture
def encoder(tokenizer):
    return core_losses.dropout_free(tokenizer)


def rows_for(name, texts, tokenizer):
    if name in (*UNSUPERVISED, "protected"):
        return tokenize_texts(texts[:ROWS], tokenizer, max_tokens=64)
    if name == "ranking":
        return core_losses.labelled(texts[: 3 * ROWS], tokenizer, num_columns=3)
    if name == "margin_mse":
        margins = np.linspace(-4, 9, ROWS)
        return core_losses.labelled(texts[: 3 * ROWS], tokenizer, num_columns=3, labels=margins)
    labels = np.arange(ROWS) % 3 if name == "nli" else np.linspace(0, 5, ROWS)
    return core_losses.labelled(texts[: 2 * ROWS], tokenizer, num_columns=2, labels=labels)


def loss_of(objective, model, rows):
    batch = objective.make_batch(rows, np.arange(len(rows)), seed=0, epoch=0)
    sums = model(batch)
    assert sums.num_targets == objective.num_targets(batch)
    loss = sums.loss_sum / sums.num_targets
    loss.backward()
    return loss.item()


def test_simcse_without_dropout_and_head_is_ranking_of_two_passes(texts, tokenizer, encoder, tmp_path):
    objective = build_objective("simcse", tokenizer=tokenizer, config=SimcseConfig(head=False))
    model = objective.build_model(encoder, seed=0).train()
    ours = loss_of(objective, model, rows_for("simcse", texts, tokenizer))
    reference = core_losses.reference_of(encoder, tmp_path)
    pair = [core_losses.features(texts[:ROWS], reference) for _ in range(2)]
    expected = losses.MultipleNegativesRankingLoss(reference, scale=20.0)(pair, None)
    expected.backward()
    assert ours == pytest.approx(expected.item(), abs=1e-5)
    core_losses.assert_encoder_gradients_equal(model, reference)


def test_simcse_encodes_twice_under_dropout_and_its_head_is_not_in_the_encoder(texts, tokenizer, tmp_path):
    objective = build_objective("simcse", tokenizer=tokenizer)
    encoder = core_builders.bert_encoder(tokenizer, dropout=0.1)
    model = objective.build_model(encoder, seed=3).train()
    batch = objective.make_batch(rows_for("simcse", texts, tokenizer), np.arange(ROWS), seed=0, epoch=0)
    first, second = model.vectors(batch).unbind(1)
    assert not torch.allclose(first, second)
    model.eval()
    first, second = model.vectors(batch).unbind(1)
    torch.testing.assert_close(first, second)
    bare = encoder.embed(batch["texts_ids"], np.asarray(batch["texts_lengths"]))
    torch.testing.assert_close(first, torch.tanh(model.head[0](bare)))
    same = objective.build_model(core_builders.bert_encoder(tokenizer), seed=3)
    assert torch.equal(model.head[0].weight, same.head[0].weight)
    assert not any("head.0" in name for name in encoder.state_dict())


def test_ct_equals_the_reference_on_its_own_pairs(texts, tokenizer, encoder, tmp_path):
    objective = build_objective("ct", tokenizer=tokenizer, config=CtConfig(num_negatives=3))
    assert objective.group_size == 4
    model = objective.build_model(encoder, seed=0).train()
    core_builders.shake(model.partner, seed=5)
    reference = losses.ContrastiveTensionLoss(core_losses.reference_of(encoder, tmp_path / "kept"))
    reference.model1 = core_losses.reference_of(model.partner, tmp_path / "partner")
    ours = loss_of(objective, model, rows_for("ct", texts, tokenizer))
    anchors = [texts[4 * (row // 4)] for row in range(ROWS)]
    pair = [core_losses.features(part, reference.model2) for part in (anchors, texts[:ROWS])]
    labels = torch.tensor([float(row % 4 == 0) for row in range(ROWS)])
    expected = reference(pair, labels) / ROWS
    expected.backward()
    assert ours == pytest.approx(expected.item(), rel=1e-5)
    core_losses.assert_encoder_gradients_equal(model, reference.model2)
    core_losses.assert_encoder_gradients_equal(model, reference.model1, part="partner")
    for name, param in model.partner.backbone.named_parameters():
        assert param.data_ptr() != model.encoder.backbone.get_parameter(name).data_ptr()


def test_ct_equals_its_definition_written_out_for_both_encoders(texts, tokenizer, encoder, tmp_path):
    """Sentence by sentence through transformers' model: mean of the states, dot product, log sigmoid."""
    objective = build_objective("ct", tokenizer=tokenizer, config=CtConfig(num_negatives=3))
    model = objective.build_model(encoder, seed=0).train()
    core_builders.shake(model.partner, seed=5)
    ours = loss_of(objective, model, rows_for("ct", texts, tokenizer))
    plain = {}
    for part in ("encoder", "partner"):
        getattr(model, part).save(tmp_path / part)
        plain[part] = AutoModel.from_pretrained(str(tmp_path / part), add_pooling_layer=False).train()

    def vector(part, text):
        ids = tokenizer(text, truncation=True, max_length=64, return_tensors="pt")["input_ids"]
        return plain[part](ids).last_hidden_state[0].mean(0)

    total = 0.0
    for row in range(ROWS):
        anchor = row - row % 4
        dot = vector("partner", texts[anchor]) @ vector("encoder", texts[row])
        total = total - F.logsigmoid(dot if row == anchor else -dot)
    (total / ROWS).backward()
    assert ours == pytest.approx(total.item() / ROWS, rel=1e-5)
    for part, reference in plain.items():
        core_losses.assert_encoder_gradients_equal(model, reference, part=part)


def test_ct_encoders_start_identical_and_a_group_that_is_not_full_has_fewer_negatives(
    texts, tokenizer, encoder
):
    objective = build_objective("ct", tokenizer=tokenizer)
    model = objective.build_model(encoder, seed=0)
    for name, value in model.encoder.state_dict().items():
        assert torch.equal(value, model.partner.state_dict()[name])
    batch = objective.make_batch(
        tokenize_texts(texts[:10], tokenizer, max_tokens=64), np.arange(10), seed=0, epoch=0
    )
    assert batch["anchors"].tolist() == [0] * 8 + [8, 8]
    assert model(batch).num_targets == 10


def test_nli_softmax_equals_the_reference(texts, tokenizer, encoder, tmp_path):
    objective = build_objective("nli", tokenizer=tokenizer)
    rows = rows_for("nli", texts, tokenizer)
    model = objective.build_model(encoder, seed=0).train()
    ours = loss_of(objective, model, rows)
    reference = core_losses.reference_of(encoder, tmp_path)
    loss = losses.SoftmaxLoss(reference, encoder.dim, num_labels=3)
    loss.classifier.load_state_dict(model.classifier.state_dict())
    pair = [core_losses.features(texts[k * ROWS : (k + 1) * ROWS], reference) for k in range(2)]
    expected = loss(pair, torch.from_numpy(rows.labels).long())
    expected.backward()
    assert ours == pytest.approx(expected.item(), abs=1e-5)
    core_losses.assert_encoder_gradients_equal(model, reference)
    torch.testing.assert_close(model.classifier.weight.grad, loss.classifier.weight.grad)


@pytest.mark.parametrize(("name", "scale"), [("sts", 5), ("pairs", 1)])
def test_regression_of_the_cosine_equals_the_reference(texts, tokenizer, encoder, tmp_path, name, scale):
    objective = build_objective(name, tokenizer=tokenizer)
    rows = rows_for("sts", texts, tokenizer)
    rows = LabelledTexts(rows.columns, rows.labels * np.float32(scale / 5))
    model = objective.build_model(encoder, seed=0).train()
    ours = loss_of(objective, model, rows)
    reference = core_losses.reference_of(encoder, tmp_path)
    pair = [core_losses.features(texts[k * ROWS : (k + 1) * ROWS], reference) for k in range(2)]
    expected = losses.CosineSimilarityLoss(reference)(pair, torch.from_numpy(rows.labels / scale))
    expected.backward()
    assert ours == pytest.approx(expected.item(), abs=1e-6)
    core_losses.assert_encoder_gradients_equal(model, reference)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_margins_of_dot_products_equal_the_reference(texts, tokenizer, tmp_path, pooling):
    """Gradients too, and with vectors far from length 1: nothing is normalised."""
    objective = build_objective("margin_mse", tokenizer=tokenizer)
    rows = rows_for("margin_mse", texts, tokenizer)
    encoder = core_losses.dropout_free(tokenizer, pooling)
    model = objective.build_model(encoder, seed=0).train()
    ours = loss_of(objective, model, rows)
    reference = core_losses.reference_of(encoder, tmp_path)
    columns = [core_losses.features(texts[k * ROWS : (k + 1) * ROWS], reference) for k in range(3)]
    expected = losses.MarginMSELoss(reference)(columns, torch.from_numpy(rows.labels))
    expected.backward()
    assert ours == pytest.approx(expected.item(), rel=1e-5)
    # Without normalisation the loss is of the order of 30, and so are the terms of a gradient.
    core_losses.assert_encoder_gradients_equal(model, reference, atol=1e-5)


@pytest.mark.parametrize("num_columns", [2, 3, 4])
def test_ranking_with_hard_negatives_equals_the_reference(texts, tokenizer, encoder, tmp_path, num_columns):
    objective = build_objective("ranking", tokenizer=tokenizer)
    rows = core_losses.labelled(texts[: num_columns * ROWS], tokenizer, num_columns=num_columns)
    model = objective.build_model(encoder, seed=0).train()
    ours = loss_of(objective, model, rows)
    reference = core_losses.reference_of(encoder, tmp_path)
    columns = [core_losses.features(texts[k * ROWS : (k + 1) * ROWS], reference) for k in range(num_columns)]
    expected = losses.MultipleNegativesRankingLoss(reference, scale=20.0)(columns, None)
    expected.backward()
    assert ours == pytest.approx(expected.item(), abs=1e-5)
    core_losses.assert_encoder_gradients_equal(model, reference)


@pytest.mark.parametrize("name", ["simcse", "ranking", "protected"])
def test_micro_batches_see_the_negatives_of_one_another(texts, tokenizer, name):
    """Gradient caching: the weights after a step are those of the uncut batch, and the loss is too."""
    objective = build_objective(name, tokenizer=tokenizer)
    rows, results = rows_for(name, texts, tokenizer), []
    for cuts in ([], [5], [2, 9]):
        model = objective.build_model(core_losses.dropout_free(tokenizer), seed=0).train()
        if name == "protected":
            core_builders.shake(model.tsdae.encoder, seed=4)  # away from the start, where the term is 0
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)  # a step is the gradient
        parts = [
            objective.make_batch(rows.take(part), part, seed=0, epoch=0)
            for part in np.split(np.arange(ROWS), cuts)
        ]
        seed_step(0, 0, 0)
        count = sum(objective.num_targets(part) for part in parts)
        stats = training_step(model, parts, optimizer, global_num_targets=count, max_grad_norm=1.0)
        results.append((stats.loss, stats.grad_norm, model.state_dict()))
    for loss, norm, weights in results[1:]:
        assert (loss, norm) == pytest.approx(results[0][:2], rel=1e-4)
        for key, value in weights.items():
            torch.testing.assert_close(value, results[0][2][key], atol=2e-6, rtol=1e-4, msg=key)


def test_the_second_pass_over_a_micro_batch_drops_the_same_units(texts, tokenizer, monkeypatch):
    objective = build_objective("simcse", tokenizer=tokenizer)
    model = objective.build_model(core_builders.bert_encoder(tokenizer, dropout=0.3), seed=0).train()
    seen, vectors = [], model.vectors
    monkeypatch.setattr(model, "vectors", lambda batch: seen.append(vectors(batch)) or seen[-1])
    rows = rows_for("simcse", texts, tokenizer)
    parts = [
        objective.make_batch(rows.take(part), part, seed=0, epoch=0)
        for part in np.split(np.arange(ROWS), [4])
    ]
    seed_step(0, 0, 0)
    training_step(
        model,
        parts,
        build_optimizer(model, OptimConfig()),
        global_num_targets=ROWS,
        max_grad_norm=1.0,
    )
    first, second = seen[:2], seen[2:]
    assert not first[0].requires_grad
    for before, after in zip(first, second, strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize("name", [*UNSUPERVISED, *SUPERVISED])
def test_objectives_pickle_make_flat_arrays_and_learn(texts, tokenizer, name):
    objective = pickle.loads(pickle.dumps(build_objective(name, tokenizer=tokenizer)))
    rows = rows_for(name, texts, tokenizer)
    batch = objective.make_batch(rows, np.arange(ROWS), seed=0, epoch=0)
    assert all(isinstance(value, np.ndarray) and value.ndim == 1 for value in batch.values())
    assert objective.num_targets(batch) == ROWS
    model = objective.build_model(core_builders.bert_encoder(tokenizer, dropout=0.1), seed=0).train()
    optimizer = build_optimizer(model, OptimConfig(lr=3e-3))
    found = []
    for step in range(25):
        seed_step(0, step, 0)
        stats = training_step(model, batch, optimizer, global_num_targets=ROWS, max_grad_norm=1.0)
        found.append(stats.loss)
    assert np.mean(found[-5:]) < 0.8 * found[0]


def test_ct_schedule_and_optimizer_are_the_papers():
    config = OptimConfig(
        optimizer="rmsprop",
        lr=1e-5,
        schedule="piecewise",
        boundaries=(500, 1000, 1500, 2000),
        rates=(8e-6, 6e-6, 4e-6, 2e-6),
    )
    at = {0: 1e-5, 499: 1e-5, 500: 8e-6, 999: 8e-6, 1000: 6e-6, 1500: 4e-6, 2000: 2e-6, 99_999: 2e-6}
    for step, rate in at.items():
        assert learning_rate(step, 100_000, config) == rate
    layer = torch.nn.Linear(2, 2)
    optimizer = build_optimizer(layer, config)
    assert isinstance(optimizer, torch.optim.RMSprop)
    layer.weight.grad, before = torch.full((2, 2), 0.5), layer.weight.detach().clone()
    optimizer.step()
    # The first step of RMSProp: g / (sqrt((1 - 0.99) g^2) + eps) = 10 for any g > 0.
    torch.testing.assert_close(before - layer.weight.detach(), torch.full((2, 2), 1e-4), rtol=1e-3, atol=0)
    with pytest.raises(ValueError, match="adamw or rmsprop"):
        OptimConfig(optimizer="sgd")


def test_labelled_rows_are_cut_counted_and_checked(texts, tokenizer):
    rows = rows_for("sts", texts, tokenizer)
    part = rows.take([3, 1])
    assert part.labels.tolist() == rows.labels[[3, 1]].tolist()
    assert row_tokens(part).tolist() == [
        int(sum(column.ids.lengths[row] for column in rows.columns)) for row in (3, 1)
    ]
    with pytest.raises(ValueError, match="one length"):
        LabelledTexts(rows.columns, rows.labels[:3])
    one = LabelledTexts(rows.columns[:1])
    told = {
        "nli": "two texts",
        "sts": "two texts",
        "ranking": "a positive per row",
        "margin_mse": "got 1 texts",
    }
    for name, match in told.items():
        with pytest.raises(ValueError, match=match):
            build_objective(name, tokenizer=tokenizer).make_batch(one, np.arange(ROWS), seed=0, epoch=0)
    three = rows_for("margin_mse", texts, tokenizer)
    bad = LabelledTexts(three.columns, np.full(ROWS, np.nan, dtype=np.float32))
    with pytest.raises(ValueError, match="finite margins"):
        build_objective("margin_mse", tokenizer=tokenizer).make_batch(bad, np.arange(ROWS), seed=0, epoch=0)
    for name, match in (("nli", "0 to 2"), ("sts", "max_score")):
        bad = LabelledTexts(rows.columns, np.full(ROWS, 7.0, dtype=np.float32))
        with pytest.raises(ValueError, match=match):
            build_objective(name, tokenizer=tokenizer).make_batch(bad, np.arange(ROWS), seed=0, epoch=0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SimcseConfig(temperature=0.0),
        lambda: RankingConfig(temperature=-1.0),
        lambda: StsConfig(max_score=0.0),
        lambda: NliConfig(num_labels=1),
        lambda: CtConfig(num_negatives=0),
    ],
)
def test_settings_out_of_range_are_refused(make):
    with pytest.raises(ValueError, match=r"must be (positive|at least)"):
        make()
