"""Objectives and phases in the configuration, groups of rows in the stream."""

import numpy as np
import pytest
from pipeline_builders import make_tokens, random_rows, write_token_shards

from pipelines.cluster import cpus_needed
from pipelines.config import RunConfig
from pipelines.config_io import config_to_yaml, load_config
from pipelines.errors import InputError
from pipelines.lanes import LanePlan, chunks
from pipelines.storage import Location
from pipelines.stream import _BatchMaker
from pipelines.train_config import TrainConfig
from tsdae_core.objective import build_objective
from tsdae_core.optim_config import OptimConfig
from tsdae_core.scratch import train_tokenizer


@pytest.fixture(scope="module")
def toy():
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(["ab", "cde", "fg", "hij", "k"], size=1 + i % 7)) for i in range(64)]
    return texts, train_tokenizer(texts, vocab_size=80)


def test_phases_stand_for_train_which_is_then_not_to_be_set(tmp_path):
    text = "phases: [{name: a, train: {num_workers: 4}}, {name: b, train: {objective: mlm}}]\n"
    (tmp_path / "run.yaml").write_text(text)
    config = load_config(tmp_path / "run.yaml", ["phases.1.train.num_steps=7"])
    assert [phase.train.objective for phase in config.phases] == ["tsdae", "mlm"]
    mlm = TrainConfig(objective="mlm", num_steps=7, optim=OptimConfig(lr=5e-5))
    assert config.train == config.phases[1].train == mlm
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
