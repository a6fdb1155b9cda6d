"""The evaluate stage: the encoder before and after training, its index, and BM25 beside them, on every task.

Each (task, system) is a Ray task of its own, resumed one by one; per-query rows are kept, the report is made
from them and logged to the training's MLflow run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from indexing.evaluation.report import render_html, render_markdown, report_json
from indexing.evaluation.rows import PerQueryRow, read_rows, write_rows
from indexing.evaluation.summary import summarise
from indexing.evaluation.tasks import RetrievalTask, read_beir_task
from pipelines.collection import finished_manifest
from pipelines.config import RunConfig, TaskConfig
from pipelines.embed import documents_folder, embed
from pipelines.errors import InputError
from pipelines.manifest import Manifest, StageFolder, stable_hash
from pipelines.progress import Reporter
from pipelines.report_content import START, TRAINED, report_input
from pipelines.shards import run_shards
from pipelines.storage import Location
from pipelines.systems import EvaluationTask, System, cell_name
from pipelines.tracking import Tracker

REPORT_FOLDER = "report"
SYSTEMS = (
    System(name=START, kind="exact", encoder="start", vectors="vectors_start"),
    System(name=TRAINED, kind="exact", encoder="encoder", vectors="vectors"),
    System(name="after training, index", kind="index", encoder="encoder", vectors="vectors"),
    System(name="BM25", kind="bm25"),
)


def evaluate(config: RunConfig, workspace: Location, *, reporter: Reporter) -> Manifest | None:
    """Runs the stage unless it is finished; writes `report/`. Without tasks there is nothing to do.

    Raises:
        InputError: an earlier stage is not finished, or a task cannot be read.
    """
    if not config.evaluate.tasks:
        reporter.note("evaluate: no tasks are configured (evaluate.tasks), nothing to do")
        return None
    tasks = [_read_task(task) for task in config.evaluate.tasks]
    index = finished_manifest(workspace / "index", command="index")
    encoder = finished_manifest(workspace / "encoder", command="train")
    if index.inputs["encoder"] != encoder.digest:
        raise InputError(
            f"'{workspace / 'index'}' was built with another encoder; "
            "run `tsdae embed` and `tsdae index` first"
        )
    start = finished_manifest(workspace / "start", command="train")
    documents_place = documents_folder(config, workspace)
    documents = finished_manifest(documents_place, command="prepare")
    inputs = {
        "index": index.digest,
        "encoder": encoder.digest,
        "start": start.digest,
        "documents": documents.digest,
        "tasks": stable_hash([[task.name, task.query_ids, task.queries, task.qrels] for task in tasks]),
    }
    settings = {"top_k": config.evaluate.top_k, "num_examples": config.evaluate.num_examples}
    stage = StageFolder(workspace / REPORT_FOLDER, stage="report", config=settings, inputs=inputs)
    if (manifest := stage.finished()) is not None:
        reporter.note("evaluate: up to date")
        return manifest
    embed(config, workspace, reporter=reporter, encoder_folder="start", vectors_folder="vectors_start")
    stage.begin()
    worker = EvaluationTask(
        workspace,
        documents_place,
        documents,
        stage.folder,
        config.evaluate.top_k,
        config.index.metric,
        config.embed.form,
    )
    cells = {
        cell_name(i, j): {"task": task, "system": system}
        for i, task in enumerate(tasks)
        for j, system in enumerate(SYSTEMS)
    }
    shards = run_shards(stage, "evaluate", cells, worker, reporter=reporter, label="evaluate")
    missing = {
        task.name: shards[i * len(SYSTEMS)].counts["missing_documents"] for i, task in enumerate(tasks)
    }
    rows = [row for shard in shards for row in _rows_of(stage.folder, shard.name)]
    files = _write_report(config, workspace, stage.folder, tasks, rows, missing)
    scores = mean_scores(rows)
    _log(config, workspace, stage.folder, encoder, scores)
    return stage.finish(counts={"rows": len(rows)}, shards=shards, files=files, facts={"scores": scores})


def mean_scores(rows: Sequence[PerQueryRow]) -> dict[str, dict[str, dict[str, float]]]:
    """Mean over queries by task, system and measure, values in [0, 1]."""
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for summary in summarise(rows, baseline=START):
        for (system, measure), cell in summary.cells.items():
            scores.setdefault(summary.task, {}).setdefault(system, {})[measure] = cell.interval.mean
    return scores


def _read_task(config: TaskConfig) -> RetrievalTask:
    place = Location.parse(config.folder)
    try:
        return read_beir_task(place.filesystem, place.path, name=config.name, qrels_file=config.qrels)
    except FileNotFoundError as error:
        raise InputError(f"task '{config.name}': {error}") from error


def _rows_of(folder: Location, name: str) -> list[PerQueryRow]:
    place = folder / "scores" / f"{name}.parquet"
    return read_rows(place.filesystem, place.path)


def _write_report(
    config: RunConfig,
    workspace: Location,
    folder: Location,
    tasks: Sequence[RetrievalTask],
    rows: Sequence[PerQueryRow],
    missing: Mapping[str, int],
) -> dict[str, str]:
    content = report_input(config, workspace, folder, tasks, rows, systems=SYSTEMS, missing=missing)
    texts = {
        "report.json": report_json(content),
        "report.md": render_markdown(content),
        "report.html": render_html(content),
    }
    for name, text in texts.items():
        (folder / name).write_bytes(text.encode())
    with (folder / "per_query.parquet").write_atomically() as target:
        write_rows(target.filesystem, target.path, list(rows))
    return {name: (folder / name).sha256() for name in [*texts, "per_query.parquet"]}


def _log(
    config: RunConfig, workspace: Location, folder: Location, encoder: Manifest, scores: dict[str, Any]
) -> None:
    """Scores and report go to the training's run, if the tracking server has one."""
    tracker = Tracker.of(config, workspace)
    run_id = tracker.find_run(encoder.fingerprint)
    if run_id is None:
        return
    values = {
        f"{_metric_part(task)}.{_metric_part(system)}.{measure}": value
        for task, by_system in scores.items()
        for system, by_measure in by_system.items()
        for measure, value in by_measure.items()
    }
    tracker.log_metrics(run_id, [(encoder.counts["steps"], tracker.now_ms(), values)])
    with tempfile.TemporaryDirectory(prefix="tsdae-report-") as local:
        for name in ("report.html", "report.md", "report.json", "per_query.parquet"):
            path = Path(local) / name
            path.write_bytes((folder / name).read_bytes())
            tracker.log_file(run_id, path, folder="report")


def _metric_part(name: str) -> str:
    """A name made legal for MLflow metrics."""
    return "".join(sign if sign.isalnum() or sign in "_-. " else "_" for sign in name)
