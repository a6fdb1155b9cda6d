"""The quickstart's corpus: documentation of the installed Python packages, as sentences and a search task.

Owns the output folder and the spread of the work over processes. The task is natural: the first sentence of
a docstring should find the rest of the same docstring. The text belongs to the packages' authors under their
licences (listed in SOURCES.json); it is collected on the user's machine and stays there.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import platform
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.docs_sentences import sentence_key
from pipelines.docs_sources import (
    DocEntry,
    InstalledPackage,
    ParsedFiles,
    SourceFile,
    description_entries,
    installed_packages,
    parse_files,
)
from pipelines.docs_task import (
    Document,
    Query,
    Sentence,
    choose_documents,
    choose_queries,
    choose_sentences,
    keep_some_documents,
)
from pipelines.errors import InputError
from pipelines.manifest import Manifest, ShardRecord, StageFolder, read_manifest
from pipelines.storage import Location

STAGE = "docs_corpus"
_FORMAT_VERSION = 1
_ROWS_PER_FILE = 25_000
_BATCH_BYTES = 2_000_000
_OTHER_FILES = ("task/queries.jsonl", "task/qrels.tsv", "SOURCES.json")
_NOTE = (
    "Text of this corpus comes from the documentation inside the packages below, each under its own licence. "
    "It was collected from this machine's installed files and is not part of any download."
)

Progress = Callable[[int, int], None]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class DocsCorpusSummary:
    """What lies in the output folder. `already_done`: it was there before and nothing was written."""

    output: Path
    already_done: bool
    num_packages: int
    num_files: int
    num_unparsable_files: int
    num_docstrings: int
    num_sentences: int
    num_documents: int
    num_queries: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class _Corpus:
    """All that is written, in order."""

    sentences: list[Sentence]
    documents: list[Document]
    queries: list[Query]


def write_docs_corpus(
    output: Path,
    *,
    packages: Sequence[str] | None = None,
    num_queries: int = 1000,
    seed: int = 0,
    max_documents: int | None = None,
    on_progress: Progress | None = None,
) -> DocsCorpusSummary:
    """Writes the documentation of installed packages (all, or `packages`) as a corpus with a search task.

    Source files are parsed, never imported. Below `output`:
    `sentences/part-*.parquet` (id, text, source), `documents/part-*.parquet` (id, title, text),
    `task/queries.jsonl`, `task/qrels.tsv`, `SOURCES.json` (package, version, licence, counts) and, last,
    `manifest.json`. No query sentence occurs in `sentences/`, in any spelling of case or end punctuation.

    The same package versions, arguments and Python give the same bytes; when they are there already nothing
    is done. The folder appears whole or not at all. `on_progress(files_done, files_total)` is called in this
    process. Scripts that call this need the usual `if __name__ == "__main__"` guard: workers are spawned.

    Raises InputError (a ValueError) when `output` holds anything that this function did not write, when a
    package is not installed, or when the packages have no usable documentation.
    """
    output = Path(output).absolute()
    if num_queries < 1 or (max_documents is not None and max_documents < num_queries):
        raise InputError(
            f"got {num_queries} queries and max_documents={max_documents}; expected 1 <= queries <= documents"
        )
    _refuse_foreign(output)
    installed = installed_packages(packages)
    config = {
        "format": _FORMAT_VERSION,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "num_queries": num_queries,
        "seed": seed,
        "max_documents": max_documents,
    }
    inputs = {package.name: package.version for package in installed}
    done = StageFolder(Location.parse(output), stage=STAGE, config=config, inputs=inputs).finished()
    if done is not None:
        logger.info("%s holds the documentation of these %d packages already", output, len(installed))
        return _summary(output, done, already_done=True)
    parsed = _parse_all(installed, on_progress=on_progress)
    corpus = _choose(parsed.entries, num_queries=num_queries, seed=seed, max_documents=max_documents)
    with _whole_or_absent(output) as folder:
        counts = _counts(installed, parsed, corpus)
        stage = StageFolder(Location.parse(folder), stage=STAGE, config=config, inputs=inputs)
        shards = _write_tables(folder, corpus)
        _write_task(folder / "task", corpus.queries)
        Location.parse(folder / "SOURCES.json").write_json(_sources(installed, parsed, corpus))
        digests = {name: Location.parse(folder / name).sha256() for name in _OTHER_FILES}
        manifest = stage.finish(counts=counts, shards=shards, files=digests)
    return _summary(output, manifest, already_done=False)


def _parse_all(installed: Sequence[InstalledPackage], *, on_progress: Progress | None) -> ParsedFiles:
    """Every package's files parsed, on all CPUs when that pays; entries in package and file order."""
    files = [file for package in installed for file in package.files]
    batches = list(_batches(files))
    num_workers = min(_num_cpus(), len(batches))
    results: list[ParsedFiles] = []
    num_done = 0
    with ExitStack() as stack:
        if num_workers > 1:
            context = multiprocessing.get_context("spawn")
            pool = stack.enter_context(ProcessPoolExecutor(num_workers, mp_context=context))
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)
            parsed: Iterator[ParsedFiles] = pool.map(parse_files, batches)
        else:
            parsed = map(parse_files, batches)
        for batch, result in zip(batches, parsed, strict=True):
            results.append(result)
            num_done += len(batch)
            if on_progress is not None:
                on_progress(num_done, len(files))
    described = [entry for package in installed for entry in description_entries(package)]
    return ParsedFiles(
        entries=(*described, *(entry for result in results for entry in result.entries)),
        num_docstrings=sum(result.num_docstrings for result in results),
        unparsable=tuple(file for result in results for file in result.unparsable),
    )


