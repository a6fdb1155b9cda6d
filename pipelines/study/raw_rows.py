"""Scores of cells query by query or pair by pair, as small as they can be kept beside a study's tables.

What is judged (groups, ids, labels) is written once for the contents of a task, a cell adds its float32
scores: the main measure of every query, or the score of every pair. Owns those files; must not know tables.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from indexing.evaluation.pair_rows import PairRow
from indexing.evaluation.pair_statistics import ScoredPairs
from indexing.evaluation.rows import PerQueryRow
from indexing.evaluation.seeds import GroupScores
from pipelines.storage import Location

_TASK_CHARS = 12
_ITEMS = pa.schema(
    [
        pa.field("group", pa.string(), nullable=False),
        pa.field("item", pa.string(), nullable=False),
        # Of pairs; null for queries.
        pa.field("label", pa.float64()),
        pa.field("positive", pa.int8()),
    ]
)


def write_raw_rows(
    raw: Location, cell: str, task: str, rows: Sequence[PerQueryRow], pair_rows: Sequence[PairRow]
) -> None:
    """Writes what a cell got on a task, one of the two lists empty.

    cell, task: the cell's key, and the fingerprint of the task's contents.
    """
    main = rows[0].measure if rows else ""
    items: list[tuple[str, str, float | None, int | None, float]]
    items = [(row.group, row.query_id, None, None, row.value) for row in rows if row.measure == main]
    items += [(row.group, row.pair_id, row.label, row.positive, row.score) for row in pair_rows]
    items.sort(key=lambda item: item[:2])
    columns = list(zip(*items, strict=True))
    if not items_place(raw, task).exists():
        named = dict(zip(_ITEMS.names, map(list, columns), strict=False))
        _write(items_place(raw, task), pa.table(named, schema=_ITEMS))
    scores = pa.table({"score": pa.array(np.array(columns[-1], np.float32))})
    _write(scores_file(raw, cell, task), scores, is_numbers=True)


def read_raw_rows(raw: Location, cell: str, task: str) -> GroupScores | None:
    """By group what `write_raw_rows` wrote; None where a file is absent."""
    places = items_place(raw, task), scores_file(raw, cell, task)
    if not all(place.exists() for place in places):
        return None
    items, found = (pq.read_table(place.path, filesystem=place.filesystem) for place in places)
    scores = found.column("score").to_numpy().astype(np.float64)
    groups = np.asarray(items.column("group").to_pylist(), dtype=object)
    is_pairs = items.column("label").null_count == 0
    labels = items.column("label").to_numpy()
    result: dict[str, np.ndarray[tuple[int], np.dtype[np.float64]] | ScoredPairs] = {}
    for group in dict.fromkeys(groups):
        mine = groups == group
        result[group] = scores[mine]
        if is_pairs:
            positives = items.column("positive").to_numpy()[mine].astype(np.int8)
            result[group] = ScoredPairs(scores=scores[mine], labels=labels[mine], positives=positives)
    return result


def items_place(raw: Location, task: str) -> Location:
    """Where the ids and labels of a task's contents are."""
    return raw / f"task-{task[:_TASK_CHARS]}.parquet"


def scores_file(raw: Location, cell: str, task: str) -> Location:
    """Where the scores of a cell on a task are."""
    return raw / f"{cell}-{task[:_TASK_CHARS]}.parquet"


def _write(place: Location, table: pa.Table, *, is_numbers: bool = False) -> None:
    # Numbers that hardly repeat shrink more with their bytes put beside each other than by a dictionary.
    with place.write_atomically() as target, target.filesystem.open_output_stream(target.path) as stream:
        pq.write_table(
            table,
            stream,
            compression="zstd",
            version="2.6",
            use_dictionary=not is_numbers,
            use_byte_stream_split=is_numbers,
        )
