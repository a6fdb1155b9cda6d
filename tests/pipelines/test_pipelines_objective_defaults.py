"""A recipe takes the paper's settings of its objective where it sets none; what it sets always wins."""

import pytest
import yaml

from pipelines.config import RunConfig
from pipelines.config_io import config_of, config_to_yaml
from pipelines.errors import InputError
from pipelines.labels_config import SUPERVISED
from pipelines.objective_defaults import with_objective_defaults
from pipelines.train_config import TrainConfig
from tsdae_core.optim_config import OptimConfig

# Pooling, batch size, steps, passes, optimizer, rate, schedule.
PAPER = {
    "tsdae": ("cls", 8, 100_000, 0, "adamw", 3e-5, "constant"),
    "retromae": ("cls", 8, 100_000, 0, "adamw", 3e-5, "constant"),
    "protected": ("cls", 8, 100_000, 0, "adamw", 3e-5, "constant"),
    "mlm": ("mean", 8, 100_000, 0, "adamw", 5e-5, "constant"),
    "ct": ("mean", 16, 100_000, 0, "rmsprop", 1e-5, "piecewise"),
    "simcse": ("cls", 512, 100_000, 1, "adamw", 5e-5, "constant"),
    "nli": ("mean", 16, 100_000, 1, "adamw", 2e-5, "linear"),
    "sts": ("mean", 16, 100_000, 4, "adamw", 2e-5, "linear"),
    "ranking": ("mean", 64, 20_000, 10, "adamw", 2e-5, "linear"),
    "pairs": ("mean", 64, 20_000, 10, "adamw", 2e-5, "linear"),
    "margin_mse": ("mean", 32, 140_000, 0, "adamw", 2e-5, "linear"),
}


def train_of(objective, **settings):
    labels = {"labels": {"input": "rows.jsonl"}} if objective in SUPERVISED else {}
    return {"objective": objective, **labels, **settings}


def loaded(objective, *, model=None, **settings):
    tree = {"train": train_of(objective, **settings)}
    return config_of(tree if model is None else tree | {"model": model}, RunConfig)


def in_force(config):
    train, optim = config.train, config.train.optim
    length = (train.batch_size, train.num_steps, train.num_epochs)
    return (config.model.pooling, *length, optim.optimizer, optim.lr, optim.schedule)


@pytest.mark.parametrize("objective", PAPER)
def test_a_recipe_that_names_an_objective_alone_has_the_papers_settings_of_it(objective):
    config = loaded(objective)
    assert in_force(config) == PAPER[objective]
    assert config.train.optim.max_grad_norm == 1.0
    if objective == "ct":
        assert config.train.optim.boundaries == (500, 1_000, 1_500, 2_000)
        assert config.train.optim.rates == (8e-6, 6e-6, 4e-6, 2e-6)
    if objective == "margin_mse":
        assert (config.train.optim.warmup_steps, config.train.optim.weight_decay) == (1_000, 0.01)
    if objective == "simcse":
        assert (config.train.simcse.temperature, config.train.simcse.head) == (0.05, True)
    assert config_of(yaml.safe_load(config_to_yaml(config)), RunConfig) == config


@pytest.mark.parametrize("objective", PAPER)
def test_what_a_recipe_sets_wins_alone_and_together(objective):
    given = {"batch_size": 32, "num_steps": 7, "num_epochs": 3}
    optim = {"optimizer": "adamw", "lr": 0.5, "schedule": "cosine", "warmup_steps": 2}
    for key, value in given.items():
        assert getattr(loaded(objective, **{key: value}).train, key) == value
    for key, value in optim.items():
        assert getattr(loaded(objective, optim={key: value}).train.optim, key) == value
    config = loaded(objective, model={"pooling": "max"}, **given, optim=optim)
    assert in_force(config) == ("max", 32, 7, 3, "adamw", 0.5, "cosine")
    decay = {"weight_decay": 0.01} if objective == "margin_mse" else {}
    assert config.train.optim == OptimConfig(**optim, **decay)


def test_steps_or_passes_that_are_given_mean_just_that():
    by_steps, by_passes = loaded("simcse", num_steps=7).train, loaded("pairs", num_epochs=2).train
    assert (by_steps.num_steps, by_steps.num_epochs) == (7, 0)
    assert (by_passes.num_steps, by_passes.num_epochs) == (100_000, 2)


def stopping_of(**settings):
    train = loaded("pairs", **settings).train
    stopping = train.early_stopping
    return train.keep, train.validate_every, stopping.metric, stopping.patience


