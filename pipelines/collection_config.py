"""The configuration of a collection of texts.

In a file of its own because prepare tasks need it and nothing else: they start without loading torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

_OWN_COLUMNS = ("row_id", "doc_id", "text", "title")


def require(condition: bool, message: str) -> None:
    """Refuses a setting: ValueError with the message when the condition does not hold."""
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True, kw_only=True)
class SentenceConfig:
    """Cutting rows into sentences (`corpus.sentences`); without the section a row is one text.

    language: ISO 639-1 code whose abbreviations and marks are used; others fall back to a close one.
    max_document_chars: longer rows are set aside; `min_chars` and `max_chars` are then of the sentences.
    """

    language: str = "en"
    max_document_chars: int = 10_000_000

    def __post_init__(self) -> None:
        require(bool(self.language), "language must be an ISO 639-1 code such as en")
        require(self.max_document_chars >= 1, "max_document_chars must be at least 1")


@dataclass(frozen=True, kw_only=True)
class LanguageConfig:
    """Keeping rows of some languages (`corpus.languages`); without the section all are kept.

    allowed: ISO 639-1 codes. min_probability: of the allowed languages together, as the identifier sees it.
    """

    allowed: tuple[str, ...] = ()
    min_probability: float = 0.5

    def __post_init__(self) -> None:
        require(bool(self.allowed), "allowed must name at least one language, e.g. [en]")
        require(0 <= self.min_probability <= 1, "min_probability must be in [0, 1]")


@dataclass(frozen=True, kw_only=True)
class NearDuplicateConfig:
    """Removing near-duplicates (`corpus.near_duplicates`); without the section only equal texts are one.

    threshold: Jaccard similarity of two texts' character n-grams from which on one is set aside, about.
    num_permutations: length of the MinHash signature; more is sharper and slower.
    ngram_chars: length of the n-grams; lower case, letters and digits only.
    """

    threshold: float = 0.8
    num_permutations: int = 128
    ngram_chars: int = 5

    def __post_init__(self) -> None:
        require(0 < self.threshold < 1, "threshold must be between 0 and 1")
        require(8 <= self.num_permutations <= 1024, "num_permutations must be between 8 and 1024")
        require(1 <= self.ngram_chars <= 50, "ngram_chars must be between 1 and 50")


@dataclass(frozen=True, kw_only=True)
class CollectionConfig:
    """A collection of texts: where it is read from and what is kept.

    input: a file, folder, glob or URL of Parquet, JSONL, CSV, TSV or plain text (one text per line).
    id_column: None derives the id from the text, so it does not depend on order or sharding.
    keep_columns: further columns, as text, to filter by and to show when searching.
    html: `keep` leaves mark-up as it is, `entities` resolves `&amp;` and the like, `strip` also removes tags.
    min_chars, max_chars: shorter and longer texts are set aside and counted.
    num_shards: 0 chooses a power of two from the input's size (one shard per 64 MiB, at least 8).
    on_bad_file: a file that cannot be read fails the stage, or is set aside as a whole, named and counted.
    on_equal_ids: of different texts with one id all but one are set aside (`drop`), the stage fails, or all
    are kept.
    """

    input: str = ""
    text_column: str = "text"
    id_column: str | None = None
    title_column: str | None = None
    keep_columns: tuple[str, ...] = ()
    html: Literal["keep", "entities", "strip"] = "keep"
    sentences: SentenceConfig | None = None
    languages: LanguageConfig | None = None
    near_duplicates: NearDuplicateConfig | None = None
    min_chars: int = 1
    max_chars: int = 100_000
    num_shards: int = 0
    on_bad_file: Literal["fail", "skip"] = "fail"
    on_equal_ids: Literal["drop", "fail", "keep"] = "drop"

    def __post_init__(self) -> None:
        require(1 <= self.min_chars <= self.max_chars, "min_chars must be between 1 and max_chars")
        require(0 <= self.num_shards <= 2**20, "num_shards must be between 0 (automatic) and 1048576")
        taken = sorted(set(self.keep_columns) & set(_OWN_COLUMNS))
        require(
            not taken, f"keep_columns must not name {', '.join(taken)}: prepare writes columns of that name"
        )
        require(len(set(self.keep_columns)) == len(self.keep_columns), "keep_columns names a column twice")

    @property
    def columns(self) -> list[str]:
        """The columns that are read, each once, the text first."""
        own = (self.text_column, self.id_column, self.title_column)
        return list(dict.fromkeys(c for c in (*own, *self.keep_columns) if c))

    @property
    def checks_ids(self) -> bool:
        """Whether rows with equal ids are looked for."""
        return self.id_column is not None and self.on_equal_ids != "keep"
