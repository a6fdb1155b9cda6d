"""Searching a finished run: text or vectors in, ranked documents out.

Owns the opened parts of a workspace (encoder, index, lexical index, documents) and the ways to combine them.
Knows nothing of command lines or HTTP.
"""

from __future__ import annotations

import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow.fs as pafs
from numpy.typing import NDArray

from indexing.arrays import BoolArray
from indexing.bm25 import BM25Searcher
from indexing.filters import parse_filter
from indexing.fusion import FusionConfig, fuse
from indexing.hits import NO_HIT, Hits
from indexing.index_metadata import IndexMetadata
from indexing.search import Selection
from indexing.store import VectorIndex, open_index
from indexing.vector_files import VectorFiles
from pipelines.collection import finished_manifest
from pipelines.documents import Documents
from pipelines.errors import InputError
from pipelines.manifest import Manifest
from pipelines.names import BM25_FOLDER, INDEX_FOLDER, LOOKUP_FOLDER, VECTORS_FOLDER
from pipelines.parquet import ROWS_PER_SHARD_BITS
from pipelines.readable import Readable, find_readable
from pipelines.rerank import Reranker, rerank_hits
from pipelines.storage import Location
from pipelines.unicode_text import refuse_lone_surrogates
from tsdae_core.encoder import SentenceEncoder

Mode: TypeAlias = Literal["dense", "bm25", "hybrid"]
MODES: tuple[Mode, ...] = get_args(Mode)
Queries: TypeAlias = Sequence[str] | NDArray[np.floating[Any]]

_BATCH_QUERIES = 256
# Filters whose rows are remembered; a service is asked the same few again and again.
_MAX_KEPT_FILTERS = 32
_DEFAULT_FUSION = FusionConfig()


@dataclass(frozen=True)
class Hit:
    """One ranked document.

    score: higher is nearer. Cosine or inner product (dense), BM25's sum (bm25), the fused value (hybrid), or
    what a re-ranker says.
    columns: the other columns of the collection.
    """

    rank: int
    doc_id: str
    score: float
    title: str | None
    text: str
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Chosen:
    """The rows that a filter lets through, in the forms that each index takes."""

    dense: Selection | None = None
    lexical: BoolArray | None = None


