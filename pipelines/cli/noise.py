"""`tsdae noise`: a look at what the noise does to the corpus, or a whole epoch of it as files."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from pipelines.cli.options import DEFAULT_WORKSPACE, Workspace

if TYPE_CHECKING:
    from pipelines.config import RunConfig
    from pipelines.noise_epoch import Example


def noise(
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONFIG]",
            help="YAML file; without it, the settings that the workspace's encoder was trained with.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings that win over the file.", show_default=False),
    ] = None,
    workspace: Workspace = DEFAULT_WORKSPACE,
    show: Annotated[int, typer.Option(min=0, help="Number of examples to print.")] = 5,
    epoch: Annotated[int, typer.Option(min=0, help="Which epoch's noise, from 0.")] = 0,
    phase: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Which phase of a recipe with phases.", show_default=False),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Write the whole epoch there as Parquet."),
    ] = None,
) -> None:
    """Print sentences of the prepared corpus and what the noise leaves of them; write an epoch to Parquet."""
    from pipelines.config_io import load_config
    from pipelines.noise_epoch import noise_examples, recorded_config

    resolved = recorded_config(workspace) if config is None else load_config(config, overrides or ())
    trainings = {each.name: each.train for each in resolved.phases}
    settings = trainings.get(phase or "", resolved.train).tsdae.noise
    console = Console(highlight=False, soft_wrap=True)
    if show:
        examples = noise_examples(resolved, num=show, epoch=epoch, phase=phase)
        console.print(
            f"{settings.kind} {settings.ratio:g}, seed {resolved.seed}, epoch {epoch}", markup=False
        )
        for example in examples:
            _print(console, example)
    if output is not None:
        _write(resolved, output, epoch, phase)


def _print(console: Console, example: Example) -> None:
    """Both texts; in a terminal, words of the original that are gone are struck and new ones stand out."""
    original, damaged = Text(), Text()
    before, after = example.original.split(), example.damaged.split()
    for action, i, j, k, n in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        same = action == "equal"
        original.append(" ".join([*before[i:j], ""]), None if same else "dim strike")
        damaged.append(" ".join([*after[k:n], ""]), None if same else "yellow")
    console.print()
    console.print(f"row      {example.row_id}", style="dim")
    console.print(Text("original ").append(_trimmed(original)))
    console.print(Text("damaged  ").append(_trimmed(damaged)))


def _trimmed(text: Text) -> Text:
    text.rstrip()
    return text


def _write(config: RunConfig, output: str, epoch: int, phase: str | None) -> None:
    from pipelines.cluster import connected
    from pipelines.noise_epoch import write_epoch
    from pipelines.progress import Reporter
    from pipelines.storage import Location
    from pipelines.workspace_lock import only_one

    reporter = Reporter()
    with only_one(Location.parse(config.workspace), note=reporter.note), connected(config):
        manifest = write_epoch(config, Location.parse(output), epoch=epoch, reporter=reporter, phase=phase)
    counts = manifest.counts
    reporter.note(f"noise: {counts['sentences']:,} sentences of {counts['steps']:,} steps in {output}")
