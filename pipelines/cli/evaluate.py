"""The command `tsdae evaluate`: a run's own evaluation, or any systems on any tasks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pipelines.compared_system import ComparedSystem
    from pipelines.comparison import ComparisonOptions
    from pipelines.config import RunConfig
    from pipelines.storage import Location
    from pipelines.task_source import TaskSource
    from pipelines.tracking import Tracker

_DEFAULT_OUTPUT = "work/evaluation"
_REGISTRY = "models:/"

_Tasks = Annotated[
    list[str],
    typer.Argument(
        metavar="CONFIG [KEY=VALUE]... | TASK...",
        help="A run's YAML file and overrides; or tasks: folders, files, KIND:PATH, NAME=PATH.",
        show_default=False,
    ),
]
_Encoders = Annotated[
    list[str] | None,
    typer.Option(
        "--encoder",
        "-e",
        help="An encoder: our or a sentence-transformers folder, a hub name, models:/NAME@ALIAS, a Sent2Vec "
        "folder or .bin, or your own function as module:function. Any number; NAME=PATH names it.",
    ),
]


def evaluate(
    tasks: _Tasks,
    encoder: _Encoders = None,
    bm25: Annotated[bool, typer.Option("--bm25", help="Also BM25.")] = False,
    glove: Annotated[
        list[str] | None,
        typer.Option("--glove", help="Averaged word vectors (GloVe, word2vec, fastText .vec and .bin)."),
    ] = None,
    idf: Annotated[bool, typer.Option("--idf", help="Each --glove weighted by IDF, too.")] = False,
    run: Annotated[list[str] | None, typer.Option("--run", help="A TREC run file.")] = None,
    baseline: Annotated[
        str, typer.Option(help="Name of the system others are compared with; default: first.")
    ] = "",
    split: Annotated[str, typer.Option(help="test, dev or valid, where the data has several.")] = "test",
    top_k: Annotated[int, typer.Option(min=1, help="Hits kept for each query of a retrieval task.")] = 100,
    output: Annotated[
        str, typer.Option("--output", "-o", help=f"Folder of cells and report. [default: {_DEFAULT_OUTPUT}]")
    ] = "",
    examples: Annotated[int, typer.Option(min=0, help="Queries shown with their hits, for each task.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="PyTorch threads of each cell.")] = 1,
    cpus: Annotated[float, typer.Option(min=0.1, help="CPUs that Ray reserves for each cell.")] = 1.0,
    gpus: Annotated[float, typer.Option(min=0.0, help="GPUs that Ray reserves for each cell.")] = 0.0,
    address: Annotated[str | None, typer.Option(help="Ray cluster to join instead of starting one.")] = None,
    tracking_uri: Annotated[
        str | None,
        typer.Option(help="MLflow server; default MLFLOW_TRACKING_URI, else a database in the output."),
    ] = None,
    mlflow: Annotated[bool, typer.Option(help="Log scores and report to MLflow.")] = True,
) -> None:
    """Score systems on tasks and write one report.

    With a CONFIG alone: the evaluate stage of that run (encoder before and after training, index, BM25 and
    both fused). With tasks, or a CONFIG and systems: every system on every task, what was scored before is
    not scored again.
    """
    from pipelines.comparison import ComparisonOptions
    from pipelines.storage import Location

    is_config = tasks[0].endswith((".yaml", ".yml"))
    given = bool(encoder or bm25 or glove or run)
    if is_config and not given:
        _run_stage(tasks)
        return
    config = _config_of(tasks) if is_config else None
    place = Location.parse(output or (f"{config.workspace}/comparison" if config else _DEFAULT_OUTPUT))
    tracker = _tracker(config, place, tracking_uri, mlflow)
    systems = _own_encoders(config) if config else []
    systems += [_encoder(text, place, tracking_uri, config) for text in encoder or ()]
    systems += _other_systems(bm25=bm25, glove=glove or (), idf=idf, run=run or ())
    options = ComparisonOptions(
        baseline=baseline, num_examples=examples, threads=threads, cpus=cpus, gpus=gpus
    )
    sources = _sources(tasks, config, split=split, top_k=top_k)
    _compare(sources, systems, place, options, tracker, address)


def _run_stage(arguments: list[str]) -> None:
    from pipelines.cli.main import _reporter
    from pipelines.run import run_stages

    run_stages(["evaluate"], _config_of(arguments), reporter=_reporter())


def _compare(
    sources: list[TaskSource],
    systems: list[ComparedSystem],
    place: Location,
    options: ComparisonOptions,
    tracker: Tracker | None,
    address: str | None,
) -> None:
    from rich.console import Console

    from pipelines.cli.summary import print_comparison
    from pipelines.cluster import connected
    from pipelines.comparison import compare
    from pipelines.config import ClusterConfig, RunConfig
    from pipelines.progress import Reporter

    with connected(RunConfig(cluster=ClusterConfig(address=address))):
        done = compare(sources, systems, place, options, reporter=Reporter(), tracker=tracker)
    print_comparison(done.folder, Console(highlight=False))


def _config_of(arguments: list[str]) -> RunConfig:
    from pipelines.config_io import load_config

    return load_config(arguments[0], arguments[1:])


def _sources(tasks: list[str], config: RunConfig | None, *, split: str, top_k: int) -> list[TaskSource]:
    from pipelines.evaluate import task_sources
    from pipelines.task_source import parse_task

    if config is None:
        return [parse_task(text, split=split, top_k=top_k) for text in tasks]
    return task_sources(config)


def _own_encoders(config: RunConfig) -> list[ComparedSystem]:
    """The run's encoder before and after training."""
    from pipelines.collection import finished_manifest
    from pipelines.compared_system import ComparedSystem
    from pipelines.report_content import START, TRAINED
    from pipelines.storage import Location

    workspace = Location.parse(config.workspace)
    systems = []
    for name, folder in ((START, "start"), (TRAINED, "encoder")):
        finished_manifest(workspace / folder, command="train")
        systems.append(ComparedSystem(name=name, kind="encoder", source=f"{config.workspace}/{folder}"))
    return systems


