"""The command line: one command per stage, one that runs them all, and those around them.

Heavy libraries are imported inside the commands, so that help and completion answer at once. A ValueError
is the user's to mend: one line and exit code 2; `--debug` before the command shows its traceback.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pipelines.cli import index as index_commands
from pipelines.cli.evaluate import evaluate
from pipelines.cli.fit import fit_app
from pipelines.cli.noise import noise
from pipelines.cli.options import DEFAULT_WORKSPACE, ConfigPath, Overrides, Workspace
from pipelines.cli.promote import promote
from pipelines.cli.pseudo_label import pseudo_label
from pipelines.cli.search import rerank, search
from pipelines.cli.serve import serve
from pipelines.cli.study import study
from pipelines.cli.submit import submit

if TYPE_CHECKING:
    from pipelines.config import RunConfig
    from pipelines.progress import Reporter

# Keys at the top of every manifest of Kubernetes and every cluster of `ray up`, and of no run.
_OF_OTHER_TOOLS = re.compile(rb"^(apiVersion|cluster_name):", re.MULTILINE)

app = typer.Typer(
    name="tsdae",
    help="Turn unlabelled text into a domain-adapted sentence encoder and a search index (TSDAE on Ray).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
corpus_app = typer.Typer(help="Make a corpus to try the system on.", no_args_is_help=True)
config_app = typer.Typer(help="Look at and check configurations.", no_args_is_help=True)
app.add_typer(corpus_app, name="corpus")
app.add_typer(config_app, name="config")
app.add_typer(fit_app, name="fit")


@app.callback()
def _options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show log messages and tracebacks of user errors.")
    ] = False,
) -> None:
    _debug["on"] = debug
    if not debug:
        _quiet_transformers()
    logging.basicConfig(
        level=logging.INFO if debug else logging.ERROR, format="%(levelname)s %(name)s: %(message)s"
    )


_debug = {"on": False}


def _quiet_transformers() -> None:
    """Loading bars and reports of transformers do not belong between the lines of our progress."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


@app.command()
def run(config: ConfigPath, overrides: Overrides = None) -> None:
    """Run the whole job: all stages in order, from prepare to register. Finished stages are not redone."""
    from pipelines.cli.summary import print_summary
    from pipelines.run import run_all

    resolved = _load(config, overrides)
    run_all(resolved, reporter=_reporter())
    print_summary(resolved, Console(highlight=False))


@app.command()
def prepare(config: ConfigPath, overrides: Overrides = None) -> None:
    """Read the input files, clean and de-duplicate them into corpus/ (and documents/)."""
    _stages(["prepare"], config, overrides)


@app.command()
def train(config: ConfigPath, overrides: Overrides = None) -> None:
    """Train the encoder on the prepared corpus; resumes from the last checkpoint."""
    _stages(["train"], config, overrides)


@app.command()
def embed(config: ConfigPath, overrides: Overrides = None) -> None:
    """Embed the documents with the trained encoder into vectors/."""
    _stages(["embed"], config, overrides)


index_commands.register(app)


@app.command()
def lookup(config: ConfigPath, overrides: Overrides = None) -> None:
    """Store documents, words and (for compressed indexes) vectors so that search can map them from disk."""
    _stages(["lookup"], config, overrides)


@app.command()
def register(config: ConfigPath, overrides: Overrides = None) -> None:
    """Register the trained encoder in the MLflow model registry."""
    _stages(["register"], config, overrides)


app.command()(search)
app.command()(rerank)
app.command()(noise)
app.command()(pseudo_label)
app.command()(serve)
app.command()(study)


@app.command()
def reconstruct(
    text: Annotated[str, typer.Argument(help="What to encode and rebuild.", show_default=False)],
    workspace: Workspace = DEFAULT_WORKSPACE,
    beam: Annotated[int, typer.Option("--beam", min=1, max=64, help="Hypotheses kept; 1 is greedy.")] = 1,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", min=1, help="Longest answer in tokens, special ones included."),
    ] = None,
) -> None:
    """Rebuild a text from its vector with the decoder of a run: shows what the vector holds."""
    from pipelines.reconstruct import reconstruct_texts

    (rebuilt,) = reconstruct_texts(workspace, [text], num_beams=beam, max_tokens=max_tokens)
    sys.stdout.write(f"{rebuilt}\n")


