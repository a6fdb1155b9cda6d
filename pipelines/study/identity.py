"""What a cell's result depends on, as a fingerprint: cells of equal fingerprint are one, in whatever study.

Places do not count, contents do; nor do settings that change neither weights nor scores (speed, how often
something is logged), or that the cell does not use. `validation_rows` counts (held-out rows are not
trained on), and so do `max_batch_tokens` and `compile` (the last bits, dropout) and `score_steps`.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.compared_system import ComparedSystem
from pipelines.config import RunConfig
from pipelines.config_values import config_to_dict
from pipelines.label_rule import LabelRule
from pipelines.manifest import Manifest, stable_hash
from pipelines.start import describe_start
from pipelines.study.grid import Cell, is_random
from pipelines.train import SPEED_ONLY
from pipelines.train_config import TrainConfig
from pipelines.validation_task import validation_source

# Part of every fingerprint: raise it when a change makes cells give other results.
# 2: dropout by key. 3: equal texts are no negatives, RetroMAE decodes enhanced.
_CELL_VERSION = 3
_KEY_CHARS = 20


@dataclass(frozen=True)
class Prepared:
    """A prepared corpus or set of labelled rows: the digest of its contents, and how many rows it has."""

    digest: str
    num_rows: int

    @staticmethod
    def of(manifest: Manifest) -> Prepared:
        """From its manifest."""
        return Prepared(manifest.digest, manifest.counts["rows_kept"])


def cell_key(cell: Cell, prepared: Mapping[str, Prepared]) -> str:
    """The name of a cell's folder.

    prepared: the corpus by its input, and labelled rows by `labels_name`.
    """
    system, config = cell.system, cell.config
    parts: list[Any] = [_CELL_VERSION, _system(cell)]
    if is_random(cell):
        parts.append(config.seed)
    if system.kind in ("trained", "start"):
        parts.append(_model(config))
    if system.trains:
        trainings = [phase.train for phase in config.phases] or [config.train]
        parts.append([_training(train, prepared, config.corpus.input) for train in trainings])
        parts.append(sorted(cell.score_steps))
        if any(phase.pooling for phase in config.phases):
            parts.append([phase.pooling for phase in config.phases])
    if reads_corpus(cell):
        parts.append(prepared[config.corpus.input].digest)
    return stable_hash(parts)[:_KEY_CHARS]


def reads_corpus(cell: Cell) -> bool:
    """Whether the domain's texts take part: in training, in a transform, in the vocabulary."""
    model = cell.config.model
    made_of_it = model.start == "scratch" or model.mine_tokens > 0
    return cell.system.reads_corpus or (cell.system.kind == "start" and made_of_it)


def _system(cell: Cell) -> list[Any]:
    """The kind, and of the settings those that the kind looks at."""
    plain = config_to_dict(cell.system)
    kind, source = plain.pop("kind"), plain.pop("source")
    if source:
        found = ComparedSystem(name="source", kind=kind, source=source).fingerprint()
        return [kind, found]
    if kind == "bm25":
        return [kind, ComparedSystem(name="source", kind="bm25").fingerprint()]
    prefixes = {"sent2vec": ("sent2vec_", "max_texts")}.get(kind, ())
    used = {key: value for key, value in plain.items() if key.startswith(prefixes)} if prefixes else {}
    if plain["transform"] != "none":
        used |= {key: plain[key] for key in ("transform", "max_texts")}
        if plain["transform"] == "flow":
            used |= {key: plain[key] for key in ("flow_lr", "flow_epochs")}
    return [kind, used]


def _model(config: RunConfig) -> dict[str, Any]:
    plain = config_to_dict(config.model)
    plain["start"] = _describe(config.model.start)
    if config.model.start != "scratch":
        plain.pop("scratch")
    return plain


# Hashing a checkpoint takes longer than all the rest, and a study asks for the same few again and again.
_describe = functools.lru_cache(maxsize=64)(describe_start)


def _training(train: TrainConfig, prepared: Mapping[str, Prepared], corpus: str) -> dict[str, Any]:
    """The settings that count; labelled rows by their contents."""
    plain = {key: value for key, value in config_to_dict(train).items() if key not in SPEED_ONLY}
    plain = without_idle_sections(plain)
    rows = prepared[corpus if train.labels is None else labels_name(train)]
    if train.labels is not None:
        plain["labels"] = rows.digest
    if train.max_rows >= rows.num_rows:  # all of them, as 0
        plain["max_rows"] = 0
    plain.pop("log_every")
    if train.keep == "last" and train.early_stopping.patience == 0:  # validation only tells
        del plain["validate_every"], plain["early_stopping"]
        return plain
    task = validation_source(train.early_stopping.task)
    if task is not None:
        plain["early_stopping"]["task"] = task.fingerprint()
    return plain


def labels_name(train: TrainConfig) -> str:
    """Names the folder of a training's prepared labels."""
    assert train.labels is not None
    parts = [train.objective, config_to_dict(train.labels), config_to_dict(LabelRule.of(train))]
    return stable_hash(parts)[:_KEY_CHARS]


def without_idle_sections(train: Mapping[str, Any]) -> dict[str, Any]:
    """Plain settings of a training without the sections of objectives that are not in force."""
    names = typing.get_args(typing.get_type_hints(TrainConfig)["objective"])
    return {key: value for key, value in train.items() if key not in names or key == train["objective"]}
