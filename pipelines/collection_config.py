"""The configuration of a collection of texts.

In a file of its own because prepare tasks need it and nothing else: they start without loading torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


def require(condition: bool, message: str) -> None:
    """Refuses a setting: ValueError with the message when the condition does not hold."""
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True, kw_only=True)
class CollectionConfig:
    """A collection of texts: where it is read from and what is kept.

    input: a file, folder, glob or URL of Parquet, JSONL, CSV, TSV or plain text (one text per line).
    id_column: None derives the id from the text, so it does not depend on order or sharding.
    min_chars, max_chars: shorter and longer texts are set aside and counted.
    num_shards: 0 chooses a power of two from the input's size (one shard per 64 MiB, at least 8).
    on_bad_file: a file that cannot be read fails the stage, or is set aside as a whole, named and counted.
    """

    input: str = ""
    text_column: str = "text"
    id_column: str | None = None
    title_column: str | None = None
    min_chars: int = 1
    max_chars: int = 100_000
    num_shards: int = 0
    on_bad_file: Literal["fail", "skip"] = "fail"

    def __post_init__(self) -> None:
        require(1 <= self.min_chars <= self.max_chars, "min_chars must be between 1 and max_chars")
        require(0 <= self.num_shards <= 2**20, "num_shards must be between 0 (automatic) and 1048576")

    @property
    def columns(self) -> list[str]:
        """The columns that are read, each once, the text first."""
        return list(dict.fromkeys(c for c in (self.text_column, self.id_column, self.title_column) if c))
