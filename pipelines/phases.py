"""The phases of a recipe: trainings one after the other, each a train stage that starts where the last ended.

All but the last work in `phases/NAME/` of the workspace, the last in the workspace itself, so that later
stages find its encoder where they find any. Each phase is finished, resumed or redone by its own
fingerprint, which holds the encoder that it started from.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pipelines.config import RunConfig
from pipelines.errors import InputError, nearest
from pipelines.labels import prepare_labels
from pipelines.manifest import Manifest, read_manifest
from pipelines.progress import Reporter
from pipelines.storage import Location
from pipelines.train import train
from pipelines.train_job import ENCODER_FOLDER

PHASES_FOLDER = "phases"


def train_phases(config: RunConfig, workspace: Location, corpus: Manifest, *, reporter: Reporter) -> Manifest:
    """Runs every phase that is not finished (or the one training of a recipe without phases).

    Raises:
        InputError: as `train`, or for phases in a workspace that is not a local path.
    """
    if not config.phases:
        return train(config, workspace, corpus, reporter=reporter)
    if not workspace.is_local:
        raise InputError(
            f"phases hand their encoder on as a folder, but the workspace '{workspace}' is not a local path; "
            "use a local or shared folder"
        )
    *earlier, last = config.phases
    places = [workspace / PHASES_FOLDER / phase.name for phase in earlier]
    for phase, place in zip(config.phases, [*places, workspace], strict=True):
        if phase.train.labels is not None:  # bad rows of a late phase show before hours of the earlier ones
            prepare_labels(phase.train, place, reporter=reporter)
    for number, (phase, place) in enumerate(zip(earlier, places, strict=True), 1):
        reporter.note(f"phase {number}/{len(config.phases)}: {phase.name}")
        train(replace(config, train=phase.train, phases=()), place, corpus, reporter=reporter, home=workspace)
        config = _from(config, place / ENCODER_FOLDER)
    reporter.note(f"phase {len(config.phases)}/{len(config.phases)}: {last.name}")
    return train(replace(config, phases=()), workspace, corpus, reporter=reporter)


def one_phase(config: RunConfig, workspace: Location, name: str | None) -> tuple[RunConfig, Location]:
    """The settings of one phase as a training by itself, and where it works; without phases the training.

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
    place = workspace if number == len(names) - 1 else workspace / PHASES_FOLDER / name
    chosen = replace(config, train=config.phases[number].train, phases=())
    if number == 0:
        return chosen, place
    before = workspace / PHASES_FOLDER / names[number - 1] / ENCODER_FOLDER
    if read_manifest(before) is None:
        raise InputError(
            f"phase '{name}' starts from the encoder of '{names[number - 1]}', which is not trained yet; run "
            "`tsdae train` first"
        )
    return _from(chosen, before), place


def _from(config: RunConfig, encoder: Location) -> RunConfig:
    """The settings of the next phase: it starts from this encoder, whose vocabulary is extended already."""
    model = replace(config.model, start=str(Path(encoder.path)), add_tokens_file=None, mine_tokens=0)
    return replace(config, model=model)
