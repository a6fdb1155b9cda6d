"""Configuration: every key is checked, every error names the dotted key, what is shown loads back."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexing.plan import IndexConfig
from pipelines.collection_config import CollectionConfig
from pipelines.config import RunConfig
from pipelines.config_io import config_to_yaml, load_config
from pipelines.errors import InputError
from pipelines.evaluate_config import EvaluateConfig, TaskConfig
from pipelines.model_config import ModelConfig
from pipelines.study.study_file import check_study, is_study
from pipelines.train_config import TrainConfig
from tsdae_core.noise import NoiseConfig
from tsdae_core.optim import OptimConfig
from tsdae_core.tsdae import TsdaeConfig

CONFIGS = Path(__file__).parents[2] / "configs"
COMPLETE = RunConfig(
    documents=CollectionConfig(),
    evaluate=EvaluateConfig(tasks=(TaskConfig(name="a", folder="b"), TaskConfig(name="c", folder="d"))),
)


def keys_of(config, prefix=""):
    """Every dotted key of a configuration, found by walking its dataclasses."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        yield f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from keys_of(value, f"{prefix}{field.name}.")
        elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            for i, item in enumerate(value):
                yield from keys_of(item, f"{prefix}{field.name}.{i}.")


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "complete.yaml"
    path.write_text(config_to_yaml(COMPLETE), encoding="utf-8")
    return path


