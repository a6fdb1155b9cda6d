"""What a person reads at the end of a run, and how hits look."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from indexing.evaluation.report_text import measure_label
from pipelines.config import RunConfig
from pipelines.report_content import TRAINED
from pipelines.storage import Location
from pipelines.tracking import Tracker

if TYPE_CHECKING:
    from pipelines.search import Hit

_TEXT_CHARS = 200


def print_summary(config: RunConfig, console: Console) -> None:
    """Scores, examples, where everything is, and what to try next."""
    workspace = Location.parse(config.workspace)
    report = workspace / "report"
    if config.evaluate.systems:
        print_comparison(report, console)
        return
    example = None
    if (report / "report.json").exists():
        content = (report / "report.json").read_json()
        for task in content["tasks"]:
            _print_scores(task, content["baseline"], console)
        _print_examples(content["examples"], console)
        example = content["examples"][0]["query"] if content["examples"] else None
    _print_places(config, workspace, console)
    _print_next(config.workspace, workspace, example, console)


def print_comparison(report: Location, console: Console) -> None:
    """The tables of a report folder, and where it is."""
    content = (report / "report.json").read_json()
    for task in content["tasks"]:
        _print_scores(task, content["baseline"], console)
    if len(content["tasks"]) > 1 and content["mean_of_main_scores"]:
        console.print("\nMean of the main scores", style="bold")
        for system, mean in content["mean_of_main_scores"].items():
            console.print(f"  {100 * mean:5.1f}  {system}", markup=False, soft_wrap=True)
    console.print(f"\nReport: {report / 'report.html'}", markup=False, soft_wrap=True)


def _print_scores(task: dict[str, Any], baseline: str, console: Console) -> None:
    title = (
        f"\n{task['task']}: {task['num_queries']:,} {task['unit']}, values x100 "
        f"(* differs from '{baseline}', p < 0.05)"
    )
    console.print(title, style="bold", markup=False, soft_wrap=True)
    table = Table()
    table.add_column("system")
    measures = list(dict.fromkeys(cell["measure"] for cell in task["scores"]))
    for measure in measures:
        table.add_column(measure_label(measure), justify="right")
    for system in dict.fromkeys(cell["system"] for cell in task["scores"]):
        cells = [cell for cell in task["scores"] if cell["system"] == system]
        table.add_row(system, *[_score(cell) for cell in cells])
    console.print(table)


def _score(cell: dict[str, Any]) -> Text:
    against = cell["against_baseline"]
    star = "*" if against and against["adjusted_p_value"] < 0.05 else " "
    return Text(f"{100 * cell['mean']:.1f}{star}", style="bold" if cell["is_best"] else "")


def _print_examples(examples: Sequence[dict[str, Any]], console: Console) -> None:
    for example in examples:
        console.print(f"\nQuery: {example['query']}", style="bold", markup=False)
        console.print(f"  ({example['label']})", markup=False)
        for ranking in example["rankings"]:
            rank = ranking["best_relevant_rank"]
            where = f"right document at place {rank}" if rank else "right document not found"
            console.print(f"  {ranking['system']}: {where}", markup=False)
            if ranking["system"] != TRAINED:
                continue
            for place, hit in enumerate(ranking["hits"], 1):
                mark = "+" if hit["is_relevant"] else " "
                console.print(
                    f"  {mark} {place}. {hit['score']:.3f}  {_shortened(hit['text'])}", markup=False
                )


def _shortened(text: str) -> str:
    return text if len(text) <= _TEXT_CHARS else text[: _TEXT_CHARS - 4].rsplit(" ", 1)[0] + " ..."


def _print_places(config: RunConfig, workspace: Location, console: Console) -> None:
    uri = Tracker.of(config, workspace).uri
    places = {
        "encoder": workspace / "encoder",
        "index": workspace / "index",
        "report": workspace / "report" / "report.html",
        "MLflow": uri,
        "model": f"models:/{config.register.name}@{config.register.alias}",
    }
    console.print("\nResults", style="bold")
    for name, place in places.items():
        console.print(f"  {name:<8} {place}", markup=False, soft_wrap=True)


def _print_next(given: str, workspace: Location, example: str | None, console: Console) -> None:
    """Commands as this user can type them: with the environment's folder where it is not activated."""
    console.print("\nTry next", style="bold")
    query = (example or "how to read a file").replace('"', "'")
    folder = "" if shutil.which("tsdae") else os.path.relpath(Path(sys.executable).parent) + os.sep
    commands = [
        f'{folder}tsdae search --workspace {given} "{query}"',
        f"{folder}tsdae serve --workspace {given}",
    ]
    if workspace.is_local:
        commands.append(f"{folder}mlflow ui --backend-store-uri sqlite:///{workspace / 'mlflow.db'}")
    for command in commands:
        console.print(f"  {command}", markup=False, soft_wrap=True)


def print_hits(hits: Sequence[Hit], console: Console, *, json_output: bool, query: str = "") -> None:
    """Ranked documents: for people, the query's words marked, or one JSON object per line for programs."""
    if json_output:
        for hit in hits:
            console.file.write(json.dumps(asdict(hit), ensure_ascii=False, default=str) + "\n")
        return
    if not hits:
        console.print("no documents found")
    words = sorted({re.escape(word) for word in re.findall(r"\w{2,}", query)}, key=len, reverse=True)
    for hit in hits:
        head = f"{hit.rank}. {hit.score:.3f}  {hit.title or hit.doc_id}"
        console.print(head, style="bold", markup=False)
        text = Text(f"   {_shortened(hit.text)}")
        if words:
            text.highlight_regex(rf"(?i)\b({'|'.join(words)})\b", "bold cyan")
        console.print(text)
        shown = [f"{key} {value}" for key, value in hit.columns.items() if value is not None]
        if hit.title:
            shown.insert(0, f"id {hit.doc_id}")
        if shown:
            console.print(f"   {', '.join(shown)}", style="dim", markup=False)
