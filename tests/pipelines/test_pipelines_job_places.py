"""A job runs on other machines: every setting that names a place must name the same one there."""

import dataclasses
import typing
from pathlib import Path

import pytest

from pipelines.config import RunConfig
from pipelines.config_io import config_of
from pipelines.errors import InputError
from pipelines.job_places import check_places
from pipelines.submit import submit

TASK = {"name": "t", "folder": "/data/task"}
SYSTEM = {"name": "s", "kind": "words", "source": "/data/vectors.txt"}
LABELS = {"objective": "nli", "labels": {"input": "/data/nli"}}
STOPPING = {"early_stopping": {"task": {"folder": "/data/dev"}}}
MODELS = {"generator": "/models/t5", "cross_encoder": "/models/cross"}
MADE = {"objective": "margin_mse", "labels": {"generate": MODELS}}
FULL = {
    "workspace": "s3://bucket/work",
    "corpus": {"input": "/data/corpus"},
    "documents": {"input": "gs://bucket/documents"},
    "model": {"start": "owner/model", "add_tokens_file": "/data/words.txt"},
    "phases": [
        {"name": "a", "train": {**LABELS}},
        {"name": "b", "train": {**STOPPING}},
        {"name": "c", "train": MADE},
    ],
    "evaluate": {"tasks": [TASK], "systems": [SYSTEM]},
    "tracking": {"uri": "http://mlflow:5000"},
}
ALONE = {**FULL, "phases": [], "train": LABELS | STOPPING}

PLACES = {
    "workspace": ("work", "./work", "~/work"),
    "corpus.input": ("data/*.parquet", ""),
    "documents.input": ("documents",),
    "model.start": ("./model", "~/model", "models/of/mine", "model/"),
    "model.add_tokens_file": ("words.txt",),
    "train.labels.input": ("nli.jsonl",),
    "train.labels.generate.generator": ("./t5", "models/of/mine"),
    "train.labels.generate.cross_encoder": ("./cross", "models/of/mine"),
    "train.early_stopping.task.folder": ("dev",),
    "phases.0.train.labels.input": ("nli.jsonl",),
    "phases.1.train.early_stopping.task.folder": ("dev",),
    "phases.2.train.labels.generate.generator": ("./t5", "models/of/mine"),
    "phases.2.train.labels.generate.cross_encoder": ("./cross", "models/of/mine"),
    "evaluate.tasks.0.folder": ("task",),
    "evaluate.systems.0.source": ("vectors.txt",),
    "tracking.uri": ("sqlite:///mine.db", "sqlite:mine.db", "mlruns", "./mlruns"),
}
# Texts that name no place, or one inside a place that is checked.
NO_PLACES = {
    "cluster.address", "serve.host", "serve.model", "serve.cross_encoder",  # not a job's
    "corpus.text_column", "corpus.id_column", "corpus.title_column", "corpus.keep_columns",
    "corpus.sentences.language", "corpus.languages.allowed",
    "documents.text_column", "documents.id_column", "documents.title_column", "documents.keep_columns",
    "documents.sentences.language", "documents.languages.allowed",
    "train.labels.generate.prefix",
    "train.labels.text_columns", "train.labels.label_column", "train.labels.label_names",
    "train.early_stopping.task.split", "train.early_stopping.task.qrels",
    "phases.name", "evaluate.tasks.name", "evaluate.tasks.qrels", "evaluate.tasks.split",
    "evaluate.systems.name", "index.factory", "index.build_memory", "index.memory_budget",
    "evaluate.map_column", "register.name", "register.alias",
    "promote.champion", "promote.previous", "promote.measure", "tracking.experiment",
}  # fmt: skip


def texts(config_class, prefix=""):
    """The dotted keys of all settings that are free text, without the numbers of lists."""
    found = set()
    for name, hint in typing.get_type_hints(config_class).items():
        parts = {hint, *typing.get_args(hint)}
        sections = [part for part in parts if dataclasses.is_dataclass(part)]
        for section in sections:
            found |= texts(section, f"{prefix}{name}.")
        if str in parts:
            found.add(prefix + name)
    return found


def with_value(key, value):
    """The full configuration with one value replaced."""
    tree = FULL if key.startswith("phases") else ALONE
    if key.startswith("train.labels.generate."):
        tree = ALONE | {"train": MADE}

    def replaced(node, parts):
        if not parts:
            return value
        head, *rest = parts
        if isinstance(node, list):
            return [replaced(item, rest) if i == int(head) else item for i, item in enumerate(node)]
        return {**node, head: replaced(node[head], rest)}

    return config_of(replaced(tree, key.split(".")), RunConfig)


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in PLACES.items() for value in values]
)
def test_a_relative_place_is_refused_by_its_key(key, value):
    with pytest.raises(InputError) as caught:
        check_places(with_value(key, value))
    assert str(caught.value).startswith(
        f"{key} '{value}' is relative, and a job runs on other machines: give "
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[(key, "/absolute/place") for key in PLACES if key != "tracking.uri"],
        *[(key, "s3://bucket/place?region=x") for key in PLACES if key != "tracking.uri"],
        ("model.start", "bert-base-uncased"),
        ("model.start", "owner/model"),
        ("tracking.uri", "sqlite:////srv/mlflow.db"),
        ("tracking.uri", "postgresql://host/mlflow"),
        ("tracking.uri", "databricks"),
        ("tracking.uri", None),
    ],
)
def test_absolute_places_urls_and_hub_names_pass(key, value):
    check_places(with_value(key, value))


def test_an_encoder_of_a_system_may_be_a_hub_name_or_a_function_but_not_a_relative_folder(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    for kind in ("encoder", "whitening", "flow"):
        for source in ("owner/model", "package.module:function"):
            check_places(with_value("evaluate.systems.0", {"name": "s", "kind": kind, "source": source}))
        for source in ("mine", "./mine"):
            with pytest.raises(InputError, match=r"evaluate\.systems\.0\.source '.*mine' is relative"):
                check_places(with_value("evaluate.systems.0", {"name": "s", "kind": kind, "source": source}))
    run = {"name": "s", "kind": "run", "source": "ranking.trec"}
    with pytest.raises(InputError, match=r"evaluate\.systems\.0\.source 'ranking\.trec' is relative"):
        check_places(with_value("evaluate.systems.0", run))


def test_every_setting_that_is_a_text_is_checked_or_known_to_name_no_place():
    checked = {".".join(part for part in key.split(".") if not part.isdecimal()) for key in PLACES}
    in_phases = {key.replace("train.", "phases.train.", 1) for key in NO_PLACES if key.startswith("train.")}
    assert texts(RunConfig) - checked - NO_PLACES - in_phases == set()


@pytest.mark.parametrize(
    "given", [{"environment": True}, {"variables": ["MLFLOW_TRACKING_URI=sqlite:///mine.db"]}]
)
def test_a_relative_database_that_is_handed_on_is_refused(given, monkeypatch):
    if given.pop("environment", False):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mine.db")
    with pytest.raises(InputError, match=r"MLFLOW_TRACKING_URI 'sqlite:///mine\.db' is relative"):
        submit(with_value("tracking.uri", None), address="http://127.0.0.1:1", **given)
