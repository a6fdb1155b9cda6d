"""Objectives and phases in the configuration, shipped recipes at toy size, groups of rows in the stream."""

from pathlib import Path

import numpy as np
import pyarrow.fs as pafs
import pytest
import torch
from pipeline_builders import make_tokens, random_rows, write_token_shards

from pipelines.cluster import cpus_needed
from pipelines.config import RunConfig
from pipelines.config_io import config_to_yaml, load_config
from pipelines.errors import InputError
from pipelines.lanes import LanePlan, chunks
from pipelines.phase_config import PhaseConfig
from pipelines.phases import train_phases
from pipelines.storage import Location
from pipelines.stream import _BatchMaker
from pipelines.train_config import TrainConfig
from tsdae_core.objective import build_objective
from tsdae_core.optim import build_optimizer, learning_rate, set_learning_rate
from tsdae_core.scratch import ScratchConfig, build_scratch_encoder, train_tokenizer
from tsdae_core.step import seed_step, training_step
from tsdae_core.tokens import tokenize_texts

CONFIGS = Path(__file__).parents[2] / "configs"
SHIPPED = sorted([*CONFIGS.glob("paper/*.yaml"), *CONFIGS.glob("recipes/*.yaml")])


def name_of(path):
    return f"{path.parent.name}/{path.stem}"


@pytest.fixture(scope="module")
def toy():
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(["ab", "cde", "fg", "hij", "k"], size=1 + i % 7)) for i in range(64)]
    return texts, train_tokenizer(texts, vocab_size=80)


