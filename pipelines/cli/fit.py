"""`tsdae fit`: encoders fitted on the corpus of a workspace without training a Transformer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import DEFAULT_WORKSPACE, Workspace

_OUTPUT_HELP = "Folder to write; it must be empty or not be there."

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


@fit_app.command("whitening")
def whitening(
    output: Output,
    workspace: Workspace = DEFAULT_WORKSPACE,
    encoder: Encoder = None,
    num_dims: Annotated[
        int | None, typer.Option(min=1, help="Directions kept, those of the largest variance.")
    ] = None,
    max_texts: MaxTexts = 50_000,
) -> None:
    """Whiten an encoder: its vectors over the corpus become uncorrelated with variance 1."""
    _transform("whitening", output, workspace, encoder, num_dims=num_dims, max_texts=max_texts, seed=0)


@fit_app.command("flow")
def flow(
    output: Output,
    workspace: Workspace = DEFAULT_WORKSPACE,
    encoder: Encoder = None,
    max_texts: MaxTexts = 50_000,
    seed: Seed = 0,
) -> None:
    """Fit a BERT-flow behind an encoder, with the settings of the TSDAE paper."""
    _transform("flow", output, workspace, encoder, num_dims=None, max_texts=max_texts, seed=seed)


@fit_app.command("sent2vec")
def sent2vec(
    output: Output,
    workspace: Workspace = DEFAULT_WORKSPACE,
    dim: Annotated[int, typer.Option(min=1, help="Width of the vectors.")] = 700,
    num_epochs: Annotated[int, typer.Option(min=1, help="Passes over the texts.")] = 9,
    min_count: Annotated[int, typer.Option(min=1, help="Rarer words have no vector.")] = 5,
    max_texts: MaxTexts = 1_000_000,
    seed: Seed = 0,
) -> None:
    """Train Sent2Vec on the corpus: vectors of words and bigrams whose mean is a sentence's."""
    from pipelines.fitting import fit_sent2vec
    from pipelines.storage import Location

    texts, words = fit_sent2vec(
        Location.parse(workspace),
        output,
        dim=dim,
        num_epochs=num_epochs,
        min_count=min_count,
        max_texts=max_texts,
        seed=seed,
    )
    sys.stdout.write(f"sent2vec: {words:,} words from {texts:,} texts, {dim} dimensions, in {output}\n")


def _transform(
    kind: str,
    output: Path,
    workspace: str,
    encoder: str | None,
    *,
    num_dims: int | None,
    max_texts: int,
    seed: int,
) -> None:
    from pipelines.fitting import fit_transform
    from pipelines.storage import Location

    texts, dim = fit_transform(
        "whitening" if kind == "whitening" else "flow",
        Location.parse(workspace),
        output,
        encoder_folder=encoder or f"{workspace}/encoder",
        num_dims=num_dims,
        max_texts=max_texts,
        seed=seed,
    )
    sys.stdout.write(f"{kind}: fitted on {texts:,} texts, {dim} dimensions, in {output}\n")