@app.command()
def doctor(config: ConfigPath, overrides: Overrides = None) -> None:
    """Check what would hang or fail later: packages, CPUs, storage, tracking server, upload size."""
    from pipelines.doctor import examine

    findings = examine(_load(config, overrides))
    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        console.print(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.name}: {finding.message}", markup=False)
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


app.command()(promote)
app.command()(submit)


@corpus_app.command("docs")
def corpus_docs(
    output: Annotated[Path, typer.Argument(help="Folder to write.")] = Path("work/docs-corpus"),
    num_queries: Annotated[int, typer.Option(min=1, help="Queries of the retrieval task.")] = 1000,
    max_documents: Annotated[
        int, typer.Option(min=1, help="Documents to search, chosen by a keyed hash.")
    ] = 10_000,
    seed: Annotated[int, typer.Option(help="Chooses the queries.")] = 0,
) -> None:
    """Write the docstrings of the installed Python packages as sentences, documents and a retrieval task."""
    from pipelines.docs_corpus import write_docs_corpus

    reporter = _reporter()
    with reporter.track("corpus docs", total=1, unit="files") as tracker:

        def show(done: int, total: int) -> None:
            tracker.total = total
            tracker.set(done)

        summary = write_docs_corpus(
            output, num_queries=num_queries, seed=seed, max_documents=max_documents, on_progress=show
        )
        tracker.set(tracker.total)
    done = "up to date" if summary.already_done else f"from {summary.num_packages} packages"
    reporter.note(
        f"corpus docs: {done}, {summary.num_sentences:,} sentences, {summary.num_documents:,} documents, "
        f"{summary.num_queries:,} queries in {summary.output}"
    )


@config_app.command("show")
def config_show(config: ConfigPath, overrides: Overrides = None) -> None:
    """Print the resolved configuration: defaults, file and overrides together."""
    from pipelines.config_io import config_to_yaml

    sys.stdout.write(config_to_yaml(_load(config, overrides)))


@config_app.command("check")
def config_check(
    paths: Annotated[list[Path], typer.Argument(help="YAML files, or folders of them.", show_default=False)],
) -> None:
    """Check configurations, running nothing. In folders, YAML of Kubernetes and `ray up` is skipped."""
    from pipelines.config_io import load_config
    from pipelines.errors import InputError
    from pipelines.study.study_file import check_study, is_study

    files = [file for path in paths for file in (_configs_in(path) if path.is_dir() else [path])]
    if not files:
        raise InputError(f"no YAML files in {', '.join(map(str, paths))}")
    console = Console(highlight=False, soft_wrap=True)
    failed = 0
    for file in files:
        try:
            if is_study(file):
                told = f" ({len(check_study(file)):,} cells in all sizes)"
            else:
                told = f" ({_training_of(load_config(file))})"
            console.print(f"ok    {file}{told}", markup=False)
        except InputError as error:
            failed += 1
            console.print(f"FAIL  {file}: {error}", markup=False)
    if failed:
        raise typer.Exit(2)


def _training_of(config: RunConfig) -> str:
    """What a configuration trains, by the values in force."""
    if config.evaluate.systems:
        return f"{len(config.evaluate.systems)} systems, nothing is trained"
    trains = [phase.train for phase in config.phases] or [config.train]
    return f"{config.model.pooling} pooling; {'; '.join(train.in_words for train in trains)}"


def _configs_in(folder: Path) -> list[Path]:
    """The run configurations below a folder, without the YAML of other tools."""
    found = sorted(folder.rglob("*.yaml"))
    return [file for file in found if not _OF_OTHER_TOOLS.search(file.read_bytes())]


def _load(path: Path, overrides: list[str] | None) -> RunConfig:
    from pipelines.config_io import load_config

    return load_config(path, overrides or ())


def _reporter() -> Reporter:
    from pipelines.progress import Reporter

    return Reporter()


def _stages(names: list[str], config: Path, overrides: list[str] | None) -> None:
    from pipelines.run import run_stages

    run_stages(names, _load(config, overrides), reporter=_reporter())


app.command(name="evaluate")(evaluate)


def main() -> None:
    """Entry point of the `tsdae` command."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        app()
    except ValueError as error:
        if _debug["on"]:
            raise
        reason = " ".join(str(error).split())
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"error: {reason}", markup=False)
        sys.exit(2)
