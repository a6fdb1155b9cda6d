"""Small corpora, token shards and objectives for the tests of the pipelines."""

import gzip
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from pipelines.progress import Reporter
from pipelines.token_shards import TokenRows
from pipelines.token_tables import to_table
from tsdae_core.ragged import Ragged
from tsdae_core.tokens import TokenizedTexts


def quiet_reporter():
    """A reporter and the text it has written so far."""
    written = io.StringIO()
    return Reporter(Console(file=written, force_terminal=False, width=200, soft_wrap=True)), written


def make_tokens(rows, *, seed=0):
    """Tokens of rows given as lists of ids; a word begins at every third token or so."""
    ids = Ragged.from_rows(rows)
    starts = np.random.default_rng(seed).random(len(ids.values)) < 0.4
    return TokenizedTexts(ids, starts)


def random_rows(count, *, seed=0, longest=9, vocab=range(5, 60)):
    """Rows of 0 to `longest` ids; every fifth or so is empty."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, longest + 1, size=count) * (rng.random(count) < 0.8)
    return [rng.choice(list(vocab), size=size).tolist() for size in sizes]


def write_token_shards(folder, shards, *, row_group_rows=4_096):
    """Writes (row ids, tokens) shards as the tokenize stage does; returns their TokenRows."""
    folder.make_dir()
    names = [f"part-{i:05d}" for i in range(len(shards))]
    for name, (row_ids, tokens) in zip(names, shards, strict=True):
        path = Path((folder / f"{name}.parquet").path)
        pq.write_table(to_table(row_ids, tokens), path, row_group_size=row_group_rows)
    return TokenRows(folder, names, [len(row_ids) for row_ids, _ in shards])


def write_rows(path, rows, columns=("id", "text")):
    """Writes rows of strings in the format that the file name tells."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        arrays = [pa.array([row[i] for row in rows], pa.string()) for i in range(len(columns))]
        pq.write_table(pa.table(arrays, names=list(columns)), path)
        return path
    data = _WRITERS[name.rpartition(".")[2]](rows, columns).encode("utf-8")
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
    return path


def _jsonl(rows, columns):
    import json

    return "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)


def _separated(separator):
    def quoted(value):
        return "" if value is None else '"' + value.replace('"', '""') + '"'

    def write(rows, columns):
        return "".join(separator.join(map(quoted, row)) + "\n" for row in [columns, *rows])

    return write


_WRITERS = {
    "jsonl": _jsonl,
    "ndjson": _jsonl,
    "csv": _separated(","),
    "tsv": _separated("\t"),
    "txt": lambda rows, columns: "".join(row[-1] + "\n" for row in rows),
}
