"""A retrieval task: queries and their judged documents, and the reader for the BEIR layout.

Owns the task value and what is checked when it is read. Must not know encoders, searchers or measures.
Layout (Thakur et al., BEIR, 2021): `queries.jsonl` with `_id` and `text`; `qrels/<split>.tsv` or `qrels.tsv`
with the header `query-id corpus-id score`; optionally `corpus.jsonl` with `_id`, `title`, `text`. Every file
may be gzipped (`.gz`), have Windows line ends and a byte order mark. Or they are Parquet tables of the same
names (`queries.parquet`, `qrels/<split>.parquet`, `corpus.parquet`), each a file or a folder of parts; those
of queries and documents may also lie in `queries/` and `corpus/`. Where both are there, text is taken.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.fs

from indexing.arrays import shorten
from indexing.evaluation.parquet_rows import Column, parquet_rows
from indexing.evaluation.task_files import find_file, is_table
from indexing.evaluation.text_files import json_lines, text_lines

_QUERY_FILES = ("queries.jsonl", "queries.parquet", "queries/")
_CORPUS_FILES = ("corpus.jsonl", "corpus.parquet", "corpus/")
_QUERY_COLUMNS = (
    Column(("_id", "query_id", "query-id", "qid", "id"), "id"),
    Column(("text", "query"), "text"),
)
_CORPUS_COLUMNS = (
    Column(("_id", "doc_id", "corpus-id", "docid", "id"), "id"),
    Column(("title",), "text", required=False),
    Column(("text",), "text"),
)
_JUDGEMENT_COLUMNS = (
    Column(("query-id", "query_id", "qid"), "id"),
    Column(("corpus-id", "corpus_id", "doc_id", "docid"), "id"),
    Column(("score", "relevance", "grade", "label"), "grade"),
)


@dataclass(frozen=True)
class RetrievalTask:
    """Queries that each have at least one relevant document.

    Attributes:
        name: shown in reports.
        query_ids: unique, in the order of the queries file.
        queries: the texts, one for each id.
        qrels: query id -> document id -> relevance grade (0 = judged not relevant).
        num_skipped_queries: queries of the file left out because no document is relevant to them.
        num_unknown_queries: judged query ids that the queries file does not have.

    Raises:
        ValueError: counts differ, a repeated query id, or a query without a relevant document.
    """

    name: str
    query_ids: list[str]
    queries: list[str]
    qrels: dict[str, dict[str, int]]
    num_skipped_queries: int = field(default=0, kw_only=True)
    num_unknown_queries: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if len(self.query_ids) != len(self.queries):
            raise ValueError(
                f"task {self.name}: {len(self.query_ids)} query ids, {len(self.queries)} queries"
            )
        if len(set(self.query_ids)) != len(self.query_ids):
            raise ValueError(f"task {self.name}: repeated query ids {shorten(_repeated(self.query_ids))}")
        bare = [query_id for query_id in self.query_ids if not _has_relevant(self.qrels.get(query_id, {}))]
        if bare:
            raise ValueError(f"task {self.name}: queries without a relevant document: {shorten(bare)}")

    def judged_doc_ids(self) -> set[str]:
        """Every document id that the judgements mention."""
        return {doc_id for judged in self.qrels.values() for doc_id in judged}


@dataclass(frozen=True)
class Document:
    """One document of a task's own corpus; `title` may be empty."""

    doc_id: str
    title: str
    text: str

    @property
    def full_text(self) -> str:
        """Title and text joined by a space, as BEIR's baselines index them."""
        return f"{self.title} {self.text}".strip()


