"""A system to compare: what it is, how it is named, its fingerprint, and its scorer where it runs.

Must not know tasks or reports.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

from indexing.bm25 import Tokenizer
from indexing.evaluation.scorers import BM25Scorer, HybridScorer, Scorer, VectorScorer
from indexing.evaluation.text_tasks import CorpusTask, PairTask, TextTask
from indexing.fusion import FusionConfig
from indexing.word_vectors import STOPWORDS, read_word_vectors
from pipelines.encoders import is_callable_name, load_encode
from pipelines.errors import InputError
from pipelines.manifest import stable_hash
from pipelines.storage import Location
from pipelines.system_config import ReadyKind
from tsdae_core.choices import PoolingMode

_ENCODERS = ("encoder", "hybrid")
# Kinds of tasks without a ranking: run files and fusion have nothing to say there.
_PAIRS = ("pairs", "sts", "twitterpara")
_RANKS_ONLY = ("run", "hybrid")


@dataclass(frozen=True, kw_only=True)
class ComparedSystem:
    """A row of the table.

    Attributes:
        kind: encoder (a folder, hub name or module:function), bm25, hybrid (such an encoder and BM25, fused),
            words (averaged word vectors, without stop words), words_idf, run (TREC's).
        source: the folder, file or hub name; "" for bm25.
        pooling: of an encoder that is a plain checkpoint; None takes what its folder says.
        fusion: of hybrid.
    """

    name: str
    kind: ReadyKind
    source: str = ""
    pooling: PoolingMode | None = None
    fusion: FusionConfig = field(default_factory=FusionConfig)

    def fingerprint(self) -> str:
        """Changes with the files of the system; a hub name and BM25 stand for themselves and their version.

        Raises:
            InputError: a file or folder that is not there.
        """
        found = self._files_fingerprint()
        if self.kind == "hybrid":
            found = stable_hash([found, version("bm25s"), asdict(self.fusion)])
        return found if self.pooling is None else stable_hash([found, self.pooling])

    def _files_fingerprint(self) -> str:
        if self.kind == "bm25":
            return stable_hash([self.kind, version("bm25s")])
        if self.kind in _ENCODERS and is_callable_name(self.source):
            return stable_hash([self.kind, self.source])
        place = Location.parse(self.source)
        if place.is_dir():
            found = place.files(recursive=True)
            digests = [
                (info.path.removeprefix(place.path), Location(place.filesystem, info.path).sha256())
                for info in found
                if "/." not in info.path and not info.path.endswith("/manifest.json")
            ]
            return stable_hash([self.kind, digests])
        if place.exists():
            return stable_hash([self.kind, place.sha256()])
        if self.kind in _ENCODERS and not self.source.startswith((".", "/", "~")):
            return stable_hash([self.kind, self.source])
        raise InputError(f"system '{self.name}': there is no file or folder '{self.source}'")

    def applies_to(self, kind: str) -> bool:
        """Whether the system can be run on tasks of this kind.

        A run file and the fusion of two rankings rank documents or candidates; they score no pairs.
        """
        return self.kind not in _RANKS_ONLY or kind not in _PAIRS

    def scorer(self, task: TextTask, *, threads: int = 1, device: str = "cpu") -> Scorer:
        """Loads the system, ready to score this task.

        Raises:
            InputError: an encoder that cannot be loaded. ValueError: word vectors that cannot be read.
        """
        if self.kind == "bm25":
            return BM25Scorer()
        if self.kind in ("words", "words_idf"):
            return self._word_scorer(task)
        import torch

        torch.set_num_threads(threads)
        if is_callable_name(self.source):
            dense = VectorScorer(load_encode(self.source))
        else:
            with _local(self.source) as source:
                dense = VectorScorer(load_encode(source, device=device, pooling=self.pooling))
        return HybridScorer(dense, BM25Scorer(), self.fusion) if self.kind == "hybrid" else dense

    def _word_scorer(self, task: TextTask) -> Scorer:
        texts = task_texts(task)
        words = {word for text in texts for word in Tokenizer().words_of(text)} - STOPWORDS
        with _local(self.source) as source:
            vectors = read_word_vectors(source, only=words)
        if self.kind == "words_idf":
            vectors = vectors.weighted_by_idf(texts)
        return VectorScorer(vectors.encode)


def task_texts(task: TextTask) -> list[str]:
    """Every text of a task: both sides of pairs, queries with candidates, queries and documents."""
    if isinstance(task, PairTask):
        return [text for pair in task.pairs for text in (pair.left, pair.right)]
    if isinstance(task, CorpusTask):
        return [text for part in task.parts for text in (*part.queries, *part.documents)]
    return [text for query in task.queries for text in (query.query, *query.texts)]


def unique_names(systems: Sequence[ComparedSystem]) -> None:
    """Refuses two systems of one name.

    Raises:
        InputError: names the name.
    """
    names = [system.name for system in systems]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two systems are called '{name}'; name them, as NAME=PATH")


@contextmanager
def _local(source: str) -> Iterator[str]:
    """A local path for a source that may lie on object storage; a hub name passes through."""
    place = Location.parse(source)
    if place.is_local:
        yield source if not place.exists() else place.path
    elif place.is_dir():
        with place.as_local_folder() as folder:
            yield str(folder)
    else:
        with tempfile.TemporaryDirectory(prefix="tsdae-system-") as folder:
            path = Path(folder) / place.name
            path.write_bytes(place.read_bytes())
            yield str(path)
