"""Searching a finished run: text in, ranked documents out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from indexing.store import VectorIndex, open_index
from pipelines.collection import finished_manifest, read_rows
from pipelines.errors import InputError
from pipelines.index_stage import INDEX_FOLDER
from pipelines.storage import Location
from tsdae_core.encoder import SentenceEncoder


@dataclass(frozen=True)
class Hit:
    """One ranked document; the score is the cosine or inner product, higher is nearer."""

    rank: int
    doc_id: str
    score: float
    title: str | None
    text: str


class Searcher:
    """The encoder, index and documents of one workspace, opened once and asked many times."""

    def __init__(self, encoder: SentenceEncoder, index: VectorIndex, documents: Location):
        self._encoder, self._index, self._documents = encoder, index, documents

    @staticmethod
    def open(workspace: str) -> Searcher:
        """Opens a finished run by the path or URL of its workspace.

        Raises:
            InputError: there is no finished index.
            ValueError: the index was built with another encoder.
        """
        place = Location.parse(workspace)
        if not place.exists():
            raise InputError(
                f"there is no workspace '{workspace}'; name one with --workspace, or run `make quickstart`"
            )
        manifest = finished_manifest(place / INDEX_FOLDER, command="index")
        encoder_manifest = finished_manifest(place / "encoder", command="train")
        with (place / "encoder").as_local_folder() as folder:
            encoder = SentenceEncoder.load(str(folder))
        with (place / INDEX_FOLDER).as_local_folder() as folder:
            index = open_index(folder, mmap=place.is_local)
        index.check_encoder(str(encoder_manifest.facts["encoder_fingerprint"]))
        return Searcher(encoder, index, place / str(manifest.facts["documents"]))

    def search(self, texts: Sequence[str], *, k: int) -> list[list[Hit]]:
        """The best k documents of every text, best first.

        Raises:
            InputError: an empty query.
        """
        if any(not text.strip() for text in texts):
            raise InputError("the query is empty")
        hits = self._index.search(self._encoder.encode(list(texts)), k)
        results = []
        for ids, scores in zip(hits.ids, hits.scores, strict=True):
            found = ids >= 0
            rows = read_rows(self._documents, ids[found], ["doc_id", "title", "text"])
            results.append(
                [
                    Hit(rank, row["doc_id"] or "", float(score), row["title"], row["text"] or "")
                    for rank, (row, score) in enumerate(zip(rows, scores[found], strict=True), 1)
                ]
            )
        return results
