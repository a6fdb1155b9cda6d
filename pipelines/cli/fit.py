"""`tsdae fit`: encoders fitted on the corpus of a workspace without training a Transformer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pipelines.cli.options import DEFAULT_WORKSPACE, Workspace
from pipelines.system_config import MAX_TEXTS
from tsdae_core.flow_config import FlowConfig
from tsdae_core.sent2vec_config import Sent2VecConfig
from tsdae_core.whitening_config import WhiteningConfig

if TYPE_CHECKING:
    from pipelines.fitting import Fitted

_Config = TypeVar("_Config")
_OUTPUT_HELP = "Folder to write; it must be empty or not be there."
_SET_HELP = "Another setting, as in the section of this name in `evaluate.systems`: lr=1e-3. May be repeated."

fit_app = typer.Typer(help="Fit transforms and Sent2Vec on a prepared corpus.", no_args_is_help=True)

Output = Annotated[Path, typer.Option("--output", "-o", help=_OUTPUT_HELP, show_default=False)]
MaxTexts = Annotated[int, typer.Option(min=2, help="Texts used, a random sample of the corpus.")]
Seed = Annotated[int, typer.Option(help="Decides every random choice.")]
Encoder = Annotated[
    str | None,
    typer.Option(
        "--encoder", "-e", help="Encoder to start from; without it the workspace's own.", show_default=False
    ),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=_SET_HELP, show_default=False)
]


@fit_app.command("whitening")
def whitening(
    output: Output,
    workspace: Workspace = DEFAULT_WORKSPACE,
    encoder: Encoder = None,
    num_dims: Annotated[
        int | None, typer.Option(min=1, help="Directions kept, those of the largest variance.")
    ] = WhiteningConfig().num_dims,
    max_texts: MaxTexts = MAX_TEXTS["whitening"],
) -> None:
    """Whiten an encoder: its vectors over the corpus become uncorrelated with variance 1."""
    config = WhiteningConfig(num_dims=num_dims)
    _transform("whitening", config, output, workspace, encoder, max_texts=max_texts, seed=0)


@fit_app.command("flow")
def flow(
    output: Output,
    workspace: Workspace = DEFAULT_WORKSPACE,
    encoder: Encoder = None,
    settings: Settings = None,
    max_texts: MaxTexts = MAX_TEXTS["flow"],
    seed: Seed = 0,
) -> None:
    """Fit a BERT-flow behind an encoder, with the settings of the TSDAE paper unless --set changes them."""
    config = _with_settings({}, settings, FlowConfig)
    _transform("flow", config, output, workspace, encoder, max_texts=max_texts, seed=seed)


@fit_app.command("sent2vec")
def sent2vec(
    output: Output,
    workspace: Workspace = DEFAULT_WORKSPACE,
    dim: Annotated[int, typer.Option(help="Width of the vectors.")] = Sent2VecConfig().dim,
    num_epochs: Annotated[int, typer.Option(help="Passes over the texts.")] = Sent2VecConfig().num_epochs,
    min_count: Annotated[int, typer.Option(help="Rarer words have no vector.")] = Sent2VecConfig().min_count,
    settings: Settings = None,
    max_texts: MaxTexts = MAX_TEXTS["sent2vec"],
    seed: Seed = 0,
) -> None:
    """Train Sent2Vec on the corpus: vectors of words and bigrams whose mean is a sentence's."""
    from pipelines.fitting import fit_sent2vec
    from pipelines.storage import Location

    named = {"dim": dim, "num_epochs": num_epochs, "min_count": min_count}
    config = _with_settings(named, settings, Sent2VecConfig)
    place = Location.parse(workspace)
    fitted = fit_sent2vec(config, place, output, max_texts=max_texts, seed=seed)
    made = f"{fitted.size:,} words from {fitted.num_texts:,} texts, {config.dim} dimensions"
    sys.stdout.write(f"sent2vec: {made}, in {output}\n")


def _with_settings(named: dict[str, Any], settings: list[str] | None, config_class: type[_Config]) -> _Config:
    """The checked settings: those of options of their own, then those of --set."""
    from pipelines.config_io import config_of, read_override, set_value

    for setting in settings or ():
        set_value(named, *read_override(setting))
    return config_of(named, config_class)


def _transform(
    kind: str,
    config: WhiteningConfig | FlowConfig,
    output: Path,
    workspace: str,
    encoder: str | None,
    *,
    max_texts: int,
    seed: int,
) -> None:
    from pipelines.fitting import fit_transform
    from pipelines.storage import Location

    fitted: Fitted = fit_transform(
        config,
        Location.parse(workspace),
        output,
        encoder_folder=encoder or f"{workspace}/encoder",
        max_texts=max_texts,
        seed=seed,
    )
    for note in fitted.notes:
        sys.stdout.write(f"{kind}: {note}\n")
    sys.stdout.write(f"{kind}: fitted on {fitted.num_texts:,} texts, {fitted.size} dimensions, in {output}\n")
