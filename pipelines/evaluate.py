"""The evaluate stage: the encoder before and after training, its index, BM25 and both fused, on every task.

Each (task, system) is a Ray task of its own, resumed one by one; per-query rows are kept, the report is made
from them and logged to the training's MLflow run. The index takes part in tasks over the run's documents;
tasks that carry their own texts are scored without one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from indexing.evaluation.pair_rows import PairRow
from indexing.evaluation.rows import PerQueryRow
from indexing.evaluation.summary import summarise
from indexing.fusion import FusionConfig
from indexing.plan import plan_index
from pipelines.collection import finished_manifest
from pipelines.compared_system import ComparedSystem
from pipelines.comparison import mean_values, task_notes
from pipelines.config import RunConfig
from pipelines.dataset_profile import columns_of, rows_and_shards
from pipelines.embed import documents_folder, embed
from pipelines.errors import InputError
from pipelines.evaluation_cell import EvaluationCell, read_cell
from pipelines.lexical import lexical_place
from pipelines.manifest import Manifest, ShardRecord, StageFolder, stable_hash
from pipelines.progress import Reporter
from pipelines.report_content import START, TRAINED, report_input, with_speed
from pipelines.report_files import log_report, write_report
from pipelines.report_map import check_map_column, documents_map
from pipelines.report_movers import by_key
from pipelines.shards import ShardFunction, run_shards
from pipelines.shown import ShownQuery, read_shown
from pipelines.storage import Location
from pipelines.systems import EvaluationTask, System, cell_name
from pipelines.task_source import COLLECTION_KIND, TaskSource
from pipelines.tracking import Tracker

REPORT_FOLDER = "report"
HYBRID = "after training, hybrid with BM25"
SYSTEMS = (
    System(name=START, kind="exact", encoder="start", vectors="vectors_start"),
    System(name=TRAINED, kind="exact", encoder="encoder", vectors="vectors"),
    System(name="after training, index", kind="index", encoder="encoder", vectors="vectors"),
    System(name="BM25", kind="bm25"),
    System(name=HYBRID, kind="hybrid", encoder="encoder", vectors="vectors"),
)
# Two runs never measure the same speed, so what shows it does not count for the digest of the stage.
_MEASURED_FILES = ("report.html",)
# The curve of recall against speed has at most so many points.
_SPEED_SETTINGS = 40


@dataclass(frozen=True)
class _Cell:
    """One system on one task: the name of its files and what its Ray task needs to know."""

    name: str
    task: str
    system: str
    spec: Mapping[str, Any]


@dataclass(frozen=True)
class _Parts:
    """The finished stages that are evaluated."""

    index: Manifest
    encoder: Manifest
    start: Manifest
    documents: Manifest

    @property
    def digests(self) -> dict[str, str]:
        """Of each, by name."""
        return {part.name: getattr(self, part.name).digest for part in fields(self)}


def evaluate(config: RunConfig, workspace: Location, *, reporter: Reporter) -> Manifest | None:
    """Runs the stage unless it is finished; writes `report/`. Without tasks there is nothing to do.

    Raises:
        InputError: an earlier stage is not finished, a task cannot be read, or the documents have no such
            column as `evaluate.map_column`.
    """
    if not config.evaluate.tasks:
        reporter.note("evaluate: no tasks are configured (evaluate.tasks), nothing to do")
        return None
    documents_place = documents_folder(config, workspace)
    parts = _parts(workspace, documents_place)
    documents = parts.documents
    sources = task_sources(config)
    measured_on = _measured_on(sources, documents, config)
    inputs = {**parts.digests, "tasks": stable_hash(measured_on)}
    settings = {
        "top_k": config.evaluate.top_k,
        "num_examples": config.evaluate.num_examples,
        "map_column": config.evaluate.map_column,
        "fusion": asdict(config.serve.fusion),
    }
    stage = StageFolder(workspace / REPORT_FOLDER, stage="report", config=settings, inputs=inputs)
    if (manifest := stage.finished()) is not None:
        reporter.note("evaluate: up to date")
        return manifest
    if config.evaluate.map_column is not None:  # now, and not after an hour of evaluation
        check_map_column(documents_place, documents, config.evaluate.map_column)
    cells = _cells(sources, workspace, config.serve.fusion)
    if any(source.documents is not None for source in sources):
        embed(config, workspace, reporter=reporter, encoder_folder="start", vectors_folder="vectors_start")
    stage.begin()
    lexical, why = lexical_place(workspace, documents)
    if any(source.documents is not None for source in sources):
        reporter.note(f"evaluate: BM25 over the documents is {why}")
    work = _work(config, workspace, stage.folder, parts.index, documents, lexical)
    specs = {cell.name: cell.spec for cell in cells}
    shards = run_shards(stage, "evaluate", specs, work, reporter=reporter, label="evaluate")
    rows, pair_rows, shown = _read(cells, stage.folder)
    content = report_input(
        config, workspace, rows, pair_rows, shown, systems=SYSTEMS, notes=_notes(cells, shards)
    )
    picture = documents_map(
        documents_place, documents, workspace / "vectors", column=config.evaluate.map_column, seed=config.seed
    )
    page = replace(with_speed(content, stage.folder), map_svg=picture)
    names = write_report(content, stage.folder, html_only=page)
    files = {name: (stage.folder / name).sha256() for name in names if name not in _MEASURED_FILES}
    summaries = summarise(rows, pair_rows=pair_rows, baseline=START, seed=config.seed)
    scores = mean_values(summaries)
    tracker = Tracker.of(config, workspace)
    if (run_id := tracker.find_run(parts.encoder.fingerprint)) is not None:
        log_report(tracker, run_id, stage.folder, names, scores, step=parts.encoder.counts["steps"])
        sizes = Counter(task for task, _ in {(row.task, row.query_id) for row in rows})
        _log_inputs(tracker, run_id, sources, measured_on, sizes, documents)
    counts = {"rows": len(rows), "pair_rows": len(pair_rows)}
    facts = {"scores": scores, "tasks": measured_on}
    return stage.finish(counts=counts, shards=shards, files=files, facts=facts)


def _parts(workspace: Location, documents_place: Location) -> _Parts:
    index = finished_manifest(workspace / "index", command="index")
    encoder = finished_manifest(workspace / "encoder", command="train")
    if index.inputs["encoder"] != encoder.digest:
        raise InputError(
            f"'{workspace / 'index'}' was built with another encoder; "
            "run `tsdae embed` and `tsdae index` first"
        )
    start = finished_manifest(workspace / "start", command="train")
    return _Parts(index, encoder, start, finished_manifest(documents_place, command="prepare"))


def _work(
    config: RunConfig,
    workspace: Location,
    output: Location,
    index: Manifest,
    documents: Manifest,
    lexical: Location | None,
) -> _AnyCell:
    """What a Ray task needs for any of the cells."""
    plan = plan_index(index.counts["vectors"], index.counts["dim"], config.index)
    over_documents = EvaluationTask(
        workspace,
        documents_folder(config, workspace),
        documents,
        output,
        config.evaluate.top_k,
        config.index.metric,
        config.embed.form,
        plan.search_params_grid[:: 1 + len(plan.search_params_grid) // _SPEED_SETTINGS],
        lexical,
        config.serve.fusion,
    )
    return _AnyCell(over_documents, EvaluationCell(output, config.embed.threads_per_actor))


def _log_inputs(
    tracker: Tracker,
    run_id: str,
    sources: Sequence[TaskSource],
    measured_on: Mapping[str, str],
    num_queries: Mapping[str, int],
    documents: Manifest,
) -> None:
    """The run's lineage also names what it was evaluated on."""
    for source in sources:
        counts = {"num_queries": num_queries[source.name]} if num_queries.get(source.name) else {}
        over = source.documents
        if over is not None:
            counts["num_documents"] = rows_and_shards(documents)["num_rows"]
        tracker.log_input(
            run_id,
            name=source.name,
            place=str(over or source.place),
            digest=measured_on[source.name],
            context="evaluation",
            columns=None if over is None else columns_of(over, documents),
            counts=counts,
        )


