"""The phases of a recipe: trainings one after the other, each a train stage that starts where the last ended.

All but the last work in `phases/NAME/` of the workspace, the last in the workspace itself, so that later
stages find its encoder where they find any. Each phase is finished, resumed or redone by its own
fingerprint, which holds the encoder that it started from and how it pools.
"""

from __future__ import annotations

from dataclasses import replace

from pipelines.collection import finished_manifest
from pipelines.config import RunConfig
from pipelines.errors import InputError, nearest
from pipelines.labels import prepare_labels
from pipelines.manifest import Manifest, read_manifest
from pipelines.progress import Reporter
from pipelines.pseudo_labels import check_generation, generates, make_pseudo_labels
from pipelines.start import resolve_start
from pipelines.storage import Location, address_below
from pipelines.train import train
from pipelines.train_job import ENCODER_FOLDER

PHASES_FOLDER = "phases"


def train_phases(config: RunConfig, workspace: Location, corpus: Manifest, *, reporter: Reporter) -> Manifest:
    """Runs every phase that is not finished (or the one training of a recipe without phases).

    workspace: what `config.workspace` names.

    Raises:
        InputError: as `train`.
    """
    if not config.phases:
        return train(config, workspace, corpus, reporter=reporter)
    places = [_place(config, workspace, number) for number in range(len(config.phases))]
    for phase, place in zip(config.phases, places, strict=True):
        # What a late phase cannot use shows before hours of the earlier ones.
        check_generation(phase.train, place)
        if phase.train.labels is not None and not generates(phase.train):
            prepare_labels(phase.train, place, reporter=reporter)
    for number, (phase, place) in enumerate(zip(config.phases, places, strict=True)):
        reporter.note(f"phase {number + 1}/{len(config.phases)}: {phase.name}")
        alone = _phase(config, workspace, number)
        manifest = train(alone, place, corpus, reporter=reporter, home=workspace)
    return manifest


def one_phase(config: RunConfig, workspace: Location, name: str | None) -> tuple[RunConfig, Location]:
    """The settings of one phase as a training by itself, and where it works; without phases the training.

    workspace: what `config.workspace` names.

    Raises:
        InputError: no such phase, none named where there are some, or it starts from an encoder that is not
            there yet.
    """
    names = [phase.name for phase in config.phases]
    if not names:
        if name is not None:
            raise InputError(f"there is no phase '{name}': this recipe is one training; leave --phase out")
        return config, workspace
    if name is None:
        raise InputError(f"this recipe has phases; name one with --phase: {', '.join(names)}")
    if name not in names:
        raise InputError(f"there is no phase '{name}'; there are: {', '.join(names)}.{nearest(name, names)}")
    number = names.index(name)
    if number and read_manifest(_place(config, workspace, number - 1) / ENCODER_FOLDER) is None:
        raise InputError(
            f"phase '{name}' starts from the encoder of '{names[number - 1]}', which is not trained yet; run "
            "`tsdae train` first"
        )
    return _phase(config, workspace, number), _place(config, workspace, number)


def label_phase(config: RunConfig, workspace: Location, name: str | None, *, reporter: Reporter) -> Manifest:
    """Makes the pseudo-labels of one phase, or of the training of a recipe without phases; trains nothing.

    name: None takes the one phase that generates its labels.

    Raises:
        InputError: no such phase, none that generates labels, several and none named, or it starts from an
            encoder that is not there yet.
    """
    making = [phase.name for phase in config.phases if generates(phase.train)]
    alone, place = one_phase(config, workspace, making[0] if name is None and len(making) == 1 else name)
    if not generates(alone.train):
        raise InputError(
            "this training has no train.labels.generate, so there are no pseudo-labels to make"
            + (f"; phases that have: {', '.join(making)}" if making else "")
        )
    corpus = finished_manifest(workspace / "corpus", command="prepare")
    start = resolve_start(alone, place, corpus, workspace / "corpus", reporter=reporter)
    return make_pseudo_labels(alone, place, start, home=workspace, reporter=reporter)


def _place(config: RunConfig, workspace: Location, number: int) -> Location:
    """Where a phase works."""
    if number == len(config.phases) - 1:
        return workspace
    return workspace / PHASES_FOLDER / config.phases[number].name


def _phase(config: RunConfig, workspace: Location, number: int) -> RunConfig:
    """The settings of a phase by itself; a later one starts from the encoder of the one before."""
    alone = config.phase_alone(number)
    if number == 0:
        return alone
    place = _place(config, workspace, number - 1) / ENCODER_FOLDER
    start = address_below(place, workspace, config.workspace)
    model = replace(alone.model, start=start, add_tokens_file=None, mine_tokens=0)
    return replace(alone, model=model)
