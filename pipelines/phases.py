"""The phases of a recipe: trainings one after the other, each a train stage that starts where the last ended.

All but the last work in `phases/NAME/` of the workspace, the last in the workspace itself, so that later
stages find its encoder where they find any. Each phase is finished, resumed or redone by its own
fingerprint, which holds the encoder that it started from.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pipelines.config import RunConfig
from pipelines.errors import InputError
from pipelines.manifest import Manifest
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
    for number, phase in enumerate(earlier, 1):
        reporter.note(f"phase {number}/{len(config.phases)}: {phase.name}")
        place = workspace / PHASES_FOLDER / phase.name
        train(replace(config, train=phase.train, phases=()), place, corpus, reporter=reporter, home=workspace)
        config = _from(config, place / ENCODER_FOLDER)
    reporter.note(f"phase {len(config.phases)}/{len(config.phases)}: {last.name}")
    return train(replace(config, phases=()), workspace, corpus, reporter=reporter)


def _from(config: RunConfig, encoder: Location) -> RunConfig:
    """The settings of the next phase: it starts from this encoder, whose vocabulary is extended already."""
    model = replace(config.model, start=str(Path(encoder.path)), add_tokens_file=None, mine_tokens=0)
    return replace(config, model=model)
