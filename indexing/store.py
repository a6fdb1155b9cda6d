"""The index folder: FAISS files, deleted rows, metadata, and the opened index that people search in.

An index folder is either one build (`metadata.json` beside its files) or a set of versions: `versions/NAME/`
are builds, and the file `CURRENT` holds the name of the one that counts; it is replaced as a whole, so a
reader sees the old build or the new one, never half of one. Owns this layout and the guard against searching
with another encoder. Must not know how the index was built or where queries come from.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexing.arrays import Int64Array, as_row_ids, as_vectors, check_finite
from indexing.exact import normalize_rows
from indexing.faiss_library import FaissIndex, read_faiss_file, write_faiss_file
from indexing.hits import Hits
from indexing.index_metadata import METADATA_FILE as METADATA_FILE
from indexing.index_metadata import IndexMetadata as IndexMetadata
from indexing.index_metadata import Segment, read_metadata, refuse_repeated_inputs, write_metadata
from indexing.plan import SearchParams
from indexing.search import FullVectors, IndexSearcher, Selection
from indexing.vector_files import VectorFiles

INDEX_FILE = "index.faiss"
DELETED_FILE = "deleted.npy"
VERSIONS_FOLDER = "versions"
CURRENT_FILE = "CURRENT"


class VectorIndex:
    """An index opened from its folder; safe to search from several threads."""

    def __init__(
        self,
        index: FaissIndex | Sequence[FaissIndex],
        metadata: IndexMetadata,
        *,
        full_vectors: VectorFiles | None = None,
        deleted: Int64Array | None = None,
    ) -> None:
        self.metadata = metadata
        rows = None if full_vectors is None else self._comparable_rows(full_vectors)
        self._searcher = IndexSearcher(index, metric=metadata.metric, full_vectors=rows, deleted=deleted)

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
            vectors: float[nq, d] as the encoder gives them; cut to the index's own width and scaled to length
                1 here where the vectors of the index were, or where the metric is cosine.
            k: places wanted; places beyond the rows found hold id -1.
            params: other settings than the tuned ones of the metadata.
            selection: from `select`; None = all rows.

        Raises:
            ValueError: wrong d, NaN or infinity, k < 1.
        """
        queries = as_vectors(vectors, what="queries")
        if queries.shape[1] == self.metadata.encoder_dim:
            queries = queries[:, : self.metadata.dim]
        queries = as_vectors(queries, what="queries", dim=self.metadata.dim)
        check_finite(queries, row_ids=None, what="queries")
        if self.metadata.metric == "cosine" or self.metadata.normalized:
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


def save_index(
    folder: Path | str,
    index: FaissIndex,
    metadata: IndexMetadata,
    *,
    deleted: Int64Array | None = None,
) -> IndexMetadata:
    """Write the index folder; `metadata.json` comes last, so its presence means a complete index.

    Args:
        folder: local path, made if needed; an older index in it is replaced.
        index: complete; or several, shards or segments of one training; a path is a FAISS file that lies in
            the folder already.
        metadata: must agree with the index but for `segments` and `num_deleted`, which are filled in.
        deleted: row ids of the index that must not be found.

    Returns:
        The metadata as written.

    Raises:
        ValueError: metadata and index disagree on d or the number of rows, or an input is named twice.
        OSError: the folder cannot be written.
    """
    parts: list[FaissIndex] = list(index) if isinstance(index, list | tuple) else [index]
    gone = np.unique(deleted) if deleted is not None else np.empty(0, dtype=np.int64)
    refuse_repeated_inputs(metadata.inputs)
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    (root / METADATA_FILE).unlink(missing_ok=True)
    segments = []
    for number, part in enumerate(parts):
        loaded = read_faiss_file(part, mmap=True) if isinstance(part, Path) else part
        name = part.name if isinstance(part, Path) else segment_file(number, num_segments=len(parts))
        if int(loaded.d) != metadata.dim:
            raise ValueError(f"metadata says {metadata.dim} dimensions, {name} has {loaded.d}")
        if not isinstance(part, Path):
            write_faiss_file(loaded, root / f"{name}.part")
            (root / f"{name}.part").replace(root / name)
        size = (root / name).stat().st_size
        segments.append(Segment(file=name, num_rows=int(loaded.ntotal), size_bytes=size))
    num_rows = sum(segment.num_rows for segment in segments) - len(gone)
    if num_rows != metadata.num_vectors:
        raise ValueError(f"metadata says {metadata.num_vectors} vectors, the index holds {num_rows}")
    (root / DELETED_FILE).unlink(missing_ok=True)
    if len(gone):
        with (root / DELETED_FILE).open("wb") as stream:
            np.save(stream, gone, allow_pickle=False)
    complete = dataclasses.replace(metadata, segments=tuple(segments), num_deleted=len(gone))
    write_metadata(root, complete)
    return complete


def segment_file(number: int, *, num_segments: int) -> str:
    """The name of a FAISS file: `index.faiss` alone, numbered among several."""
    return INDEX_FILE if num_segments == 1 else f"index-{number:05d}.faiss"


def current_folder(folder: Path | str) -> Path:
    """Where the build lies that counts: below `versions/`, or the folder itself where there are none."""
    root = Path(folder)
    pointer = root / CURRENT_FILE
    if not pointer.exists():
        return root
    return root / VERSIONS_FOLDER / pointer.read_text(encoding="utf-8").strip()


def open_index(
    folder: Path | str, *, mmap: bool = True, full_vectors: VectorFiles | None = None
) -> VectorIndex:
    """Open an index folder for searching; of several versions the one that `CURRENT` names.

    Args:
        folder: local path.
        full_vectors: the vectors as embedded; candidates of a compressed index are scored again with them.
        mmap: leave codes and vectors on disk until a search touches them; opens in milliseconds, and the
            files must stay in place while the index is open. False reads everything into memory.

    Raises:
        FileNotFoundError: no complete index in this folder.
        ValueError: a damaged or truncated file, or metadata of another format.
    """
    root = current_folder(folder)
    metadata = read_metadata(root)
    parts = [_open_segment(root, segment, metadata, mmap=mmap) for segment in metadata.segments]
    deleted = np.load(root / DELETED_FILE, allow_pickle=False) if metadata.num_deleted else None
    if deleted is not None and len(deleted) != metadata.num_deleted:
        raise ValueError(f"{root / DELETED_FILE} is of another build; build the index again")
    return VectorIndex(parts, metadata, full_vectors=full_vectors, deleted=deleted)


def _open_segment(root: Path, segment: Segment, metadata: IndexMetadata, *, mmap: bool) -> FaissIndex:
    path = root / segment.file
    if path.exists() and path.stat().st_size != segment.size_bytes:
        raise ValueError(
            f"{path} has {path.stat().st_size} bytes, its metadata says {segment.size_bytes}: "
            "the file is truncated or from another build; build the index again"
        )
    index = read_faiss_file(path, mmap=mmap)
    if (int(index.d), int(index.ntotal)) != (metadata.dim, segment.num_rows):
        raise ValueError(
            f"{root}: {segment.file} and {METADATA_FILE} are of different builds; build the index again"
        )
    return index