class Searcher:
    """The encoder, indexes and documents of one workspace, opened once and asked many times.

    Safe to use from several threads: encoding takes turns, everything else runs side by side.
    """

    def __init__(
        self,
        encoder: SentenceEncoder,
        index: VectorIndex,
        lexical: BM25Searcher,
        documents: Documents,
        *,
        info: Mapping[str, Any],
        kept: tempfile.TemporaryDirectory[str] | None = None,
    ):
        self.info = dict(info)
        self.documents = documents
        self._encoder, self._index, self._lexical = encoder, index, lexical
        self._filters: OrderedDict[str, _Chosen] = OrderedDict()
        self._encoding, self._filtering = threading.Lock(), threading.Lock()
        self._kept = kept  # files of a remote workspace, removed with this object

    @staticmethod
    def open(
        workspace: str | Location, *, encoder: tuple[Path, str] | None = None, device: str = "cpu"
    ) -> Searcher:
        """Opens a finished run by the path or URL of its workspace.

        Index, postings, documents and vectors are memory-mapped, so opening does not depend on their size;
        those of a remote workspace are copied here first.

        Args:
            workspace: where the run has worked.
            encoder: folder and fingerprint of another copy of the encoder, for instance from a registry.
            device: PyTorch's, for the encoder.

        Raises:
            InputError: there is no finished index, or no lookup beside it.
            ValueError: the index was built with another encoder than the one that is recorded or lies there.
        """
        place = workspace if isinstance(workspace, Location) else Location.parse(workspace)
        if not place.exists():
            raise InputError(
                f"there is no workspace '{workspace}'; name one with --workspace, or run `make quickstart`"
            )
        found = find_readable(place)
        while True:
            try:
                return _open_found(place, found, encoder, device)
            except (OSError, RuntimeError, ValueError):
                # Of two switches since it was found the second removes it: then another one is there.
                before, found = found, find_readable(place)
                if found == before:
                    raise

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors float32[n, d] of texts, in their order."""
        with self._encoding:
            return self._encoder.encode(list(texts))

    def search(
        self,
        queries: Queries,
        k: int,
        *,
        mode: Mode = "dense",
        filter: str | None = None,  # noqa: A002  # what everyone calls it
        fusion: FusionConfig = _DEFAULT_FUSION,
        reranker: Reranker | None = None,
        rerank_depth: int = 100,
    ) -> list[list[Hit]]:
        """The best k documents of every query, best first.

        Args:
            queries: texts, or vectors float[n, d] of this index's encoder (dense mode only).
            k: documents wanted.
            mode: dense (the index), bm25 (words), hybrid (both, fused).
            filter: condition on columns, such as `lang = en and year >= 2020` (see `indexing.filters`).
            fusion: how hybrid fuses.
            reranker: scores the best `rerank_depth` again, with the query's text beside theirs.
            rerank_depth: candidates for the re-ranker, at least k.

        Raises:
            InputError: an empty query, an unknown mode, vectors where text is needed, or neither of the two.
            ValueError: k < 1, a filter that cannot be read, vectors of another width.
        """
        depth = k if reranker is None else max(k, rerank_depth)
        hits = self.search_hits(queries, depth, mode=mode, filter=filter, fusion=fusion)
        if reranker is not None:
            hits = rerank_hits(hits, _texts_of(queries), self._texts, reranker).first(k)
        return self.as_documents(hits)

    def search_batch(
        self, queries: Iterable[str], k: int, *, batch_size: int = _BATCH_QUERIES, **options: Any
    ) -> Iterator[list[Hit]]:
        """`search` for any number of texts, read and answered in blocks: one list of hits for each, in order.

        Raises:
            InputError, ValueError: as `search`, when the block with the bad query is reached.
        """
        iterator = iter(_texts_of(queries) if isinstance(queries, str) else queries)
        while block := list(islice(iterator, batch_size)):
            yield from self.search(block, k, **options)

    def search_hits(
        self,
        queries: Queries,
        k: int,
        *,
        mode: Mode = "dense",
        filter: str | None = None,  # noqa: A002
        fusion: FusionConfig = _DEFAULT_FUSION,
    ) -> Hits:
        """Like `search`, but row ids and scores only; no document is read."""
        if mode not in MODES:
            raise InputError(f"unknown mode '{mode}'; it may be {', '.join(MODES)}")
        texts = None if isinstance(queries, np.ndarray) else _texts_of(queries)
        if texts is not None and any(not text.strip() for text in texts):
            raise InputError("the query is empty")
        refuse_lone_surrogates(texts or [], what="the query")
        refuse_lone_surrogates([] if filter is None else [filter], what="the filter")
        chosen = _Chosen() if filter is None else self._chosen(filter)
        if mode == "dense":
            vectors = queries if texts is None else self.encode(texts)
            return self._index.search(vectors, k, selection=chosen.dense)
        words = _texts_of(queries)
        if mode == "bm25":
            return self._lexical.retrieve(words, k, selection=chosen.lexical)
        depth = max(k, fusion.depth)
        dense = self._index.search(self.encode(words), depth, selection=chosen.dense)
        lexical = self._lexical.retrieve(words, depth, selection=chosen.lexical)
        return fuse(dense, lexical, k, fusion)

    def like(self, doc_id: str, k: int, *, filter: str | None = None) -> list[Hit]:  # noqa: A002
        """The k documents nearest to one of the collection, itself left out.

        Raises:
            InputError: there is no such document.
        """
        document = self.document(doc_id)
        hits = self.search([document.text], k + 1, filter=filter)[0]
        others = [hit for hit in hits if hit.doc_id != doc_id][:k]
        return [Hit(i, *_fields(hit)) for i, hit in enumerate(others, 1)]

    def document(self, doc_id: str) -> Hit:
        """One document by its id, as a hit of rank 0 and score 0.

        Raises:
            InputError: there is no such document.
        """
        refuse_lone_surrogates([doc_id], what="the document id")
        (row_id,) = self.documents.row_ids_of([doc_id])
        if row_id == NO_HIT:
            raise InputError(f"there is no document '{doc_id}'")
        (row,) = self.documents.rows(np.array([row_id]))
        return _hit(0, 0.0, row)

    def as_documents(self, hits: Hits) -> list[list[Hit]]:
        """The documents of hits, query by query."""
        results = []
        for ids, scores in zip(hits.ids, hits.scores, strict=True):
            found = ids != NO_HIT
            rows = self.documents.rows(ids[found])
            results.append(
                [
                    _hit(rank, float(score), row)
                    for rank, (row, score) in enumerate(zip(rows, scores[found], strict=True), 1)
                ]
            )
        return results

    def _texts(self, row_ids: NDArray[np.int64]) -> list[str]:
        return [str(row["text"] or "") for row in self.documents.rows(row_ids)]

    def _chosen(self, text: str) -> _Chosen:
        with self._filtering:
            if text in self._filters:
                self._filters.move_to_end(text)
                return self._filters[text]
        row_ids = self.documents.matching(parse_filter(text))
        chosen = _Chosen(self._index.select(row_ids), self._lexical.select(row_ids))
        with self._filtering:
            self._filters[text] = chosen
            while len(self._filters) > _MAX_KEPT_FILTERS:
                self._filters.popitem(last=False)
        return chosen


def _open_found(place: Location, found: Readable, encoder: tuple[Path, str] | None, device: str) -> Searcher:
    """The searcher of those versions of index and lookup; files of a remote workspace are copied first."""
    kept = None if place.is_local else tempfile.TemporaryDirectory(prefix="tsdae-search-")
    lookup = _local(found.lookup, LOOKUP_FOLDER, kept)
    files = None
    if found.lookup_manifest.counts["vectors"]:
        files = VectorFiles.open(lookup / VECTORS_FOLDER, shard_bits=ROWS_PER_SHARD_BITS)
    index = open_index(_local(found.index, INDEX_FOLDER, kept), full_vectors=files)
    if encoder is None:
        encoder_manifest = finished_manifest(place / "encoder", command="train")
        folder = _local(place / "encoder", "encoder", kept)
        encoder = folder, str(encoder_manifest.facts["encoder_fingerprint"])
    index.check_encoder(encoder[1])
    loaded = SentenceEncoder.load(encoder[0], device=device)
    # What was recorded may not be what lies there: files can be replaced.
    index.check_encoder(loaded.fingerprint())
    return Searcher(
        loaded,
        index,
        BM25Searcher.load(lookup / BM25_FOLDER, mmap=True),
        Documents.open(lookup),
        info={"workspace": str(place)} | _about(index.metadata, found.index_manifest),
        kept=kept,
    )


def _local(place: Location, name: str, kept: tempfile.TemporaryDirectory[str] | None) -> Path:
    """A folder as a local one: itself, or a copy called `name` that lives as long as `kept`."""
    if kept is None:
        return place.local_path
    target = Path(kept.name) / name
    target.mkdir()
    pafs.copy_files(place.path, str(target), place.filesystem, pafs.LocalFileSystem())
    return target


def _about(metadata: IndexMetadata, manifest: Manifest) -> dict[str, Any]:
    """What is live, for people and for the service."""
    version = manifest.facts.get("version")
    return {
        "encoder": metadata.encoder_fingerprint,
        "index": manifest.digest,
        "documents": metadata.num_vectors,
        "dim": metadata.dim,
        "metric": metadata.metric,
        "factory": metadata.factory,
        "index_version": version,
        "recall_at_10": metadata.recall_at_10,
        "recall_at_10_interval": metadata.recall_at_10_interval,
        "recall_version": metadata.recall_version or version,
        "recall_num_changed": metadata.recall_num_changed,
        "recall_is_stale": metadata.recall_is_stale,
        "target_recall_at_10": metadata.target_recall_at_10,
        "misses_target": metadata.misses_target,
    }


def _texts_of(queries: Queries) -> list[str]:
    if isinstance(queries, np.ndarray):
        raise InputError("this needs the query's text: a vector can only be searched in dense mode")
    if isinstance(queries, str):  # a sequence of texts, too: its characters
        raise InputError(f"expected a list of queries, got one text; give [{queries[:80]!a}]")
    texts = list(queries)
    odd = next((type(text).__name__ for text in texts if not isinstance(text, str)), None)
    if odd is not None:
        raise InputError(f"expected texts, or vectors as a numpy array float[n, d], got a list of {odd}")
    return texts


def _hit(rank: int, score: float, row: Mapping[str, Any]) -> Hit:
    others = {key: value for key, value in row.items() if key not in ("doc_id", "title", "text")}
    return Hit(rank, row["doc_id"] or "", score, row["title"], row["text"] or "", others)


def _fields(hit: Hit) -> tuple[str, float, str | None, str, Mapping[str, Any]]:
    return hit.doc_id, hit.score, hit.title, hit.text, hit.columns
