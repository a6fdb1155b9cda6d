"""Which settings of a run name places, and which of them mean something on this machine only.

A job runs on other machines and in another working directory, where a relative path is another place or
none. Must not know how a job is submitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipelines.config import RunConfig
from pipelines.errors import InputError
from pipelines.storage import is_url
from pipelines.train_config import TrainConfig

_SQLITE = "sqlite:"
_ABSOLUTE_SQLITE = "sqlite:////"
# Tracking servers that go by a name instead of a URL.
_SERVERS = ("databricks", "databricks-uc")


def check_places(config: RunConfig) -> None:
    """Refuses paths that mean something on this machine only.

    The sections `serve` and `cluster` are left out: a job serves nothing and has its cluster already.

    Raises:
        InputError: names the first relative path and what to give instead.
    """
    for key, place in _places(config):
        if not is_url(place) and not Path(place).is_absolute():
            raise InputError(
                f"{key} '{place}' is relative, and a job runs on other machines: give an absolute path on "
                "storage that every node sees, or a URL (s3://, gs://)"
            )
    if config.tracking.uri is not None:
        check_tracking("tracking.uri", config.tracking.uri)


def check_tracking(key: str, uri: str) -> None:
    """Refuses a tracking URI whose database is named relative to the working directory.

    Raises:
        InputError: names the key and what to give instead.
    """
    if uri.startswith(_ABSOLUTE_SQLITE) or uri in _SERVERS:
        return
    if uri.startswith(_SQLITE) or not is_url(uri):
        raise InputError(
            f"{key} '{uri}' is relative, and a job runs on other machines: give the address of an MLflow "
            "server, e.g. http://MLFLOW:5000"
        )


def _places(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Every setting that names a place, by its dotted key."""
    yield "workspace", config.workspace
    if not config.evaluate.systems or config.evaluate.needs_corpus:
        yield "corpus.input", config.corpus.input
    if config.documents is not None:
        yield "documents.input", config.documents.input
    if _is_local(config.model.start):
        yield "model.start", config.model.start
    if config.model.add_tokens_file is not None:
        yield "model.add_tokens_file", config.model.add_tokens_file
    if config.phases:
        for number, phase in enumerate(config.phases):
            yield from _of_training(f"phases.{number}.train", phase.train)
    else:
        yield from _of_training("train", config.train)
    for number, task in enumerate(config.evaluate.tasks):
        yield f"evaluate.tasks.{number}.folder", task.folder
    for number, system in enumerate(config.evaluate.systems):
        is_file = system.kind in ("run", "words", "words_idf")
        if system.source and (is_file or _is_local(system.source)):
            yield f"evaluate.systems.{number}.source", system.source


def _of_training(key: str, train: TrainConfig) -> Iterator[tuple[str, str]]:
    if train.labels is not None:
        if train.labels.generate is None:
            yield f"{key}.labels.input", train.labels.input
        else:
            models = (train.labels.generate.generator, train.labels.generate.cross_encoder)
            for name, model in zip(("generator", "cross_encoder"), models, strict=True):
                if _is_local(model):
                    yield f"{key}.labels.generate.{name}", model
    if train.early_stopping.task is not None:
        yield f"{key}.early_stopping.task.folder", train.early_stopping.task.folder


def _is_local(name: str) -> bool:
    """Whether a model's name is a path; a hub's names are `model` or `owner/model`."""
    return Path(name).exists() or name.startswith((".", "~")) or name.count("/") > 1 or name.endswith("/")
