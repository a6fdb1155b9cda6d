"""Where the task comes from that a training is validated on, and what is refused as one.

Its scores are `validation_score`'s business.
"""

from __future__ import annotations

from indexing.evaluation.readers import detect_kind
from pipelines.errors import InputError
from pipelines.stopping_config import ValidationTask
from pipelines.storage import Location
from pipelines.task_source import TaskSource, default_name


def validation_source(config: ValidationTask | None) -> TaskSource | None:
    """Where the task comes from; None for none.

    Raises:
        InputError: there is nothing that is known, or no part for development.
    """
    if config is None:
        return None
    place = Location.parse(config.folder)
    try:
        kind = detect_kind(place.filesystem, place.path) if config.kind == "auto" else config.kind
    except (FileNotFoundError, ValueError) as error:
        raise InputError(f"early_stopping.task: {error}") from error
    if kind == "twitterpara":
        raise InputError(
            f"'{config.folder}' is TwitterPara, which has a test part only: validate on a file of pairs of "
            "your own (columns sentence1, sentence2, label)"
        )
    return TaskSource(
        name=default_name(place), kind=kind, place=place, split=config.split, qrels=config.qrels
    )