def test_in_domain_training_stops_early_on_the_named_task_or_on_its_held_out_rows():
    never = ("last", 1_500, "retrieval", 0)
    assert stopping_of() == ("best", 500, "validation_loss", 5)
    assert stopping_of(early_stopping={"task": {"folder": "dev"}}) == ("best", 500, "task", 5)
    assert stopping_of(early_stopping={"patience": 0}, keep="last") == ("last", 500, "validation_loss", 0)
    assert stopping_of(early_stopping={"metric": "retrieval"})[2:] == ("retrieval", 5)
    # With a length of its own a recipe ends where it says, and without anything to validate on, too.
    assert stopping_of(num_epochs=3) == stopping_of(num_steps=9) == stopping_of(validation_rows=0) == never
    assert stopping_of(validation_rows=0, early_stopping={"task": {"folder": "dev"}})[2:] == ("task", 5)


def test_a_training_of_plain_values_is_that_of_a_recipe_and_the_class_alone_has_tsdaes():
    plain = train_of("ct", num_steps=7)
    assert config_of(plain, TrainConfig) == loaded("ct", num_steps=7).train
    assert config_of({}, TrainConfig) == TrainConfig()
    assert TrainConfig(objective="ct").optim == TrainConfig().optim
    with pytest.raises(InputError, match="objective"):
        config_of({"objective": "tsda"}, TrainConfig)


def test_the_steps_of_a_rate_go_with_that_rate_only():
    ours, ct = loaded("ct").train.optim, {"optimizer": "rmsprop"}
    assert loaded("ct", optim={"lr": 5e-5}).train.optim == OptimConfig(**ct, lr=5e-5)
    linear = OptimConfig(**ct, lr=1e-5, schedule="linear")
    assert loaded("ct", optim={"schedule": "linear"}).train.optim == linear
    assert loaded("ct", optim={"warmup_steps": 9, "max_grad_norm": 2.0}).train.optim.rates == ours.rates
    own = {"schedule": "piecewise", "boundaries": [3], "rates": [1e-7]}
    assert loaded("ct", optim=own).train.optim.boundaries == (3,)
    assert loaded("nli", optim={"lr": 1e-4}).train.optim == OptimConfig(lr=1e-4, schedule="linear")


@pytest.mark.parametrize("objective", [None, "tsdae", "retromae", "protected"])
def test_what_tsdae_trains_is_untouched_and_keeps_its_fingerprint(objective):
    tree = {"seed": 3} if objective is None else {"seed": 3, "train": {"objective": objective}}
    assert with_objective_defaults(tree) == tree
    train = TrainConfig() if objective is None else TrainConfig(objective=objective)
    assert config_of(tree, RunConfig) == RunConfig(seed=3, train=train)


@pytest.mark.parametrize(
    ("objectives", "pooling"),
    [
        (("nli", "sts"), "mean"),
        (("nli", "sts", "tsdae"), "cls"),
        (("tsdae", "nli", "sts"), "cls"),
        (("simcse", "nli"), "cls"),
        (("nli", "ct"), "mean"),
        (("mlm", "tsdae"), "cls"),
        (("mlm", "pairs"), "mean"),
    ],
)
def test_phases_have_each_their_own_settings_and_the_pooling_of_the_training_without_labels(
    objectives, pooling
):
    phases = [{"name": f"p{i}", "train": train_of(name)} for i, name in enumerate(objectives)]
    config = config_of({"phases": phases}, RunConfig)
    assert config.model.pooling == pooling
    for name, phase in zip(objectives, config.phases, strict=True):
        assert phase.train == loaded(name).train
    chosen = config_of({"phases": phases, "model": {"pooling": "max", "max_tokens": 9}}, RunConfig)
    assert (chosen.model.pooling, chosen.model.max_tokens) == ("max", 9)
    assert config_of(yaml.safe_load(config_to_yaml(config)), RunConfig) == config


def test_a_recipes_own_values_are_not_shared_between_recipes():
    tree = with_objective_defaults({"train": {"objective": "ct"}})
    tree["train"]["optim"]["rates"].clear()
    assert loaded("ct").train.optim.rates == (8e-6, 6e-6, 4e-6, 2e-6)


@pytest.mark.parametrize(
    ("tree", "key"),
    [
        ({"train": "fast"}, "train"),
        ({"train": None}, "train"),
        ({"train": {"objective": ["mlm"]}}, "train.objective"),
        ({"train": {"objective": "mlm", "optim": 3}}, "train.optim"),
        ({"phases": 3}, "phases"),
        ({"phases": [3]}, "phases.0"),
        ({"phases": [{"name": "a", "train": 3}]}, "phases.0.train"),
        ({"model": 3, "train": {"objective": "mlm"}}, "model"),
    ],
)
def test_a_section_that_is_none_is_still_refused_by_its_key(tree, key):
    with pytest.raises(InputError, match=f"configuration key '{key}"):
        config_of(tree, RunConfig)