@pytest.mark.parametrize("path", SHIPPED, ids=name_of)
def test_a_shipped_recipe_trains_each_of_its_phases_at_toy_size(path, toy):
    """Objective, pooling, optimizer and schedule on a tiny encoder: it moves, and the loss is finite."""
    config, (texts, tokenizer) = load_config(path), toy
    scratch = ScratchConfig(num_layers=2, hidden_size=16, num_heads=2, intermediate_size=32, max_tokens=32)
    encoder = build_scratch_encoder(scratch, tokenizer, pooling=config.model.pooling, seed=0)
    tokens = tokenize_texts(texts, tokenizer, max_tokens=32)
    for train in [phase.train for phase in config.phases] or [config.train]:
        objective = build_objective(train.objective, tokenizer=tokenizer, config=train.chosen)
        assert objective.group_size == train.group_size
        model = objective.build_model(encoder, seed=0).train()
        optimizer = build_optimizer(model, train.optim)
        before = {name: value.clone() for name, value in encoder.state_dict().items()}
        rows = np.arange(min(train.batch_size, len(texts)))
        batch = objective.make_batch(tokens.take(rows), rows, seed=0, epoch=0)
        seed_step(0, 0, 0)
        set_learning_rate(optimizer, learning_rate(0, train.num_steps, train.optim))
        stats = training_step(
            model, batch, optimizer, global_num_targets=objective.num_targets(batch), max_grad_norm=1.0
        )
        assert np.isfinite(stats.loss)
        assert any(not torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_the_papers_settings_are_in_its_recipes():
    found = {path.stem: load_config(path) for path in CONFIGS.glob("paper/*.yaml")}
    tables = {"tsdae", "mlm", "ct", "simcse", "tsdae-scratch-decoder"}
    tables |= {f"tsdae-{name}" for name in ("distilbert", "roberta", "distilroberta", "electra")}
    assert set(found) == tables
    rates = {name: config.train.optim.lr for name, config in found.items()}
    assert rates == dict.fromkeys(tables, 3e-5) | {"mlm": 5e-5, "ct": 1e-5, "simcse": 5e-5}
    assert {name for name, config in found.items() if config.model.pooling == "mean"} == {"mlm", "ct"}
    assert found["simcse"].train.batch_size == 512
    ct = found["ct"].train
    assert (ct.batch_size, ct.lanes, ct.optim.optimizer, ct.loss_unit) == (16, 2, "rmsprop", "pair")


def test_phases_stand_for_train_which_is_then_not_to_be_set(tmp_path):
    text = "phases: [{name: a, train: {num_workers: 4}}, {name: b, train: {objective: mlm}}]\n"
    (tmp_path / "run.yaml").write_text(text)
    config = load_config(tmp_path / "run.yaml", ["phases.1.train.num_steps=7"])
    assert [phase.train.objective for phase in config.phases] == ["tsdae", "mlm"]
    assert config.train == config.phases[1].train == TrainConfig(objective="mlm", num_steps=7)
    assert cpus_needed(config) == cpus_needed(RunConfig(train=TrainConfig(num_workers=4)))
    (tmp_path / "again.yaml").write_text(config_to_yaml(config))
    assert load_config(tmp_path / "again.yaml") == config
    for override, message in (
        ("train.num_steps=9", "belong inside them"),
        ("phases.1.name=a", "different names"),
        ("phases.1.name=a/b", "letters"),
        ("phases.1.train.num_stepz=1", r"phases\.1\.train\.num_stepz"),
    ):
        with pytest.raises(InputError, match=message):
            load_config(tmp_path / "run.yaml", [override])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 12}, "multiple of the 8"),
        ({"batch_size": 16, "num_lanes": 4}, "must divide batch_size"),
        ({"batch_size": 16, "strategy": "fsdp2"}, "use ddp for ct"),
    ],
)
def test_ct_needs_whole_groups_in_every_lane(changes, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(objective="ct", **changes)


def test_an_objective_s_unit_is_what_its_loss_is_divided_by():
    units = {name: TrainConfig(objective=name).loss_unit for name in ("tsdae", "mlm", "simcse", "ct")}
    assert units == {"tsdae": "token", "mlm": "token", "simcse": "sentence", "ct": "pair"}


def test_groups_are_the_same_for_any_number_of_workers_and_micro_batches(tmp_path, toy):
    """Anchors and what they are compared with, over two epochs whose last steps leave parts of groups."""
    _, tokenizer = toy
    config = TrainConfig(objective="ct", batch_size=32)
    objective = build_objective("ct", tokenizer=tokenizer, config=config.chosen)
    row_ids = np.arange(150, dtype=np.int64) * 3
    shards = [(row_ids, make_tokens(random_rows(150)))]
    rows = write_token_shards(Location.parse(tmp_path / "tokens"), shards)
    plan = LanePlan(num_rows=150, batch_size=32, num_lanes=config.lanes, seed=5)
    work = chunks(plan, first_step=0, num_steps=2 * plan.steps_per_epoch)
    results = []
    for num_workers, max_tokens in ((1, 10_000), (2, 10_000), (4, 10_000), (2, 1)):
        pairs = []
        for rank in range(num_workers):
            lanes = range(rank, plan.num_lanes, num_workers)
            maker = _BatchMaker(plan, rows, objective, lanes, [work], max_tokens)
            for chunk in work:
                for step in maker.make_chunk(chunk):
                    for batch in step.micro_batches:
                        ids = batch["row_ids"]
                        anchors = ids[batch["anchors"]]
                        pairs += [(step.step, int(a), int(b)) for a, b in zip(anchors, ids, strict=True)]
        results.append(sorted(pairs))
    assert all(found == results[0] for found in results[1:])
    assert len(results[0]) == 2 * 150
    by_anchor = {}
    for step, anchor, _ in results[0]:
        by_anchor[step, anchor] = by_anchor.get((step, anchor), 0) + 1
    assert max(by_anchor.values()) == 8
    assert list(by_anchor.values()).count(8) >= 2 * 16


def test_phases_need_a_workspace_with_a_path():
    config = RunConfig(phases=(PhaseConfig(name="a"), PhaseConfig(name="b")))
    elsewhere = Location(pafs._MockFileSystem(), "bucket/run")
    with pytest.raises(InputError, match="not a local path"):
        train_phases(config, elsewhere, None, reporter=None)
