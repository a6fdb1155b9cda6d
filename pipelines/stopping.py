"""When a training stops early and which of its validations was the best: pure functions of a curve.

The curve is part of every checkpoint, so a resumed run decides as the undisturbed one did.
"""

from __future__ import annotations

from pipelines.train_config import EarlyStopping
from pipelines.train_job import Curve, History


def curve_of(history: History, config: EarlyStopping) -> Curve:
    """The curve that the configured metric looks at."""
    if config.metric == "validation_loss":
        return history.validation_losses
    return history.task_scores if config.metric == "task" else history.retrieval_mrrs


def best_step(history: History, config: EarlyStopping) -> int | None:
    """The step of the best validation; None before the first.

    A later value must be better by more than `min_delta` to take the place of an earlier one.
    """
    best: tuple[int, float] | None = None
    for step, value in curve_of(history, config):
        if best is None or _gain(value, best[1], config) > config.min_delta:
            best = (step, value)
    return best[0] if best else None


def has_stopped(history: History, config: EarlyStopping) -> bool:
    """Whether the last `patience` validations brought nothing better; never with patience 0."""
    best = best_step(history, config)
    if config.patience == 0 or best is None:
        return False
    return sum(step > best for step, _ in curve_of(history, config)) >= config.patience


def _gain(value: float, before: float, config: EarlyStopping) -> float:
    return before - value if config.metric == "validation_loss" else value - before