def _encoder(
    text: str, output: Location, tracking_uri: str | None, config: RunConfig | None
) -> ComparedSystem:
    """An encoder by folder, hub name or registry address; a registered one is copied beside the cells."""
    from pipelines.compared_system import ComparedSystem
    from pipelines.registry import fetch_encoder

    name, source = _named(text)
    if source.startswith(_REGISTRY):
        tracker = _tracker(config, output, tracking_uri, wanted=True)
        assert tracker is not None
        folder = output / "models" / "".join(s if s.isalnum() else "-" for s in source)
        source = str(fetch_encoder(tracker, source, folder.make_dir().local_path))
    return ComparedSystem(name=name, kind="encoder", source=source)


def _other_systems(
    *, bm25: bool, glove: list[str] | tuple[()], idf: bool, run: list[str] | tuple[()]
) -> list[ComparedSystem]:
    from pipelines.compared_system import ComparedSystem

    systems = [ComparedSystem(name="BM25", kind="bm25")] if bm25 else []
    for text in glove:
        name, source = _named(text)
        systems.append(ComparedSystem(name=name, kind="words", source=source))
        if idf:
            systems.append(ComparedSystem(name=f"{name}, IDF", kind="words_idf", source=source))
    for text in run:
        name, source = _named(text)
        systems.append(ComparedSystem(name=name, kind="run", source=source))
    return systems


def _named(text: str) -> tuple[str, str]:
    """NAME=SOURCE, or a source that is called by the last part of its path."""
    name, separator, source = text.partition("=")
    if separator and "/" not in name and ":" not in name:
        return name, source
    if text.startswith(_REGISTRY):
        return text.removeprefix(_REGISTRY), text
    return text.rstrip("/").rsplit("/", 1)[-1], text


def _tracker(config: RunConfig | None, output: Location, uri: str | None, wanted: bool) -> Tracker | None:
    from dataclasses import replace

    from pipelines.config import RunConfig, TrackingConfig
    from pipelines.storage import Location
    from pipelines.tracking import Tracker

    if not wanted:
        return None
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI")
    if config is not None:
        tracking = replace(config.tracking, uri=uri or config.tracking.uri)
        return Tracker.of(replace(config, tracking=tracking), Location.parse(config.workspace))
    return Tracker.of(RunConfig(tracking=TrackingConfig(uri=uri)), output)
