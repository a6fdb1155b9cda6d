"""From a path to a task: which reader a kind of task has, and which kind a path is when nobody says.

Owns the list of kinds. Must not know systems or statistics.
"""

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import pyarrow.fs

from indexing.evaluation.labelled import (
    LABEL,
    has_sts,
    is_rerank_table,
    read_pairs,
    read_rerank,
    read_sts,
)
from indexing.evaluation.measures import DEFAULT_MEASURES
from indexing.evaluation.tables import TABLE_ENDINGS, read_table_rows
from indexing.evaluation.task_files import has_file, is_table
from indexing.evaluation.tasks import read_beir_corpus, read_beir_task
from indexing.evaluation.text_tasks import CorpusPart, CorpusTask, TextTask
from indexing.evaluation.useb import read_askubuntu, read_cqadupstack, read_scidocs, read_twitterpara

TaskKind: TypeAlias = Literal[
    "askubuntu", "cqadupstack", "twitterpara", "scidocs", "beir", "sts", "pairs", "rerank"
]
TASK_KINDS: tuple[str, ...] = get_args(TaskKind)
_BINARY_LABELS = {"0", "1", "0.0", "1.0", "False", "True"}


def read_task(
    filesystem: pyarrow.fs.FileSystem,
    path: str,
    *,
    kind: str,
    split: str = "test",
    name: str | None = None,
    top_k: int = 100,
    qrels: str | None = None,
) -> TextTask:
    """Read a task of a known kind.

    Args:
        filesystem: where `path` lives.
        path: a folder or file, as the kind has it.
        kind: one of `TASK_KINDS`.
        split: `test`, `dev` or `valid`, where the data has several.
        name: shown in reports; by default the data's own.
        top_k: hits kept for each query of `beir`.
        qrels: another file of judgements for `beir`, relative to the folder.

    Raises:
        FileNotFoundError, ValueError: as the readers.
    """
    if kind not in TASK_KINDS:
        raise ValueError(f"unknown kind of task {kind!r}; known: {', '.join(TASK_KINDS)}")
    if kind == "beir":
        return read_beir(filesystem, path, split=split, name=name, top_k=top_k, qrels=qrels)
    if kind == "pairs":
        return read_pairs(filesystem, path, name=name)
    if kind == "rerank":
        return read_rerank(filesystem, path, name=name)
    return _BY_SPLIT[kind](filesystem, path, split=split, name=name)


def detect_kind(filesystem: pyarrow.fs.FileSystem, path: str) -> str:
    """The kind of task that a folder or file holds, by its file names and columns.

    Raises:
        FileNotFoundError: nothing there.
        ValueError: nothing that is known.
    """
    info = filesystem.get_file_info(path)
    if info.type == pyarrow.fs.FileType.NotFound:
        raise FileNotFoundError(f"there is no file or folder '{path}'")
    if info.type == pyarrow.fs.FileType.File or is_table(path):
        return _kind_of_file(filesystem, path)
    for file, kind in _MARKS:
        if has_file(filesystem, path, file):
            return kind
    if has_sts(filesystem, path):
        return "sts"
    raise ValueError(
        f"'{path}' is no task that is known by its files; expected one of "
        f"{', '.join(file for file, _ in _MARKS)}, sts-*.csv, SICK*.txt or STS.input.*; "
        "or say what it is, as KIND:PATH"
    )


_BY_SPLIT: dict[str, Callable[..., TextTask]] = {
    "askubuntu": read_askubuntu,
    "cqadupstack": read_cqadupstack,
    "twitterpara": read_twitterpara,
    "scidocs": read_scidocs,
    "sts": read_sts,
}
_MARKS = (
    ("text_tokenized.txt", "askubuntu"),
    ("retrieval_split.json", "cqadupstack"),
    ("Twitter_URL_Corpus_test.txt", "twitterpara"),
    ("data.json", "scidocs"),
    ("queries.jsonl", "beir"),
    ("queries.parquet", "beir"),
    ("queries/", "beir"),
)


def read_beir(
    filesystem: pyarrow.fs.FileSystem,
    folder: str,
    *,
    split: str = "test",
    name: str | None = None,
    top_k: int = 100,
    qrels: str | None = None,
) -> CorpusTask:
    """Queries, judgements and documents of a folder in BEIR layout (`tasks`), all texts in memory.

    Raises:
        FileNotFoundError, ValueError: as `tasks.read_beir_task`.
    """
    task = read_beir_task(filesystem, folder, split=split, name=name, qrels_file=qrels)
    documents = [(document.doc_id, document.full_text) for document in read_beir_corpus(filesystem, folder)]
    known = {doc_id for doc_id, _ in documents}
    if not task.judged_doc_ids() & known:
        raise ValueError(
            f"task '{task.name}': none of its {len(task.judged_doc_ids())} judged documents is among the "
            f"{len(documents)} documents of {folder}"
        )
    return CorpusTask(
        name=task.name,
        protocol="beir",
        parts=(
            CorpusPart(
                query_ids=tuple(task.query_ids),
                queries=tuple(task.queries),
                doc_ids=tuple(doc_id for doc_id, _ in documents),
                documents=tuple(text for _, text in documents),
                qrels=task.qrels,
            ),
        ),
        measures=tuple(m.name for m in DEFAULT_MEASURES if m.cutoff is None or m.cutoff <= top_k),
        top_k=top_k,
        counts={
            "skipped_queries": task.num_skipped_queries,
            "unknown_queries": task.num_unknown_queries,
            "unknown_documents": len(task.judged_doc_ids() - known),
        },
    )


def _kind_of_file(filesystem: pyarrow.fs.FileSystem, path: str) -> str:
    base = path.rsplit("/", 1)[-1]
    if base.startswith(("sts-", "SICK")):
        return "sts"
    if not path.removesuffix(".gz").endswith(TABLE_ENDINGS):
        raise ValueError(
            f"'{path}' is no task: expected a folder or a file ending in {', '.join(TABLE_ENDINGS)}"
        )
    rows = read_table_rows(filesystem, path)
    if is_rerank_table(rows):
        return "rerank"
    labels = {str(row.value(LABEL)) for row in rows}
    return "pairs" if labels <= _BINARY_LABELS else "sts"
