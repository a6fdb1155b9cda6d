"""Any number of systems over any number of tasks: cells as Ray tasks, kept for good, and one report.

A cell is named by the fingerprints of its task and its system, so a comparison that is begun anew, or that
has got another system or task, runs only what it has not run before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from indexing.evaluation.pair_rows import PairRow
from indexing.evaluation.report import FactBlock, ReportInput
from indexing.evaluation.rows import PerQueryRow
from indexing.evaluation.summary import summarise
from indexing.evaluation.table_values import TaskSummary
from pipelines.compared_system import ComparedSystem, unique_names
from pipelines.errors import InputError
from pipelines.evaluation_cell import EvaluationCell, read_cell
from pipelines.manifest import ShardRecord, StageFolder, package_versions, stable_hash
from pipelines.progress import Reporter
from pipelines.report_files import log_report, write_report
from pipelines.report_movers import by_key, pair_movers, query_examples, query_movers
from pipelines.shards import run_shards
from pipelines.shown import ShownQuery, read_shown
from pipelines.storage import Location
from pipelines.task_source import TaskSource
from pipelines.tracking import Tracker

# Rows of queries, rows of pairs, and what is shown of queries by (task, system).
_Results: TypeAlias = tuple[
    list[PerQueryRow], list[PairRow], dict[tuple[str, str], dict[tuple[str, str], ShownQuery]]
]
# Part of every cell's name: raise it when a protocol, a reader or a scorer changes what it gives.
_CELL_VERSION = 1
_NUM_MOVERS = 5


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions:
    """How a comparison is run and shown.

    baseline: the system that others are compared with; "" takes the first.
    num_examples: queries shown with their hits, for each task.
    """

    baseline: str = ""
    num_examples: int = 3
    threads: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A finished comparison: where its report is, and its tables."""

    folder: Location
    summaries: Sequence[TaskSummary]


def compare(
    tasks: Sequence[TaskSource],
    systems: Sequence[ComparedSystem],
    output: Location,
    options: ComparisonOptions,
    *,
    reporter: Reporter,
    tracker: Tracker | None = None,
) -> Comparison:
    """Runs what is missing on the connected Ray cluster and writes the report into `output`.

    Raises:
        InputError: no tasks or systems, a name twice, an unknown baseline, or something that cannot be read.
    """
    _check(tasks, systems, options)
    task_prints = [task.fingerprint() for task in tasks]
    system_prints = [system.fingerprint() for system in systems]
    names = {
        (i, j): stable_hash([_CELL_VERSION, task_prints[i], system_prints[j]])[:24]
        for i, task in enumerate(tasks)
        for j, system in enumerate(systems)
        if system.applies_to(task.kind)
    }
    records = _run(tasks, systems, names, output / "cells", options, reporter)
    rows, pair_rows, shown = _read(tasks, systems, names, output / "cells")
    baseline = options.baseline or _first_everywhere(tasks, systems)
    content = _content(
        tasks, systems, options, baseline, (rows, pair_rows, shown), _notes(tasks, names, records)
    )
    files = write_report(content, output)
    summaries = summarise(rows, pair_rows=pair_rows, baseline=baseline, seed=options.seed)
    if tracker is not None:
        fingerprint = stable_hash(["comparison", sorted(names.values())])
        params = {"tasks": ", ".join(t.title for t in tasks), "systems": ", ".join(s.name for s in systems)}
        run_id = tracker.open_run("comparison", fingerprint=fingerprint, params=params)
        log_report(tracker, run_id, output, files, mean_values(summaries), step=0)
        tracker.close_run(run_id, status="FINISHED")
    return Comparison(folder=output, summaries=summaries)


def _content(
    tasks: Sequence[TaskSource],
    systems: Sequence[ComparedSystem],
    options: ComparisonOptions,
    baseline: str,
    results: _Results,
    notes: Sequence[str],
) -> ReportInput:
    rows, pair_rows, shown = results
    other = next((system.name for system in systems if system.name != baseline), baseline)
    return ReportInput(
        title="Comparison of systems",
        summary=f"{len(systems)} systems on {len(tasks)} tasks, every task by its own protocol.",
        rows=tuple(rows),
        pair_rows=tuple(pair_rows),
        baseline=baseline,
        notes=tuple(notes),
        examples=tuple(
            query_examples(
                rows,
                shown,
                systems=[system.name for system in systems],
                before=baseline,
                after=other,
                number=options.num_examples,
            )
        ),
        movers=(
            *query_movers(rows, shown, before=baseline, after=other, number=_NUM_MOVERS),
            *pair_movers(pair_rows, shown, before=baseline, after=other, number=_NUM_MOVERS),
        ),
        moved=(baseline, other),
        facts=(
            FactBlock(title="Systems", facts={s.name: f"{s.kind} {s.source}".strip() for s in systems}),
            FactBlock(title="Tasks", facts={t.title: f"{t.kind}, {t.split}, {t.place}" for t in tasks}),
            FactBlock(title="Versions", facts=package_versions()),
        ),
        seed=options.seed,
    )