def _measured_on(sources: Sequence[TaskSource], documents: Manifest, config: RunConfig) -> dict[str, str]:
    """What each task was measured on: two encoders may be compared by it where these are equal."""
    return {
        source.name: stable_hash(
            [
                source.fingerprint(),
                documents.digest if source.documents is not None else None,
                config.evaluate.top_k,
            ]
        )
        for source in sources
    }


def task_sources(config: RunConfig) -> list[TaskSource]:
    """The configured tasks, those over the run's documents with the place of these."""
    documents = documents_folder(config, Location.parse(config.workspace))
    return [
        TaskSource(
            name=task.name,
            kind="beir" if task.kind == COLLECTION_KIND else task.kind,
            place=Location.parse(task.folder),
            split=task.split,
            qrels=task.qrels,
            top_k=config.evaluate.top_k,
            documents=documents if task.kind == COLLECTION_KIND else None,
        )
        for task in config.evaluate.tasks
    ]


@dataclass(frozen=True)
class _AnyCell:
    """Sends each cell to the function of its kind."""

    over_documents: EvaluationTask
    own_texts: EvaluationCell

    def __call__(self) -> ShardFunction:
        collection, own = self.over_documents(), self.own_texts()

        def work(name: str, spec: Mapping[str, Any]) -> ShardRecord:
            return (own if isinstance(spec["task"], TaskSource) else collection)(name, spec)

        return work


def _cells(sources: Sequence[TaskSource], workspace: Location, fusion: FusionConfig) -> list[_Cell]:
    trained = str(workspace / "encoder")
    own = [
        ComparedSystem(name=START, kind="encoder", source=str(workspace / "start")),
        ComparedSystem(name=TRAINED, kind="encoder", source=trained),
        ComparedSystem(name="BM25", kind="bm25"),
        ComparedSystem(name=HYBRID, kind="hybrid", source=trained, fusion=fusion),
    ]
    cells = []
    for i, source in enumerate(sources):
        task = source if source.documents is None else source.load_queries()
        systems: Sequence[ComparedSystem | System] = SYSTEMS
        if source.documents is None:
            systems = [system for system in own if system.applies_to(source.kind)]
        for j, system in enumerate(systems):
            spec = {"task": task, "system": system}
            cells.append(_Cell(cell_name(i, j), source.name, system.name, spec))
    return cells


def _read(
    cells: Sequence[_Cell], folder: Location
) -> tuple[list[PerQueryRow], list[PairRow], dict[tuple[str, str], dict[tuple[str, str], ShownQuery]]]:
    rows: list[PerQueryRow] = []
    pair_rows: list[PairRow] = []
    shown = {}
    for cell in cells:
        found, found_pairs = read_cell(folder, cell.name, system=cell.system, task=cell.task)
        rows += found
        pair_rows += found_pairs
        shown[cell.task, cell.system] = by_key(read_shown(folder / "shown" / f"{cell.name}.parquet"))
    return rows, pair_rows, shown


def _notes(cells: Sequence[_Cell], shards: Sequence[ShardRecord]) -> list[str]:
    counts = {shard.name: dict(shard.counts) for shard in shards}
    first = {cell.task: cell.name for cell in reversed(cells)}
    return [
        note
        for task in dict.fromkeys(cell.task for cell in cells)
        for note in task_notes(task, counts[first[task]])
    ]
