"""Options that several commands share."""

from typing import Annotated

import typer

DEFAULT_WORKSPACE = "work/quickstart"

Workspace = Annotated[
    str, typer.Option("--workspace", "-w", help="Folder or URL of a finished run.", envvar="TSDAE_WORKSPACE")
]
