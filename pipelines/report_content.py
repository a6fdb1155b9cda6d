"""What goes into the report of a run: rows, examples with texts, curves, and the facts that explain them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from indexing.evaluation.pair_rows import PairRow
from indexing.evaluation.report import Curve, FactBlock, ReportInput
from indexing.evaluation.rows import PerQueryRow
from pipelines.collection import finished_manifest
from pipelines.config import RunConfig
from pipelines.config_values import config_to_dict
from pipelines.embed import documents_folder
from pipelines.labels import LABELS_FOLDER
from pipelines.manifest import package_versions
from pipelines.report_movers import Shown, pair_movers, query_examples, query_movers
from pipelines.storage import Location
from pipelines.systems import System
from pipelines.train_job import LOG_NAME

START = "before training"
TRAINED = "after training"
_NUM_MOVERS = 5
# Lists of (step, value) in the training's log that are losses; any other list is a score by steps.
_LOSSES = {"losses": "training", "validation_losses": "validation"}
_SCORES = {
    "retrieval_mrrs": "MRR of halves of held-out texts, no labels",
    "task_scores": "main score of the validation task",
}


def report_input(
    config: RunConfig,
    workspace: Location,
    rows: Sequence[PerQueryRow],
    pair_rows: Sequence[PairRow],
    shown: Shown,
    *,
    systems: Sequence[System],
    notes: Sequence[str],
) -> ReportInput:
    """Everything the report shows, from the finished stages of the workspace and the rows of this one."""
    encoder = finished_manifest(workspace / "encoder", command="train")
    # The index ranks almost as exact search does: its hits would be shown twice.
    names = [system.name for system in systems if system.kind != "index"]
    examples = query_examples(
        rows, shown, systems=names, before=START, after=TRAINED, number=config.evaluate.num_examples
    )
    movers = query_movers(rows, shown, before=START, after=TRAINED, number=_NUM_MOVERS)
    movers += pair_movers(pair_rows, shown, before=START, after=TRAINED, number=_NUM_MOVERS)
    return ReportInput(
        title="TSDAE evaluation",
        rows=tuple(rows),
        pair_rows=tuple(pair_rows),
        baseline=START,
        summary=f"The encoder before and after {encoder.counts['steps']:,} steps of "
        f"{config.train.objective.upper()} on {_trained_on(config, workspace)}, its index, BM25, and both "
        "fused, on the same texts.",
        notes=tuple(notes),
        examples=tuple(examples),
        movers=tuple(movers),
        moved=(START, TRAINED),
        curves=tuple(_curves(workspace, config.train.loss_name)),
        facts=tuple(_facts(config, workspace)),
        seed=config.seed,
    )


def with_speed(content: ReportInput, folder: Location) -> ReportInput:
    """The same report with recall against queries per second of the index, where it was measured."""
    measured = [Location(folder.filesystem, info.path) for info in (folder / "speed").files()]
    if not measured:
        return content
    points = sorted((float(x), float(y)) for x, y in measured[0].read_json()["points"])
    if len(points) == 1:  # an index without search settings, such as Flat: no line to draw
        ((speed, recall),) = points
        note = f"Index: recall@10 {recall:.3f} at {speed:,.0f} queries/s, one thread."
        return replace(content, notes=(*content.notes, note))
    curve = Curve(
        name="each search setting of the index",
        section="Index: recall against speed",
        y_label="recall@10 against exact search",
        x_label="queries/s, one thread",
        points=tuple(points),
    )
    return replace(content, curves=(*content.curves, curve))


def _facts(config: RunConfig, workspace: Location) -> list[FactBlock]:
    documents = documents_folder(config, workspace)
    corpus = finished_manifest(workspace / "corpus", command="prepare")
    index = finished_manifest(workspace / "index", command="index")
    encoder = finished_manifest(workspace / "encoder", command="train")
    facts = [
        FactBlock(title="Corpus", facts=dict(corpus.counts)),
        FactBlock(title="Training", facts={**encoder.counts, "last_loss": encoder.facts["last_loss"]}),
        FactBlock(title="Index", facts={**index.facts, **index.counts}),
        FactBlock(title="Configuration", facts=_without_places(config_to_dict(config))),
        FactBlock(title="Versions", facts=package_versions()),
    ]
    if documents.name != "corpus":
        counts = finished_manifest(documents, command="prepare").counts
        facts.insert(1, FactBlock(title="Documents", facts=dict(counts)))
    return facts


def _without_places(tree: dict[str, Any]) -> dict[str, Any]:
    """The configuration without the places of this machine, so that equal runs report equally."""
    plain = {
        key: value
        for key, value in tree.items()
        if key not in ("workspace", "cluster", "tracking", "register")
    }
    for section in ("corpus", "documents"):
        if isinstance(plain.get(section), dict):
            plain[section] = {key: value for key, value in plain[section].items() if key != "input"}
    evaluate = dict(plain["evaluate"])
    evaluate["tasks"] = [f"{task['name']} ({task['kind']})" for task in evaluate["tasks"]]
    plain["evaluate"] = evaluate
    plain["train"] = _train_without_places(plain["train"])
    plain["phases"] = [{**phase, "train": _train_without_places(phase["train"])} for phase in plain["phases"]]
    return plain


def _train_without_places(train: dict[str, Any]) -> dict[str, Any]:
    plain = dict(train)
    if plain["labels"] is not None:
        plain["labels"] = {key: value for key, value in plain["labels"].items() if key != "input"}
    stopping = dict(plain["early_stopping"])
    if stopping["task"] is not None:
        stopping["task"] = {key: value for key, value in stopping["task"].items() if key != "folder"}
    plain["early_stopping"] = stopping
    return plain


def _trained_on(config: RunConfig, workspace: Location) -> str:
    """What the training (the last one, with phases) read."""
    if config.train.labels is not None:
        labels = finished_manifest(workspace / LABELS_FOLDER, command="train")
        return f"{labels.counts['rows_kept']:,} labelled rows"
    corpus = finished_manifest(workspace / "corpus", command="prepare")
    return f"{corpus.counts['rows_kept']:,} unlabelled texts"


def _curves(workspace: Location, loss_name: str) -> list[Curve]:
    """Losses, and whatever else the training's log has by steps (scores of checkpoints)."""
    log = (workspace / "encoder" / LOG_NAME).read_json()
    curves = []
    for key, points in log.items():
        if not isinstance(points, list) or not points or not _is_curve(points):
            continue
        loss = f"loss ({loss_name.replace('_', ' ')})"
        label = loss if key in _LOSSES else _SCORES.get(key, key.replace("_", " "))
        name = _LOSSES.get(key, "checkpoints")
        curves.append(Curve(name=name, y_label=label, points=tuple(map(tuple, points))))
    return curves


def _is_curve(points: list[Any]) -> bool:
    return all(
        isinstance(p, list) and len(p) == 2 and all(isinstance(v, int | float) for v in p) for p in points
    )