def _batches(files: Sequence[SourceFile]) -> Iterator[list[SourceFile]]:
    batch: list[SourceFile] = []
    for file in files:
        batch.append(file)
        if sum(member.num_bytes for member in batch) >= _BATCH_BYTES:
            yield batch
            batch = []
    if batch:
        yield batch


def _num_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _choose(
    entries: Sequence[DocEntry], *, num_queries: int, seed: int, max_documents: int | None
) -> _Corpus:
    documents = choose_documents(entries)
    queries = choose_queries(documents, entries, num_queries=num_queries, seed=seed)
    if not queries:
        raise InputError("the chosen packages have no docstring that makes a query; choose more packages")
    if len(queries) < num_queries:
        logger.warning(
            "the chosen packages give %d queries, fewer than the %d asked for", len(queries), num_queries
        )
    if max_documents is not None:
        documents = keep_some_documents(documents, queries, max_documents=max_documents, seed=seed)
    held_out = {sentence_key(query.text) for query in queries}
    return _Corpus(
        sentences=choose_sentences(entries, held_out=held_out), documents=documents, queries=queries
    )


def _counts(installed: Sequence[InstalledPackage], parsed: ParsedFiles, corpus: _Corpus) -> dict[str, int]:
    return {
        "packages": len(installed),
        "files": sum(len(package.files) for package in installed),
        "unparsable_files": len(parsed.unparsable),
        "docstrings": parsed.num_docstrings,
        "sentences": len(corpus.sentences),
        "documents": len(corpus.documents),
        "queries": len(corpus.queries),
    }


def _sources(
    installed: Sequence[InstalledPackage], parsed: ParsedFiles, corpus: _Corpus
) -> dict[str, object]:
    """Where the text is from, for a reader who asks by what right it is here."""
    sentences = Counter(sentence.package for sentence in corpus.sentences)
    documents = Counter(document.package for document in corpus.documents)
    unparsable = Counter(file.package for file in parsed.unparsable)
    packages = [
        {
            "package": package.name,
            "version": package.version,
            "license": package.license,
            "num_files": len(package.files),
            "num_unparsable_files": unparsable[package.name],
            "num_sentences": sentences[package.name],
            "num_documents": documents[package.name],
        }
        for package in installed
    ]
    return {"note": _NOTE, "packages": packages}


def _write_tables(folder: Path, corpus: _Corpus) -> list[ShardRecord]:
    sentences = [(row.id, row.text, row.source) for row in corpus.sentences]
    documents = [(row.id, row.title, row.text) for row in corpus.documents]
    return [
        *_write_parquet(folder, "sentences", columns=("id", "text", "source"), rows=sentences),
        *_write_parquet(folder, "documents", columns=("id", "title", "text"), rows=documents),
    ]


def _write_parquet(
    folder: Path, name: str, *, columns: Sequence[str], rows: Sequence[tuple[str, ...]]
) -> Iterator[ShardRecord]:
    """Yields a record per file of at most 25,000 rows; at least one file."""
    (folder / name).mkdir()
    schema = pa.schema([(column, pa.string()) for column in columns])
    for number, start in enumerate(range(0, max(len(rows), 1), _ROWS_PER_FILE)):
        part = rows[start : start + _ROWS_PER_FILE]
        arrays = [[row[index] for row in part] for index in range(len(columns))]
        file = f"{name}/part-{number:03d}.parquet"
        pq.write_table(pa.table(arrays, schema=schema), folder / file)
        yield ShardRecord(name=file, num_rows=len(part), digest=Location.parse(folder / file).sha256())


def _write_task(folder: Path, queries: Sequence[Query]) -> None:
    folder.mkdir()
    with (folder / "queries.jsonl").open("w", encoding="utf-8", newline="\n") as file:
        for query in queries:
            file.write(json.dumps({"_id": query.id, "text": query.text}, ensure_ascii=False) + "\n")
    with (folder / "qrels.tsv").open("w", encoding="utf-8", newline="\n") as file:
        file.write("query-id\tcorpus-id\tscore\n")
        for query in queries:
            file.write(f"{query.id}\t{query.document_id}\t1\n")


def _refuse_foreign(output: Path) -> None:
    """Raises InputError when something is in the way that this stage did not write."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    try:
        manifest = read_manifest(Location.parse(output)) if output.is_dir() else None
    except (ValueError, TypeError, KeyError):
        manifest = None
    if manifest is None or manifest.stage != STAGE:
        raise InputError(
            f"{output} exists and is not a documentation corpus; choose another folder or remove it"
        )


@contextmanager
def _whole_or_absent(output: Path) -> Iterator[Path]:
    """Yields an empty folder beside `output` that takes its place on success and vanishes on any error.

    What a killed run left behind is removed by the next one.
    """
    partial = output.with_name(f".{output.name}.partial")
    previous = output.with_name(f".{output.name}.previous")
    for leftover in (partial, previous):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        if output.exists():
            output.rename(previous)
        partial.rename(output)
    finally:
        if previous.exists() and not output.exists():
            previous.rename(output)
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(previous, ignore_errors=True)


def _summary(output: Path, manifest: Manifest, *, already_done: bool) -> DocsCorpusSummary:
    counts = manifest.counts
    return DocsCorpusSummary(
        output=output,
        already_done=already_done,
        num_packages=counts["packages"],
        num_files=counts["files"],
        num_unparsable_files=counts["unparsable_files"],
        num_docstrings=counts["docstrings"],
        num_sentences=counts["sentences"],
        num_documents=counts["documents"],
        num_queries=counts["queries"],
        digest=manifest.digest,
    )
