"""`tsdae promote`: the gate in front of the champion's alias, and the way back."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.cli.options import ConfigPath, Overrides

_REFUSED = 1


def promote(
    config: ConfigPath,
    overrides: Overrides = None,
    version: Annotated[
        str | None,
        typer.Option(
            "--version", help="Version to promote; else the one at register.alias.", show_default=False
        ),
    ] = None,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Make the previous champion the champion again.")
    ] = False,
) -> None:
    """Make a registered version the champion if the gate holds; exit code 1 and the reasons if not."""
    from pipelines.config_io import load_config
    from pipelines.errors import InputError
    from pipelines.progress import Reporter
    from pipelines.promote import promote, roll_back
    from pipelines.storage import Location

    resolved = load_config(config, overrides or ())
    workspace, reporter = Location.parse(resolved.workspace), Reporter()
    if rollback:
        if version is not None:
            raise InputError("--rollback goes back to the previous champion; it takes no --version")
        roll_back(resolved, workspace, reporter=reporter)
    elif not promote(resolved, workspace, reporter=reporter, version=version).done:
        raise typer.Exit(_REFUSED)
