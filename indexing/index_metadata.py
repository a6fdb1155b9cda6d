"""What one must know to search an index rightly, and its file.

Owns the fields, `metadata.json` and its errors. Must not know FAISS or how an index is built.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexing.plan import Metric, SearchParams

METADATA_FILE = "metadata.json"
FORMAT_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class IndexInput:
    """A file of vectors that went into an index: name, sha256 of its bytes, rows."""

    name: str
    digest: str
    num_rows: int


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A FAISS file of the index folder: its name, rows (deleted ones included) and size."""

    file: str
    num_rows: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class IndexMetadata:
    """What one must know to search the index rightly.

    Attributes:
        factory: FAISS factory string.
        metric: cosine or inner_product.
        dim: of every vector in the index.
        num_vectors: rows that can be found.
        search_params: settings chosen for the recall target.
        recall_at_10: measured against exact search with these settings, in [0, 1], on rows that did not
            choose them; None = not measured.
        recall_at_10_interval: of 95 % (see `indexing.recall`).
        recall_at_100, recall_at_100_interval: likewise, for a hundred hits.
        recall_num_queries: rows on which recall was measured.
        recall_version: name of the version of the index on which recall was measured; None = this one.
        recall_num_changed: rows added or deleted since recall was measured.
        target_recall_at_10: what was asked for.
        encoder_fingerprint: of the encoder that made the vectors; queries must come from the same one.
        documents_digest: of the documents that were indexed.
        encoder_dim: what the encoder gives, where `dim` is its first part only (matryoshka); None = `dim`.
        normalized: vectors were scaled to length 1 when embedded, so queries are, whatever the metric.
        inputs: the files of vectors in the index, each once.
        segments: the FAISS files, searched as one; set by `store.save_index`.
        num_deleted: rows of the segments that are not found any more.
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
    recall_at_10_interval: tuple[float, float] | None = None
    recall_at_100: float | None = None
    recall_at_100_interval: tuple[float, float] | None = None
    recall_num_queries: int | None = None
    recall_version: str | None = None
    recall_num_changed: int = 0
    encoder_dim: int | None = None
    normalized: bool = False
    inputs: tuple[IndexInput, ...] = ()
    segments: tuple[Segment, ...] = ()
    num_deleted: int = 0

    @property
    def misses_target(self) -> bool:
        """Whether the measured recall is below what was asked for, which `allow_lower_recall` allows."""
        return self.recall_at_10 is not None and self.recall_at_10 < self.target_recall_at_10

    @property
    def recall_is_stale(self) -> bool:
        """Whether rows were added or deleted since recall was measured."""
        return self.recall_at_10 is not None and self.recall_num_changed > 0

    @property
    def size_bytes(self) -> int:
        """Of all FAISS files together."""
        return sum(segment.size_bytes for segment in self.segments)


def refuse_repeated_inputs(inputs: tuple[IndexInput, ...]) -> None:
    """Refuse an index that holds the same file of vectors twice.

    Raises:
        ValueError: the two names of the first such file.
    """
    seen: dict[str, str] = {}
    for one in inputs:
        if one.num_rows and one.digest in seen:
            raise ValueError(
                f"'{one.name}' is '{seen[one.digest]}' again (sha256 {one.digest[:12]}...): "
                "the same vectors must not be merged twice"
            )
        seen[one.digest] = one.name


def write_metadata(folder: Path, metadata: IndexMetadata) -> None:
    """Write `metadata.json` atomically, with sorted keys: equal input, equal bytes."""
    fields = dataclasses.asdict(metadata) | {"format_version": FORMAT_VERSION}
    temporary = folder / f"{METADATA_FILE}.part"
    temporary.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    temporary.replace(folder / METADATA_FILE)


def read_metadata(folder: Path) -> IndexMetadata:
    """Read `metadata.json`.

    Raises:
        FileNotFoundError: there is none, so there is no complete index.
        ValueError: not the metadata of an index, or of another format.
    """
    path = folder / METADATA_FILE
    if not path.exists():
        raise FileNotFoundError(f"no complete index in {folder} ({METADATA_FILE} is missing); build it first")
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version = fields.pop("format_version")
        if version != FORMAT_VERSION:
            raise ValueError(f"{path}: format version {version}, this program reads {FORMAT_VERSION}")
        fields["search_params"] = SearchParams(**fields["search_params"])
        fields["inputs"] = tuple(IndexInput(**one) for one in fields["inputs"])
        fields["segments"] = tuple(Segment(**one) for one in fields["segments"])
        for name in ("recall_at_10_interval", "recall_at_100_interval"):
            if fields.get(name) is not None:
                low, high = fields[name]
                fields[name] = (low, high)
        return IndexMetadata(**fields)
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path}: not the metadata of an index ({error!r}); build the index again"
        ) from error
