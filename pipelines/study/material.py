"""What many cells share, made once: prepared corpora, and the start and tokens that trainings begin with.

All lies in `material/` of a study's workspace, in folders named by what made them, so studies share it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import filelock

from pipelines.collection import finished_manifest
from pipelines.config import RunConfig
from pipelines.config_values import config_to_dict
from pipelines.labels import LABELS_FOLDER, prepare_labels
from pipelines.manifest import Manifest, stable_hash
from pipelines.prepare import prepare
from pipelines.progress import Reporter
from pipelines.shards import run_shards_here
from pipelines.start import resolve_start
from pipelines.storage import Location
from pipelines.study.grid import Cell
from pipelines.study.identity import labels_name, reads_corpus
from pipelines.token_shards import tokenize

_NAME_CHARS = 20
# A lock that no living process holds is free at once; one that is held is waited for.
_LOCK_NAME = ".lock"


def prepare_corpora(cells: Sequence[Cell], material: Location, *, reporter: Reporter) -> dict[str, Location]:
    """Prepares every corpus that some cell reads, or that lies beside a start.

    Returns the folders (with `corpus/` in them) by input.

    Raises:
        InputError: as `prepare`.
    """
    places: dict[str, Location] = {}
    for cell in cells:
        config = cell.config.corpus
        if not (reads_corpus(cell) or cell.system.kind == "start") or config.input in places:
            continue
        place = material / "corpora" / stable_hash(config_to_dict(config))[:_NAME_CHARS]
        with locked(place):
            prepare("corpus", config, place, reporter=reporter)
        places[config.input] = place
    return places


def prepare_label_sets(
    cells: Sequence[Cell], material: Location, *, reporter: Reporter
) -> dict[str, Location]:
    """Prepares all labelled rows that some cell reads, or that lie beside a start.

    Returns the folders (with `labels/` in them) by name.

    Raises:
        InputError: as `prepare_labels`.
    """
    places: dict[str, Location] = {}
    begun = [cell for cell in cells if cell.system.kind in ("trained", "start")]
    trains = [part.train for cell in begun for _, part in cell.trainings]
    for train in trains:
        if train.labels is None or (name := labels_name(train)) in places:
            continue
        place = material / "labels" / name
        with locked(place):
            prepare_labels(train, place, reporter=reporter)
        places[name] = place
    return places


def labels_manifest(place: Location) -> Manifest:
    """The manifest of prepared labels."""
    return finished_manifest(place / LABELS_FOLDER, command="study")


def corpus_manifest(home: Location) -> Manifest:
    """The manifest of a prepared corpus."""
    return finished_manifest(home / "corpus", command="study")


def material_name(config: RunConfig, corpus: Manifest, labels: Mapping[str, str]) -> str:
    """The folder of what a training begins with; names what `make_material` depends on.

    labels: digests by name, of all labelled rows.
    """
    model = config_to_dict(config.model)
    parts = [model, config.seed, config.train.validation_rows, corpus.digest]
    if config.train.labels is not None:
        parts.append(labels[labels_name(config.train)])
    return stable_hash(parts)[:_NAME_CHARS]


def make_material(
    config: RunConfig,
    place: Location,
    home: Location,
    labels: Mapping[str, Location],
    *,
    reporter: Reporter,
) -> Manifest:
    """Writes `start/` and `tokens/` into `place` unless they are there, and returns the tokens' manifest.

    home: has the prepared `corpus/`. labels: folders of labelled rows by name. To be called inside a Ray
    task: it starts none.
    """
    rows, folder = corpus_manifest(home), home / "corpus"
    if config.train.labels is not None:
        source = labels[labels_name(config.train)]
        rows, folder = labels_manifest(source), source / LABELS_FOLDER
    corpus = corpus_manifest(home)
    alone = replace(config, phases=())
    with locked(place):
        start = resolve_start(alone, place, corpus, home / "corpus", reporter=reporter)
        return tokenize(alone, place, rows, start, folder, reporter=reporter, runner=run_shards_here)


@contextmanager
def locked(place: Location) -> Iterator[None]:
    """Holds the lock of a folder, waiting for it; folders on object stores have none."""
    if not place.is_local:
        yield
        return
    place.make_dir()
    with filelock.FileLock((place / _LOCK_NAME).path):
        yield