def error_of(path, *overrides):
    with pytest.raises(InputError) as caught:
        load_config(path, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("key", keys_of(COMPLETE))
def test_a_misspelt_key_at_any_depth_is_named_with_its_nearest_neighbour(complete, key):
    assert error_of(complete, f"{key}x=1") == f"unknown configuration key '{key}x'. Did you mean '{key}'?"


def test_a_key_of_another_section_is_told_where_it_belongs():
    assert "Did you mean 'train.optim.lr'?" in error_of(None, "train.lr=1")
    assert "Did you mean 'train.tsdae.noise.ratio'?" in error_of(None, "train.ratio=1")


def test_a_key_like_no_other_is_told_what_its_section_has():
    assert error_of(None, "train.tsdae.noise.zzz=1").endswith("The keys there are: kind, ratio")


def test_a_wrong_key_in_the_file_is_found_as_well_as_one_in_an_override(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("train: {optim: {lrr: 1.0}}\n")
    assert error_of(path) == "unknown configuration key 'train.optim.lrr'. Did you mean 'train.optim.lr'?"
    path.write_text("1: {}\n")
    assert "unknown configuration key '1'" in error_of(path)


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("train.num_steps=many", "train.num_steps"),
        ("train.num_steps=1.5", "train.num_steps"),
        ("train.optim.lr=fast", "train.optim.lr"),
        ("train.optim.betas=0.9", "train.optim.betas"),
        ("train.optim.betas=[0.9]", "train.optim.betas"),
        ("train.objective=tsdea", "train.objective"),
        ("train.tsdae.noise=0.6", "train.tsdae.noise"),
        ("train=fast", "train"),
        ("workspace=5", "workspace"),
        ("corpus.input=", "corpus.input"),
        ("documents=here", "documents"),
        ("evaluate.tasks.1.folder=[a]", "evaluate.tasks.1.folder"),
        ("evaluate.tasks=[{name: a}]", "evaluate.tasks.0.folder"),
        ("index.allow_lower_recall=maybe", "index.allow_lower_recall"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_by_its_key(complete, override, key):
    assert f"configuration key '{key}" in error_of(complete, override)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("train.tsdae.noise.ratio=1.5", ("train.tsdae.noise", "1.5", "[0, 1]")),
        ("train.mlm.mask_prob=-0.1", ("train.mlm", ": MLM shares", "-0.1")),
        ("train.optim.lr=0", ("train.optim", "lr", "positive")),
        ("model.scratch.hidden_size=30", ("model.scratch", "hidden_size", "num_heads")),
        ("index.target_recall_at_10=1.01", ("index", "target_recall_at_10", "1.01")),
        ("train.num_lanes=3", ("train", "num_lanes", "batch_size")),
        ("train.num_lanes=-8", ("train", "num_lanes", "negative")),
        ("train.num_workers=3", ("train", "num_workers", "1, 2, 4, 8")),
        ("train.cpus_per_worker=-1", ("train", "cpus_per_worker")),
        ("embed.threads_per_actor=0", ("embed", "threads_per_actor")),
        ("cluster.num_cpus=0", ("cluster", "num_cpus")),
        ("model.max_tokens=3", ("model", "max_tokens")),
        ("model.attention=causal", ("model", "attention", "decoder-only")),
        ("corpus.min_chars=0", ("corpus", "min_chars")),
        ("documents.num_shards=-1", ("documents", "num_shards")),
        ("evaluate.num_examples=-1", ("evaluate", "num_examples")),
        ("evaluate.tasks=[{name: a, folder: b}, {name: a, folder: c}]", ("evaluate", "different names")),
        ("train.optim.weight_decay=.nan", ("train.optim.weight_decay", "finite")),
        ("train.cpus_per_worker=.inf", ("train.cpus_per_worker", "finite")),
    ],
)
def test_a_value_out_of_range_is_refused_by_the_section_that_owns_it(override, parts):
    message = error_of(None, override)
    assert f"configuration key '{parts[0]}" in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"train: [1, 2\n", "not valid YAML"),
        (b"train:\n\tnum_steps: 1\n", "not valid YAML"),
        (b"workspace: \xff\xfe\n", "not valid YAML"),
        (b"- train\n", "must hold a mapping"),
        (b"just words\n", "must hold a mapping"),
        (b"a: !!python/object/apply:os.getcwd []\n", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_yaml_mapping_is_named(tmp_path, content, part):
    path = tmp_path / "broken.yaml"
    path.write_bytes(content)
    message = error_of(path)
    assert part in message
    assert str(path) in message


def test_an_absent_file_and_a_folder_are_named(tmp_path):
    assert str(tmp_path / "no.yaml") in error_of(tmp_path / "no.yaml")
    assert str(tmp_path) in error_of(tmp_path)


def test_an_empty_file_and_no_file_give_the_defaults(tmp_path):
    path = tmp_path / "empty.yaml"
    path.write_text("# nothing\n")
    assert load_config(path) == load_config(None) == RunConfig()


def test_overrides_win_over_the_file_and_later_ones_over_earlier(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("train: {num_steps: 5, optim: {lr: 1.0}}\n")
    config = load_config(path, ["train.num_steps=6", "train.num_steps=7", "train.optim.warmup_steps=2"])
    assert config.train == TrainConfig(num_steps=7, optim=OptimConfig(lr=1.0, warmup_steps=2))


def test_overrides_read_yaml_values_and_what_yaml_takes_for_words(complete):
    assert load_config(complete, ["train.optim.lr=3e-5"]).train.optim.lr == 3e-5
    assert load_config(complete, ["train.optim.betas=[0.8, 0.9]"]).train.optim.betas == (0.8, 0.9)
    assert load_config(complete, ["documents=null"]).documents is None
    assert load_config(complete, ["documents="]).documents is None
    assert (
        load_config(complete, ["corpus.input=s3://bucket/a?region=x"]).corpus.input
        == "s3://bucket/a?region=x"
    )
    assert load_config(complete, ["train.tsdae={noise: {ratio: 0.5}}"]).train.tsdae.noise.ratio == 0.5


def test_an_override_reaches_an_element_of_a_list(complete):
    tasks = load_config(complete, ["evaluate.tasks.0.folder=x", "evaluate.tasks.1={name: n, folder: y}"])
    assert tasks.evaluate.tasks == (TaskConfig(name="a", folder="x"), TaskConfig(name="n", folder="y"))


@pytest.mark.parametrize("place", ["2", "-1", "x", "²"])
def test_an_override_of_an_absent_element_tells_how_many_there_are(complete, place):
    message = error_of(complete, f"evaluate.tasks.{place}.folder=x")
    assert f"evaluate.tasks.{place}.folder" in message
    assert "2 elements" in message


def test_an_override_fills_an_empty_section_and_an_empty_element(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("train:\nevaluate: {tasks: [null]}\n")
    config = load_config(path, ["train.num_steps=3", "evaluate.tasks.0.name=n", "evaluate.tasks.0.folder=f"])
    assert config.train.num_steps == 3
    assert config.evaluate.tasks == (TaskConfig(name="n", folder="f"),)


@pytest.mark.parametrize("override", ["train.num_steps", "=3", "", "train.num_steps:3"])
def test_an_override_without_key_or_value_shows_how_to_write_it(override):
    assert "key.subkey=value" in error_of(None, override)


def test_an_override_that_is_no_yaml_or_goes_below_a_value_is_named(tmp_path):
    assert "train.optim=[" in error_of(None, "train.optim=[")
    path = tmp_path / "a.yaml"
    path.write_text("seed: 3\n")
    assert "'seed' is not a section" in error_of(path, "seed.x=1")


NASTY = st.text(min_size=1, max_size=12) | st.sampled_from(
    [
        "yes",
        "null",
        "~",
        "1e5",
        "0x1f",
        "3e-5",
        ": a",
        "# b",
        "- c",
        "{d",
        "'",
        '"',
        "\\n",
        "2024-01-01",
        "é\u2028",
    ]
)
COLLECTIONS = st.builds(
    CollectionConfig,
    input=NASTY,
    text_column=NASTY,
    id_column=st.none() | NASTY,
    min_chars=st.integers(1, 50),
    num_shards=st.integers(0, 2**20),
    on_bad_file=st.sampled_from(["fail", "skip"]),
)
CONFIG = st.builds(
    RunConfig,
    workspace=NASTY,
    seed=st.integers(-(2**70), 2**70),
    corpus=COLLECTIONS,
    documents=st.none() | COLLECTIONS,
    model=st.builds(ModelConfig, start=NASTY, pooling=st.sampled_from(["cls", "mean", "max"])),
    train=st.builds(
        TrainConfig,
        num_steps=st.integers(1, 10**12),
        tsdae=st.builds(TsdaeConfig, noise=st.builds(NoiseConfig, ratio=st.floats(0, 1))),
        optim=st.builds(
            OptimConfig,
            lr=st.floats(1e-300, 1e300),
            betas=st.tuples(st.floats(0, 1), st.floats(0, 1)),
        ),
    ),
    index=st.builds(IndexConfig, memory_budget=st.none() | st.integers(1, 2**40).map(str)),
    evaluate=st.builds(
        EvaluateConfig,
        tasks=st.lists(
            st.builds(TaskConfig, name=NASTY, folder=NASTY), max_size=3, unique_by=lambda task: task.name
        ).map(tuple),
    ),
)


@settings(max_examples=40, deadline=None)
@given(config=CONFIG)
def test_the_shown_configuration_loads_back_to_an_equal_one(tmp_path_factory, config):
    path = tmp_path_factory.mktemp("config") / "shown.yaml"
    path.write_text(config_to_yaml(config), encoding="utf-8")
    assert load_config(path) == config


RECIPES = sorted(path for path in CONFIGS.rglob("*.yaml") if "cluster" not in path.parts)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_every_shipped_configuration_loads(path):
    if is_study(path):
        assert check_study(path)
    else:
        assert load_config(path) == load_config(path)