def read_beir_task(
    filesystem: pyarrow.fs.FileSystem,
    folder: str,
    *,
    split: str = "test",
    name: str | None = None,
    qrels_file: str | None = None,
) -> RetrievalTask:
    """Read queries and judgements.

    Args:
        filesystem: where `folder` lives.
        folder: of the task.
        split: picks `qrels/<split>.tsv` or `.parquet`; a folder with one plain `qrels.tsv` or `qrels.parquet`
            has only that split.
        name: of the task; the folder's name if not given.
        qrels_file: relative to the folder, instead of the one that `split` picks; Parquet by its ending, or,
            with `/` at the end, a folder of Parquet parts.

    Returns:
        The task. Queries of the file that are not judged, or have only grades <= 0, are skipped and counted;
        judged ids that the queries file lacks are counted.

    Raises:
        FileNotFoundError: a file is missing; the message lists what was looked for.
        ValueError: a repeated query id, a malformed line or row (file, number, reason), a column that is not
            there or holds something else, or no query left.
    """
    task_name = name or folder.rstrip("/").rsplit("/", maxsplit=1)[-1]
    picked = [f"{stem}{ending}" for stem in (f"qrels/{split}", "qrels") for ending in (".tsv", ".parquet")]
    qrels = _read_qrels(filesystem, find_file(filesystem, folder, [qrels_file] if qrels_file else picked))
    texts: dict[str, str] = {}
    repeated: list[str] = []
    path = find_file(filesystem, folder, _QUERY_FILES)
    for query_id, text in _rows(filesystem, path, _QUERY_COLUMNS):
        if query_id in texts:
            repeated.append(query_id)
        texts[query_id] = text
    if repeated:
        raise ValueError(f"{path}: repeated query ids {shorten(repeated)}; every query needs its own _id")
    kept = [query_id for query_id in texts if _has_relevant(qrels.get(query_id, {}))]
    if not kept:
        raise ValueError(f"{path}: none of {len(texts)} queries has a relevant document in the judgements")
    return RetrievalTask(
        task_name,
        kept,
        [texts[query_id] for query_id in kept],
        {query_id: qrels[query_id] for query_id in kept},
        num_skipped_queries=len(texts) - len(kept),
        num_unknown_queries=len(qrels.keys() - texts.keys()),
    )


def read_beir_corpus(filesystem: pyarrow.fs.FileSystem, folder: str) -> Iterator[Document]:
    """Stream the task's own documents in file order.

    Real corpora repeat ids (the same package for several architectures). All rows are yielded: they are
    passages of one document, which `run.run_of_hits` ranks by its best passage.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a malformed line or row, with file and number; in Parquet, a missing column or wrong type.
    """
    path = find_file(filesystem, folder, _CORPUS_FILES)
    for doc_id, title, text in _rows(filesystem, path, _CORPUS_COLUMNS):
        yield Document(doc_id, title or "", text)


def _rows(
    filesystem: pyarrow.fs.FileSystem, path: str, columns: Sequence[Column]
) -> Iterator[tuple[Any, ...]]:
    """The columns' values, text or None, from a Parquet table, or from JSON lines under their first names."""
    if is_table(path):
        yield from (values for _, values in parquet_rows(filesystem, path, columns))
        return
    for where, fields in json_lines(filesystem, path):
        yield tuple(_string(fields, column, where) for column in columns)


def _read_qrels(filesystem: pyarrow.fs.FileSystem, path: str) -> dict[str, dict[str, int]]:
    qrels: dict[str, dict[str, int]] = {}
    rows = (
        parquet_rows(filesystem, path, _JUDGEMENT_COLUMNS)
        if is_table(path)
        else _judgement_lines(filesystem, path)
    )
    for where, (query_id, doc_id, grade) in rows:
        judged = qrels.setdefault(query_id, {})
        if judged.get(doc_id, grade) != grade:
            raise ValueError(f"{where}: two grades for query {query_id!r}, document {doc_id!r}")
        judged[doc_id] = grade
    return qrels


def _judgement_lines(
    filesystem: pyarrow.fs.FileSystem, path: str
) -> Iterator[tuple[str, tuple[str, str, int]]]:
    for number, line in text_lines(filesystem, path):
        parts = line.split("\t") if "\t" in line else line.split()
        if number == 1 and parts[-1].strip().lower() == "score":
            continue
        where = f"{path}: line {number}"
        try:
            query_id, doc_id, grade = parts[0], parts[1], int(parts[2])
            if len(parts) != 3:
                raise ValueError
        except (IndexError, ValueError) as error:
            raise ValueError(
                f"{where}: expected query-id, corpus-id and a whole-number score, got {line!r}"
            ) from error
        yield where, (query_id, doc_id, grade)


def _string(fields: dict[str, object], column: Column, where: str) -> str | None:
    key = column.names[0]
    value = fields.get(key)
    if value is None and not column.required:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and column.holds == "id":
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"{where}: {key!r} must be a string, got {value!r}")
    return value


def _has_relevant(judged: dict[str, int]) -> bool:
    return any(grade > 0 for grade in judged.values())


def _repeated(names: list[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)
