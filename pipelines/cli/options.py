"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_WORKSPACE = "work/quickstart"

ConfigPath = Annotated[
    Path,
    typer.Argument(metavar="CONFIG", help="YAML file; the shipped ones are in configs/.", show_default=False),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Settings that win over the file, as key.subkey=value, e.g. train.num_workers=4.",
        show_default=False,
    ),
]
Workspace = Annotated[
    str, typer.Option("--workspace", "-w", help="Folder or URL of a finished run.", envvar="TSDAE_WORKSPACE")
]
