"""`tsdae pseudo-label`: the rows that a training makes for itself, without the training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import ConfigPath, Overrides

if TYPE_CHECKING:
    from pipelines.config import RunConfig
    from pipelines.progress import Reporter
    from pipelines.storage import Location


def pseudo_label(
    config: ConfigPath,
    overrides: Overrides = None,
    phase: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Which phase of a recipe, if several generate their labels.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Generate queries for documents, mine negatives and score them (GPL); what `tsdae train` does first."""
    from pipelines.config_io import load_config
    from pipelines.phases import label_phase
    from pipelines.progress import Reporter
    from pipelines.run import run_alone

    def work(resolved: RunConfig, workspace: Location, reporter: Reporter) -> None:
        label_phase(resolved, workspace, phase, reporter=reporter)

    run_alone(work, load_config(config, overrides or ()), reporter=Reporter())
