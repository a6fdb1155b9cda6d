"""What each objective sets in a recipe that leaves it out: the settings of its row in the TSDAE paper.

Owns what differs from TSDAE, whose settings are the defaults of the configuration's classes. They are put in
when a recipe is loaded, so that whatever is shown, fingerprinted or logged has the values in force; a value
that the recipe gives always wins. Must not know how a recipe is read or checked.

`retromae` and `protected` are not in the paper and take what TSDAE takes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pipelines.labels_config import SUPERVISED

# 2e-5, falling, and one pass over NLI (of 16 pairs) or four over STS: Reimers and Gurevych 2019 and their
# examples. Their warm-up of a tenth of the steps is a number that only a recipe can name.
_SUPERVISED_RATE = {"lr": 2e-5, "schedule": "linear"}
# The paper stops in-domain training early on validation data; how often and how patiently it does not say.
_IN_DOMAIN = {
    "batch_size": 64,
    "num_epochs": 10,
    "num_steps": 20_000,
    "optim": _SUPERVISED_RATE,
    "validate_every": 500,
    "keep": "best",
    "early_stopping": {"patience": 5},
}
# GPL (arXiv 2112.07577) and its authors' program.
_PSEUDO_LABELLED = {
    "batch_size": 32,
    "num_steps": 140_000,
    "optim": {**_SUPERVISED_RATE, "warmup_steps": 1_000, "weight_decay": 0.01},
}

_TRAIN: dict[str, dict[str, Any]] = {
    "mlm": {"optim": {"lr": 5e-5}},
    "ct": {
        "batch_size": 16,  # two anchors, each with itself and seven others
        "optim": {
            "optimizer": "rmsprop",
            "lr": 1e-5,
            "schedule": "piecewise",
            "boundaries": [500, 1_000, 1_500, 2_000],
            "rates": [8e-6, 6e-6, 4e-6, 2e-6],
        },
    },
    "simcse": {"batch_size": 512, "num_epochs": 1, "optim": {"lr": 5e-5}},
    "nli": {"batch_size": 16, "num_epochs": 1, "optim": _SUPERVISED_RATE},
    "sts": {"batch_size": 16, "num_epochs": 4, "optim": _SUPERVISED_RATE},
    "ranking": _IN_DOMAIN,
    "pairs": _IN_DOMAIN,
    "margin_mse": _PSEUDO_LABELLED,
}
_POOLING = dict.fromkeys(("mlm", "ct", *SUPERVISED), "mean")

# How long a training is. A recipe that gives one of these means that, and not the other's default beside it.
_LENGTH = ("num_steps", "num_epochs")
# When it ends before that: goes with our length only, and needs something to validate on.
_STOPPING = ("validate_every", "keep", "early_stopping")
# With one of these given, the steps of a piecewise rate, which are rates themselves, are not to be mixed in.
_RATE = ("lr", "schedule", "boundaries", "rates")
_STEPS_OF_A_RATE = ("schedule", "boundaries", "rates")


def with_training_defaults(train: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of one training with its objective's; of `train`, or of a phase."""
    return _filled(train) or dict(train)


def with_objective_defaults(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a run's configuration, with what the objectives of its trainings set in it.

    Sections that are not what they should be are left for the check to refuse.
    """
    result = dict(tree)
    phases = tree.get("phases")
    if not phases:
        if (train := _filled(tree.get("train"))) is not None:
            result["train"] = train
        trains = [result.get("train")]
    elif isinstance(phases, list | tuple):
        result["phases"] = [_filled_phase(phase) for phase in phases]
        trains = [phase.get("train") for phase in result["phases"] if isinstance(phase, Mapping)]
    else:
        return result
    pooling = _pooling([_objective_of(train) for train in trains])
    model = tree.get("model", {})
    if pooling is not None and isinstance(model, Mapping) and "pooling" not in model:
        result["model"] = {**model, "pooling": pooling}
    return result


def _pooling(objectives: list[str]) -> str | None:
    """That of the last training without labels, as in the paper's recipes of several; else the last one's."""
    unlabelled = [name for name in objectives if name not in SUPERVISED]
    return _POOLING.get((unlabelled or objectives or [""])[-1])


def _filled_phase(phase: Any) -> Any:
    train = _filled(phase.get("train")) if isinstance(phase, Mapping) else None
    return phase if train is None else {**phase, "train": train}


def _filled(train: Any) -> dict[str, Any] | None:
    """The section with its objective's settings where it has none; None where nothing is to be set."""
    settings = _TRAIN.get(_objective_of(train))
    if settings is None:
        return None
    left_out = {*_LENGTH, *_STOPPING} if any(name in train for name in _LENGTH) else set()
    stopping = train.get("early_stopping", {})
    has_task = isinstance(stopping, Mapping) and stopping.get("task") is not None
    if train.get("validation_rows") == 0 and not has_task:
        left_out |= set(_STOPPING)
    ours = {key: copy.deepcopy(value) for key, value in settings.items() if key not in left_out}
    if "early_stopping" in ours and isinstance(stopping, Mapping):
        metric = {"metric": "task" if has_task else "validation_loss"}
        train = {**train, "early_stopping": {**metric, **ours["early_stopping"], **stopping}}
    optim = train.get("optim", {})
    if isinstance(optim, Mapping):
        ours["optim"] = {**_rate_beside(optim, ours["optim"]), **optim}
    return {**ours, **train, "optim": ours["optim"] if isinstance(optim, Mapping) else optim}


def _rate_beside(given: Mapping[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """What of an objective's `optim` goes with what a recipe gives."""
    is_stepped = ours.get("schedule") == "piecewise" and any(name in given for name in _RATE)
    if is_stepped or any(name in given for name in _STEPS_OF_A_RATE):
        return {key: value for key, value in ours.items() if key not in _STEPS_OF_A_RATE}
    return ours


def _objective_of(train: Any) -> str:
    found = train.get("objective", "") if isinstance(train, Mapping) else ""
    return found if isinstance(found, str) else ""
