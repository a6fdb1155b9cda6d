"""Where a task comes from, as a value that travels to the worker which reads it.

Owns how a task is named on the command line and in a configuration, and its fingerprint. Must not know
systems.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.fs

from indexing.evaluation.readers import TASK_KINDS, detect_kind, read_task
from indexing.evaluation.tasks import RetrievalTask, read_beir_task
from indexing.evaluation.text_tasks import CorpusPart, CorpusTask, TextTask
from pipelines.collection import finished_manifest, iterate_shards
from pipelines.errors import InputError, nearest
from pipelines.manifest import stable_hash
from pipelines.storage import Location
from pipelines.systems import measures_for

COLLECTION_KIND = "retrieval"


@dataclass(frozen=True, kw_only=True)
class TaskSource:
    """A task that is read where it is needed.

    Attributes:
        name: shown in reports; "" takes the data's own.
        kind: one of `readers.TASK_KINDS`, or `retrieval`: judged over `documents`, a prepared collection.
        split, qrels, top_k: as in `readers.read_task`.
    """

    name: str
    kind: str
    place: Location
    split: str = "test"
    qrels: str | None = None
    top_k: int = 100
    documents: Location | None = None

    def load(self) -> TextTask:
        """Reads the task with all its texts.

        Raises:
            InputError: a file is missing. ValueError: a malformed one.
        """
        try:
            if self.documents is not None:
                return _over_collection(self.load_queries(), self.documents, self.top_k)
            return read_task(
                self.place.filesystem,
                self.place.path,
                kind=self.kind,
                split=self.split,
                name=self.name or None,
                top_k=self.top_k,
                qrels=self.qrels,
            )
        except FileNotFoundError as error:
            raise InputError(f"task '{self.title}': {error}") from error

    def load_queries(self) -> RetrievalTask:
        """Queries and judgements of a task over a collection.

        Raises:
            InputError: a file is missing. ValueError: a malformed one.
        """
        try:
            return read_beir_task(
                self.place.filesystem,
                self.place.path,
                split=self.split,
                name=self.name or None,
                qrels_file=self.qrels,
            )
        except FileNotFoundError as error:
            raise InputError(f"task '{self.title}': {error}") from error

    @property
    def title(self) -> str:
        """The name, or the last part of the path."""
        return self.name or self.place.name

    def fingerprint(self) -> str:
        """Changes with the bytes of the task's files and with how they are read.

        Raises:
            InputError: there is no such file or folder.
        """
        found = self.place.filesystem.get_file_info(self.place.path)
        if found.type == pyarrow.fs.FileType.NotFound:
            raise InputError(f"task '{self.title}': there is no file or folder '{self.place}'")
        files = [found] if found.is_file else self.place.files(recursive=True)
        digests = [
            (
                str(info.path).removeprefix(self.place.path),
                Location(self.place.filesystem, info.path).sha256(),
            )
            for info in files
        ]
        reading: list[object] = [self.kind, self.split, self.qrels, self.top_k]
        if self.documents is not None:
            reading.append(finished_manifest(self.documents, command="prepare").digest)
        return stable_hash([digests, reading])


def parse_task(text: str, *, split: str, top_k: int) -> TaskSource:
    """A task named on the command line: PATH, KIND:PATH, or either with NAME= before it.

    Raises:
        InputError: nothing there, or nothing that is known.
    """
    name, separator, rest = text.partition("=")
    if not separator or "/" in name or ":" in name:
        name, rest = "", text
    kind, _, path = rest.partition(":")
    if kind not in TASK_KINDS:
        if "/" not in kind and "." not in kind and path and not path.startswith("//"):
            raise InputError(
                f"unknown kind of task '{kind}'; known: {', '.join(TASK_KINDS)}.{nearest(kind, TASK_KINDS)}"
            )
        kind, path = "", rest
    place = Location.parse(path)
    try:
        kind = kind or detect_kind(place.filesystem, place.path)
    except (FileNotFoundError, ValueError) as error:
        raise InputError(str(error)) from error
    return TaskSource(name=name or default_name(place), kind=kind, place=place, split=split, top_k=top_k)


def default_name(place: Location) -> str:
    """The last part of a path without its ending."""
    base = place.name.removesuffix(".gz")
    return base.rpartition(".")[0] or base


def _over_collection(task: RetrievalTask, documents: Location, top_k: int) -> CorpusTask:
    """A task over a prepared collection, with the collection's texts read into memory."""
    doc_ids: list[str] = []
    texts: list[str] = []
    for table in iterate_shards(
        documents, finished_manifest(documents, command="prepare"), ["doc_id", "text"]
    ):
        doc_ids += table.column("doc_id").to_pylist()
        texts += table.column("text").to_pylist()
    missing = task.judged_doc_ids() - set(doc_ids)
    part = CorpusPart(
        query_ids=tuple(task.query_ids),
        queries=tuple(task.queries),
        doc_ids=tuple(doc_ids),
        documents=tuple(texts),
        qrels=task.qrels,
    )
    return CorpusTask(
        name=task.name,
        protocol="beir",
        parts=(part,),
        measures=tuple(measure.name for measure in measures_for(top_k)),
        top_k=top_k,
        counts={
            "skipped_queries": task.num_skipped_queries,
            "unknown_queries": task.num_unknown_queries,
            "unknown_documents": len(missing),
        },
    )
