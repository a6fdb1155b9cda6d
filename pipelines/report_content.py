"""What goes into the report of a run: rows, examples with texts, curves, and the facts that explain them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from indexing.evaluation.report import Curve, ExampleHit, FactBlock, QueryExample, ReportInput, SystemRanking
from indexing.evaluation.rows import PerQueryRow
from indexing.evaluation.summary import largest_changes
from indexing.evaluation.tasks import RetrievalTask
from pipelines.collection import finished_manifest, read_rows, read_shard
from pipelines.config import RunConfig
from pipelines.config_values import config_to_dict
from pipelines.embed import documents_folder
from pipelines.manifest import package_versions
from pipelines.storage import Location
from pipelines.systems import System, cell_name
from pipelines.train_job import LOG_NAME
from tsdae_core.hashing import keyed_permutation

START = "before training"
TRAINED = "after training"
_SHOWN_HITS = 3
_EXAMPLE_MEASURE = "mrr_at_10"


def report_input(
    config: RunConfig,
    workspace: Location,
    folder: Location,
    tasks: Sequence[RetrievalTask],
    rows: Sequence[PerQueryRow],
    *,
    systems: Sequence[System],
    missing: Mapping[str, int],
) -> ReportInput:
    """Everything the report shows, from the finished stages of the workspace and the rows of this one."""
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
    shown = [system for system in systems if system.kind != "index"]
    examples = _examples(
        folder, documents, tasks, rows, systems=systems, shown=shown, number=config.evaluate.num_examples
    )
    return ReportInput(
        title="TSDAE evaluation",
        rows=tuple(rows),
        baseline=START,
        summary=f"The encoder before and after {encoder.counts['steps']:,} steps of "
        f"{config.train.objective.upper()} on {corpus.counts['rows_kept']:,} unlabelled texts, its index, "
        "and BM25, on the same documents.",
        notes=_notes(tasks, missing),
        examples=tuple(examples),
        curves=tuple(_curves(workspace, config.train.loss_unit)),
        facts=tuple(facts),
        seed=config.seed,
    )


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
    evaluate["tasks"] = [task["name"] for task in evaluate["tasks"]]
    plain["evaluate"] = evaluate
    return plain


def _notes(tasks: Sequence[RetrievalTask], missing: Mapping[str, int]) -> tuple[str, ...]:
    notes = []
    for task in tasks:
        if task.num_skipped_queries:
            notes.append(
                f"{task.name}: {task.num_skipped_queries} queries without a relevant document were left out."
            )
        if missing[task.name]:
            notes.append(f"{task.name}: {missing[task.name]} judged documents are not in the collection.")
        if task.num_unknown_queries:
            notes.append(
                f"{task.name}: {task.num_unknown_queries} judged queries are not in the queries file."
            )
    return tuple(notes)


def _curves(workspace: Location, loss_unit: str) -> list[Curve]:
    log = (workspace / "encoder" / LOG_NAME).read_json()
    label = f"loss (nats per {loss_unit})"
    curves = [Curve(name="training", y_label=label, points=tuple(map(tuple, log["losses"])))]
    if log["validation_losses"]:
        points = tuple(map(tuple, log["validation_losses"]))
        curves.append(Curve(name="validation", y_label=label, points=points))
    return curves


def _examples(
    folder: Location,
    documents: Location,
    tasks: Sequence[RetrievalTask],
    rows: Sequence[PerQueryRow],
    *,
    systems: Sequence[System],
    shown: Sequence[System],
    number: int,
) -> list[QueryExample]:
    """Alternately the biggest gains and losses of training and queries chosen by chance, `number` in all."""
    examples: list[QueryExample] = []
    for i, task in enumerate(tasks):
        mine = [row for row in rows if row.task == task.name]
        gains, losses = largest_changes(
            mine, measure=_EXAMPLE_MEASURE, baseline=START, system=TRAINED, num_each=number
        )
        chance = keyed_permutation(len(task.query_ids), 0)[:number]
        wanted: list[tuple[str, str]] = []
        for place in range(number):
            wanted.append((task.query_ids[int(chance[place % len(chance)])], "chosen by chance"))
            wanted += [(gains[place].query_id, "biggest gain")] if place < len(gains) else []
            wanted += [(losses[place].query_id, "biggest loss")] if place < len(losses) else []
        labels = dict(reversed(wanted))
        chosen = list(dict.fromkeys(query_id for query_id, _ in wanted))[:number]
        runs = {
            system.name: read_shard(
                folder / "runs",
                cell_name(i, systems.index(system)),
                ["query_id", "rank", "doc_id", "row_id", "score"],
            )
            for system in shown
        }
        for query_id in chosen:
            rankings = tuple(_ranking(name, run, query_id, task, documents) for name, run in runs.items())
            query = task.queries[task.query_ids.index(query_id)]
            examples.append(
                QueryExample(
                    task=task.name, query_id=query_id, query=query, label=labels[query_id], rankings=rankings
                )
            )
    return examples


def _ranking(
    system: str, run: pa.Table, query_id: str, task: RetrievalTask, documents: Location
) -> SystemRanking:
    hits = run.filter(pc.equal(run.column("query_id"), query_id)).to_pylist()
    relevant = {doc_id for doc_id, grade in task.qrels[query_id].items() if grade > 0}
    best = min((hit["rank"] for hit in hits if hit["doc_id"] in relevant), default=None)
    first = hits[:_SHOWN_HITS]
    texts = read_rows(documents, np.array([hit["row_id"] for hit in first], np.int64), ["text"])
    return SystemRanking(
        system=system,
        best_relevant_rank=best,
        hits=tuple(
            ExampleHit(
                doc_id=hit["doc_id"],
                text=text["text"] or "",
                score=hit["score"],
                is_relevant=hit["doc_id"] in relevant,
            )
            for hit, text in zip(first, texts, strict=True)
        ),
    )
