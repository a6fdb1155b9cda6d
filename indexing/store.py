"""The index folder: `index.faiss` and `metadata.json`, and the opened index that people search in.

Owns the layout of the folder, the metadata and the guard against searching with another encoder. Must not
know how the index was built or where queries come from.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from indexing.arrays import as_row_ids, as_vectors, check_finite
from indexing.exact import normalize_rows
from indexing.faiss_library import FaissIndex, read_faiss_file, write_faiss_file
from indexing.hits import Hits
from indexing.plan import Metric, SearchParams
from indexing.search import FullVectors, IndexSearcher, Selection
from indexing.vector_files import VectorFiles

INDEX_FILE = "index.faiss"
METADATA_FILE = "metadata.json"
FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class IndexMetadata:
    """What one must know to search the index rightly.

    Attributes:
        factory: FAISS factory string.
        metric: cosine or inner_product.
        dim: of every vector.
        num_vectors: rows.
        search_params: settings chosen for the recall target.
        recall_at_10: measured against exact search with these settings, in [0, 1]; None = not measured.
        target_recall_at_10: what was asked for.
        encoder_fingerprint: of the encoder that made the vectors; queries must come from the same one.
        documents_digest: of the documents that were indexed.
    """

    factory: str
    metric: Metric
    dim: int
    num_vectors: int
    search_params: SearchParams
    recall_at_10: float | None
    target_recall_at_10: float
    encoder_fingerprint: str
    documents_digest: str


class VectorIndex:
    """An index opened from its folder; safe to search from several threads."""

    def __init__(
        self, index: FaissIndex, metadata: IndexMetadata, *, full_vectors: VectorFiles | None = None
    ) -> None:
        self.metadata = metadata
        rows = None if full_vectors is None else self._comparable_rows(full_vectors)
        self._searcher = IndexSearcher(index, metric=metadata.metric, full_vectors=rows)

    @property
    def keeps_vectors(self) -> bool:
        """Whether the index itself holds uncompressed vectors, so that scores are exact without files."""
        return self._searcher.keeps_vectors

    def select(self, row_ids: npt.ArrayLike) -> Selection:
        """The rows that a search may find, for `search`; ids that are not in the index are left out.

        Raises:
            ValueError: not ids.
        """
        return self._searcher.select(as_row_ids(row_ids, what="selection"))

    def search(
        self,
        vectors: npt.ArrayLike,
        k: int,
        *,
        params: SearchParams | None = None,
        selection: Selection | None = None,
    ) -> Hits:
        """The best k rows for each query, ordered by score, then id.

        Args:
            vectors: float[nq, d]; normalised here when the metric is cosine.
            k: places wanted; places beyond the rows found hold id -1.
            params: other settings than the tuned ones of the metadata.
            selection: from `select`; None = all rows.

        Raises:
            ValueError: wrong d, NaN or infinity, k < 1.
        """
        queries = as_vectors(vectors, what="queries", dim=self.metadata.dim)
        check_finite(queries, row_ids=None, what="queries")
        if self.metadata.metric == "cosine":
            queries = normalize_rows(queries)
        return self._searcher.search(
            queries, k, params=params or self.metadata.search_params, selection=selection
        )

    def check_encoder(self, fingerprint: str) -> None:
        """Refuse queries of another encoder, whose scores would be meaningless.

        Raises:
            ValueError: both fingerprints, and what to do.
        """
        if fingerprint != self.metadata.encoder_fingerprint:
            raise ValueError(
                "this index was built with another encoder: "
                f"index has {self.metadata.encoder_fingerprint}, the queries come from {fingerprint}; "
                "search with the encoder that built it, or embed and index the corpus again with this one"
            )

    def _comparable_rows(self, files: VectorFiles) -> FullVectors:
        if files.dim != self.metadata.dim:
            raise ValueError(f"the vector files have {files.dim} dimensions, the index {self.metadata.dim}")
        if self.metadata.metric != "cosine":
            return files.rows
        return lambda row_ids: normalize_rows(files.rows(row_ids))


def save_index(folder: Path | str, index: FaissIndex, metadata: IndexMetadata) -> None:
    """Write the index folder; `metadata.json` comes last, so its presence means a complete index.

    Args:
        folder: local path, made if needed; an older index in it is replaced.
        index: complete.
        metadata: must agree with the index. Written with sorted keys: equal input, equal bytes.

    Raises:
        ValueError: metadata and index disagree on d or the number of rows.
        OSError: the folder cannot be written.
    """
    facts = (metadata.dim, metadata.num_vectors)
    if (int(index.d), int(index.ntotal)) != facts:
        raise ValueError(
            f"metadata says {metadata.num_vectors} vectors of {metadata.dim} dimensions, "
            f"the index holds {index.ntotal} of {index.d}"
        )
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    (root / METADATA_FILE).unlink(missing_ok=True)
    temporary = root / f"{INDEX_FILE}.part"
    write_faiss_file(index, temporary)
    temporary.replace(root / INDEX_FILE)
    fields = dataclasses.asdict(metadata)
    fields["format_version"] = FORMAT_VERSION
    fields["index_size_bytes"] = (root / INDEX_FILE).stat().st_size
    temporary = root / f"{METADATA_FILE}.part"
    temporary.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    temporary.replace(root / METADATA_FILE)


def open_index(
    folder: Path | str, *, mmap: bool = True, full_vectors: VectorFiles | None = None
) -> VectorIndex:
    """Open an index folder for searching.

    Args:
        folder: local path.
        full_vectors: the vectors as embedded; candidates of a compressed index are scored again with them.
        mmap: leave codes and vectors on disk until a search touches them; opens in milliseconds, and the
            files must stay in place while the index is open. False reads everything into memory.

    Raises:
        FileNotFoundError: no complete index in this folder.
        ValueError: a damaged or truncated file, or metadata of another format.
    """
    root = Path(folder)
    metadata, size_bytes = _read_metadata(root)
    path = root / INDEX_FILE
    if path.exists() and path.stat().st_size != size_bytes:
        raise ValueError(
            f"{path} has {path.stat().st_size} bytes, its metadata says {size_bytes}: "
            "the file is truncated or from another build; build the index again"
        )
    index = read_faiss_file(path, mmap=mmap)
    if (int(index.d), int(index.ntotal)) != (metadata.dim, metadata.num_vectors):
        raise ValueError(
            f"{root}: {INDEX_FILE} and {METADATA_FILE} are of different builds; build the index again"
        )
    return VectorIndex(index, metadata, full_vectors=full_vectors)


def _read_metadata(root: Path) -> tuple[IndexMetadata, int]:
    path = root / METADATA_FILE
    if not path.exists():
        raise FileNotFoundError(f"no complete index in {root} ({METADATA_FILE} is missing); build it first")
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version, size_bytes = fields.pop("format_version"), fields.pop("index_size_bytes")
        if version != FORMAT_VERSION:
            raise ValueError(f"{path}: format version {version}, this program reads {FORMAT_VERSION}")
        search_params = SearchParams(**fields.pop("search_params"))
        return IndexMetadata(search_params=search_params, **fields), int(size_bytes)
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path}: not the metadata of an index ({error!r}); build the index again"
        ) from error
