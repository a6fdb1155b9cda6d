"""Winners, losers and examples of a report, from the rows and from what was kept of single queries.

Owns which queries are shown. Must not know where cells lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from indexing.evaluation.pair_rows import PairRow
from indexing.evaluation.pair_statistics import ranks
from indexing.evaluation.report import ExampleHit, Mover, QueryExample, SystemRanking
from indexing.evaluation.rows import PerQueryRow
from indexing.evaluation.summary import largest_changes
from pipelines.shown import ShownQuery
from tsdae_core.hashing import keyed_permutation

# (task, system) -> what is shown of its queries, by (group, query id).
Shown = Mapping[tuple[str, str], Mapping[tuple[str, str], ShownQuery]]


def query_movers(
    rows: Sequence[PerQueryRow], shown: Shown, *, before: str, after: str, number: int
) -> list[Mover]:
    """The `number` largest gains and losses of each task in its main measure, with their places."""
    movers = []
    for task in dict.fromkeys(row.task for row in rows):
        mine = [row for row in rows if row.task == task]
        if not {before, after} <= {row.system for row in mine}:
            continue
        measure = mine[0].measure
        gains, losses = largest_changes(mine, measure=measure, baseline=before, system=after, num_each=number)
        for change in (*gains, *losses):
            key = (change.group, change.query_id)
            old, new = shown[task, before][key], shown[task, after][key]
            movers.append(
                Mover(
                    task=task,
                    text=new.query,
                    target=new.relevant_text or old.relevant_text,
                    before=_place(old.best_rank),
                    after=_place(new.best_rank),
                    change=change.change,
                )
            )
    return movers


def pair_movers(
    rows: Sequence[PairRow], shown: Shown, *, before: str, after: str, number: int
) -> list[Mover]:
    """The pairs of each task that moved nearest to, and farthest from, where their label is."""
    movers = []
    for task in dict.fromkeys(row.task for row in rows):
        errors: dict[str, dict[tuple[str, str], float]] = {}
        sizes: dict[str, int] = {}
        labels: dict[tuple[str, str], float] = {}
        for system in (before, after):
            mine = [row for row in rows if row.task == task and row.system == system]
            for group in dict.fromkeys(row.group for row in mine):
                part = [row for row in mine if row.group == group]
                sizes[group] = len(part)
                off = ranks(np.array([row.score for row in part])) - ranks(
                    np.array([row.label for row in part])
                )
                for row, value in zip(part, np.abs(off) / len(part), strict=True):
                    errors.setdefault(system, {})[group, row.pair_id] = float(value)
                    labels[group, row.pair_id] = row.label
        if before not in errors or after not in errors:
            continue
        changes = {key: errors[before][key] - value for key, value in errors[after].items()}
        ordered = sorted(changes, key=lambda key: -changes[key])
        chosen = [key for key in ordered[:number] if changes[key] > 0]
        chosen += [key for key in reversed(ordered[-number:]) if changes[key] < 0]
        for key in chosen:
            old, new = shown[task, before][key], shown[task, after][key]
            movers.append(
                Mover(
                    task=task,
                    text=new.query,
                    target=new.relevant_text,
                    before=f"label {labels[key]:g}, place {old.best_rank:,}",
                    after=f"{new.best_rank:,} of {sizes[key[0]]:,}",
                    change=changes[key],
                )
            )
    return movers


def query_examples(
    rows: Sequence[PerQueryRow],
    shown: Shown,
    *,
    systems: Sequence[str],
    before: str,
    after: str,
    number: int,
) -> list[QueryExample]:
    """Alternately queries chosen by chance and the biggest gains and losses, `number` for each task."""
    examples = []
    for task in dict.fromkeys(row.task for row in rows):
        mine = [row for row in rows if row.task == task]
        there = [system for system in systems if (task, system) in shown]
        if not number or before not in there:
            continue
        other = after if after in there else before
        gains, losses = largest_changes(
            mine, measure=mine[0].measure, baseline=before, system=other, num_each=number
        )
        keys = list(shown[task, before])
        chance = keyed_permutation(len(keys), 0)[:number]
        wanted: list[tuple[tuple[str, str], str]] = []
        for place in range(number):
            wanted.append((keys[int(chance[place % len(chance)])], "chosen by chance"))
            for label, changes in (("biggest gain", gains), ("biggest loss", losses)):
                if place < len(changes):
                    wanted.append(((changes[place].group, changes[place].query_id), label))
        labels = dict(reversed(wanted))
        for key in list(dict.fromkeys(key for key, _ in wanted))[:number]:
            first = shown[task, before][key]
            examples.append(
                QueryExample(
                    task=task,
                    query_id=key[1],
                    query=first.query,
                    label=labels[key],
                    relevant_texts=(first.relevant_text,) if first.relevant_text else (),
                    rankings=tuple(_ranking(system, shown[task, system][key]) for system in there),
                )
            )
    return examples


def by_key(rows: Sequence[ShownQuery]) -> dict[tuple[str, str], ShownQuery]:
    """Shown queries by (group, query id)."""
    return {(row.group, row.query_id): row for row in rows}


def _ranking(system: str, shown: ShownQuery) -> SystemRanking:
    return SystemRanking(
        system=system,
        best_relevant_rank=shown.best_rank or None,
        hits=tuple(
            ExampleHit(
                doc_id=hit["doc_id"], text=hit["text"], score=hit["score"], is_relevant=hit["relevant"]
            )
            for hit in shown.hits
        ),
    )


def _place(rank: int) -> str:
    return f"place {rank:,}" if rank else "not found"
