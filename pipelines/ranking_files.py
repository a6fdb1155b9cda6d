"""Files of queries, of candidates and of rankings: JSONL, Parquet, plain text, TREC runs.

Owns their formats and names the line of every mistake. Knows nothing of how rankings are made.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.errors import InputError
from pipelines.search import Hit
from pipelines.storage import Location
from pipelines.unicode_text import refuse_lone_surrogates

_ID_KEYS = ("query_id", "_id", "id", "qid")
_TEXT_KEYS = ("query", "text", "title")
_OUTPUTS = (".jsonl", ".parquet", ".trec")
_RUN_TAG = "tsdae"
_BLOCK_QUERIES = 1_000
_RUN_SCHEMA = pa.schema(
    [
        ("query_id", pa.string()),
        ("query", pa.string()),
        ("rank", pa.int32()),
        ("doc_id", pa.string()),
        ("score", pa.float32()),
        ("title", pa.string()),
        ("text", pa.string()),
    ]
)


@dataclass(frozen=True)
class Query:
    """A query of a file; its id is the line number where the file has none."""

    query_id: str
    text: str


@dataclass(frozen=True)
class Candidates:
    """A query and the texts to put in order, with their ids, in the order of the file."""

    query: Query
    doc_ids: tuple[str, ...]
    texts: tuple[str, ...]


def read_queries(path: str) -> list[Query]:
    """Queries of a `.txt` (one per line), `.tsv` (id, text), `.jsonl` or `.parquet` file.

    JSONL and Parquet take the id from query_id, _id, id or qid and the text from query, text or title.

    Raises:
        InputError: no such file, an ending or a line that cannot be used, an empty query, an id twice.
    """
    if path.endswith(".txt"):
        queries = [Query(str(i), line) for i, line in enumerate(_lines(path), 1) if line.strip()]
    elif path.endswith(".tsv"):
        parts = [line.split("\t") for line in _lines(path) if line.strip()]
        if any(len(columns) != 2 for columns in parts):
            raise InputError(f"{path}: expected two columns, query id and text, in every line")
        queries = [Query(query_id, text) for query_id, text in parts]
    else:
        queries = [_query(row, number, path) for number, row in enumerate(_rows(path), 1)]
    if not queries:
        raise InputError(f"{path} holds no queries")
    _check(queries, path)
    return queries


def read_candidates(path: str) -> Iterator[Candidates]:
    """Candidate lists of a `.jsonl` or `.parquet` file: a query and `candidates`, one query per row.

    `candidates` is a list of texts, or of objects with id (or doc_id, _id) and text; a text without an id is
    named by its place from 0. Rows are read one after the other.

    Raises:
        InputError: no such file, an ending or a row that cannot be used, a query or candidate id twice.
    """
    seen: set[str] = set()
    for number, row in enumerate(_rows(path), 1):
        query = _query(row, number, path)
        refuse_lone_surrogates((query.query_id, query.text), what=f"{path}: row {number}: the query")
        if query.query_id in seen:
            raise InputError(f"{path}: row {number}: query id {query.query_id} occurs twice")
        seen.add(query.query_id)
        given = row.get("candidates")
        if not isinstance(given, list) or not query.text.strip():
            raise InputError(f"{path}: row {number}: expected a query and a list of `candidates`")
        texts: dict[str, str] = {}
        for place, item in enumerate(given):
            fields = item if isinstance(item, dict) else {"text": item}
            name = str(
                next((fields[key] for key in ("id", "doc_id", "_id") if fields.get(key) is not None), place)
            )
            if not isinstance(fields.get("text"), str):
                raise InputError(f"{path}: row {number}: candidate {place} has no text")
            if name in texts:
                raise InputError(f"{path}: row {number}: candidate id {name!a} occurs twice")
            texts[name] = fields["text"]
        refuse_lone_surrogates((*texts, *texts.values()), what=f"{path}: row {number}: a candidate")
        yield Candidates(query, tuple(texts), tuple(texts.values()))


def check_output(path: str) -> None:
    """Refuses an output file whose ending names no format that `write_rankings` knows.

    Raises:
        InputError: with the endings that it knows.
    """
    if not path.endswith(_OUTPUTS):
        raise InputError(f"cannot write '{path}': its name must end in {', '.join(_OUTPUTS)}")


def write_rankings(
    path: str, rankings: Iterable[tuple[Query, Sequence[Hit]]], *, columns: pa.Schema | None = None
) -> int:
    """Writes rankings as JSONL (a line per query), Parquet (a row per hit) or a TREC run; returns how many.

    columns: names and types of what `Hit.columns` holds; in Parquet one struct of these names, `columns`.
    The file appears when it is complete. Rankings are taken one after the other, never held all at once.

    Raises:
        InputError: an ending that names no format, an id with white space in a TREC run, or a bad place.
    """
    check_output(path)
    count = 0

    def counted() -> Iterator[tuple[Query, Sequence[Hit]]]:
        nonlocal count
        for ranking in rankings:
            count += 1
            yield ranking

    try:
        with Location.parse(path).write_atomically() as target, target.open_output() as stream:
            if path.endswith(".parquet"):
                _write_parquet(stream, counted(), columns)
            else:
                to_text = _json_line if path.endswith(".jsonl") else _trec_lines
                for query, hits in counted():
                    stream.write(to_text(query, hits).encode())
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error}") from error
    return count


def _write_parquet(
    stream: pa.NativeFile, rankings: Iterator[tuple[Query, Sequence[Hit]]], columns: pa.Schema | None
) -> None:
    schema = _RUN_SCHEMA
    if columns:  # Parquet has no struct without fields
        schema = schema.append(pa.field("columns", pa.struct(list(columns))))
    with pq.ParquetWriter(stream, schema, compression="zstd") as writer:
        while block := list(islice(rankings, _BLOCK_QUERIES)):
            rows = [
                {"query_id": query.query_id, "query": query.text, **asdict(hit)}
                for query, hits in block
                for hit in hits
            ]
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))


def _json_line(query: Query, hits: Sequence[Hit]) -> str:
    content = {"query_id": query.query_id, "query": query.text, "hits": [asdict(hit) for hit in hits]}
    return json.dumps(content, ensure_ascii=False, default=str) + "\n"


def _trec_lines(query: Query, hits: Sequence[Hit]) -> str:
    """One line for each document; of rows with equal ids, passages of one, the best stands for it."""
    best: dict[str, Hit] = {}
    for hit in hits:
        best.setdefault(hit.doc_id, hit)
    for name in (query.query_id, *best):
        if len(name.split()) != 1:
            raise InputError(
                f"a TREC run cannot hold the id {name!r}: ids must be words; write .jsonl instead"
            )
    return "".join(
        f"{query.query_id} Q0 {hit.doc_id} {rank} {hit.score:.9g} {_RUN_TAG}\n"
        for rank, hit in enumerate(best.values(), 1)
    )


def _rows(path: str) -> Iterator[Mapping[str, Any]]:
    if path.endswith(".jsonl"):
        for number, line in enumerate(_lines(path), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise InputError(f"{path}: line {number} is not JSON: {error.msg}") from error
            if not isinstance(row, dict):
                raise InputError(f"{path}: line {number}: expected an object, got {line[:80]!r}")
            yield row
    elif path.endswith(".parquet"):
        place = _existing(path)
        with place.filesystem.open_input_file(place.path) as stream:
            try:
                file = pq.ParquetFile(stream)
            except (pa.ArrowInvalid, OSError) as error:
                raise InputError(f"{path} is not a readable Parquet file: {error}") from error
            for batch in file.iter_batches(_BLOCK_QUERIES):
                yield from batch.to_pylist()
    else:
        raise InputError(f"cannot read '{path}': its name must end in .jsonl or .parquet")


def _lines(path: str) -> list[str]:
    try:
        text = _existing(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not valid UTF-8") from error
    # Only \n ends a line: texts may hold U+2028 and its like, which str.splitlines would cut at.
    return [line.removesuffix("\r") for line in text.split("\n")]


def _existing(path: str) -> Location:
    place = Location.parse(path)
    if not place.exists():
        raise InputError(f"there is no file '{path}'")
    return place


def _query(row: Mapping[str, Any], number: int, path: str) -> Query:
    text = next((row[key] for key in _TEXT_KEYS if isinstance(row.get(key), str)), None)
    if text is None:
        raise InputError(f"{path}: row {number} has no text under any of {', '.join(_TEXT_KEYS)}")
    return Query(str(next((row[key] for key in _ID_KEYS if row.get(key) is not None), number)), text)


def _check(queries: Sequence[Query], path: str) -> None:
    seen: set[str] = set()
    for query in queries:
        refuse_lone_surrogates(
            (query.query_id, query.text), what=f"{path}: query {ascii(query.query_id)[1:-1]}"
        )
        if not query.text.strip():
            raise InputError(f"{path}: query {query.query_id} is empty")
        if query.query_id in seen:
            raise InputError(f"{path}: query id {query.query_id} occurs twice")
        seen.add(query.query_id)