def mean_values(summaries: Sequence[TaskSummary]) -> dict[str, dict[str, dict[str, float]]]:
    """The tables' values by task, system and measure, in [0, 1]."""
    values: dict[str, dict[str, dict[str, float]]] = {}
    for summary in summaries:
        for (system, measure), cell in summary.cells.items():
            values.setdefault(summary.task, {}).setdefault(system, {})[measure] = cell.interval.mean
    return values


def task_notes(task: str, counts: dict[str, int]) -> list[str]:
    """What a reader left out of a task, one sentence for each reason."""
    return [f"{task}: {count:,} {_REASONS.get(reason, reason)}." for reason, count in counts.items() if count]


_REASONS = {
    "skipped_queries": "queries without a relevant document were left out",
    "unreachable_queries": "queries without a relevant candidate were left out",
    "unknown_queries": "judged queries are not in the queries file",
    "unknown_documents": "judged documents are not in the collection and count as not found",
    "queries_without_title": "queries without a title were left out",
    "candidates_without_title": "candidates without a title could not be ranked",
    "unscored_pairs": "pairs without a score were left out",
}


def _check(
    tasks: Sequence[TaskSource], systems: Sequence[ComparedSystem], options: ComparisonOptions
) -> None:
    if not tasks:
        raise InputError("name at least one task: a folder or file, KIND:PATH, or a configuration with tasks")
    if not systems:
        raise InputError("name at least one system: --encoder, --bm25, --glove or --run")
    unique_names(systems)
    titles = [task.title for task in tasks]
    for title in titles:
        if titles.count(title) > 1:
            raise InputError(f"two tasks are called '{title}'; name them, as NAME=PATH")
    names = [system.name for system in systems]
    if options.baseline and options.baseline not in names:
        raise InputError(f"the baseline '{options.baseline}' is none of the systems: {', '.join(names)}")


def _first_everywhere(tasks: Sequence[TaskSource], systems: Sequence[ComparedSystem]) -> str:
    """The first system that every task can be scored with.

    Raises:
        InputError: there is none.
    """
    for system in systems:
        if all(system.applies_to(task.kind) for task in tasks):
            return system.name
    raise InputError(
        "a run file and a hybrid cannot be scored on pairs; add a system that can, such as --bm25"
    )


def _run(
    tasks: Sequence[TaskSource],
    systems: Sequence[ComparedSystem],
    names: dict[tuple[int, int], str],
    folder: Location,
    options: ComparisonOptions,
    reporter: Reporter,
) -> dict[str, ShardRecord]:
    """Receipts by cell. The stage of the cells is never finished, so they stay whatever is asked next."""
    stage = StageFolder(folder, stage="cells", config={}, inputs={})
    stage.begin()
    done = stage.receipts("evaluate")
    fresh = [name for name in dict.fromkeys(names.values()) if name not in done]
    reporter.note(f"evaluate: {len(set(names.values())) - len(fresh)} cells are there, {len(fresh)} to run")
    cells = {name: {"task": tasks[i], "system": systems[j]} for (i, j), name in names.items()}
    device = "cuda" if options.gpus else "cpu"
    records = run_shards(
        stage,
        "evaluate",
        cells,
        EvaluationCell(folder, options.threads, device),
        reporter=reporter,
        label="evaluate",
        resources={"cpus": options.cpus, "gpus": options.gpus},
    )
    return {record.name: record for record in records}


def _read(
    tasks: Sequence[TaskSource],
    systems: Sequence[ComparedSystem],
    names: dict[tuple[int, int], str],
    folder: Location,
) -> _Results:
    rows: list[PerQueryRow] = []
    pair_rows: list[PairRow] = []
    shown = {}
    for (i, j), name in names.items():
        task, system = tasks[i].title, systems[j].name
        found, found_pairs = read_cell(folder, name, system=system, task=task)
        rows += found
        pair_rows += found_pairs
        shown[task, system] = by_key(read_shown(folder / "shown" / f"{name}.parquet"))
    return rows, pair_rows, shown


def _notes(
    tasks: Sequence[TaskSource], names: dict[tuple[int, int], str], records: dict[str, ShardRecord]
) -> list[str]:
    notes = []
    for i, task in enumerate(tasks):
        name = next(name for (number, _), name in names.items() if number == i)
        notes += task_notes(task.title, dict(records[name].counts))
    return notes
