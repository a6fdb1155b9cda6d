"""The settings of Sent2Vec; apart from its training, whose file imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

NgramHash = Literal["mixed", "original"]


@dataclass(frozen=True, kw_only=True)
class Sent2VecConfig:
    """Choices of Sent2Vec; the paper's unless said otherwise.

    Attributes:
        dim: width of the vectors.
        ngrams: longest n-gram with a vector of its own; 1 has none.
        num_buckets: n-grams are hashed into as many (the authors use 2 million).
        ngram_hash: ``mixed`` spreads well, ``original`` is that of the authors' models.
        min_count: words seen less often have no vector.
        min_target_count: words seen less often are not predicted (the authors' ``minCountLabel``).
        dropped_ngrams: so many n-grams of more than one word are left out of a sentence, drawn anew in every
            pass (the authors' ``dropoutK``, with their default).
        num_negatives: words drawn, by the root of their frequency, against each target.
        subsample: words more frequent than this share of all are targets less often; 0 keeps all.
        num_epochs: passes over the corpus.
        lr: rate of Adagrad, falling linearly to 0 (the authors use plain SGD, one sentence at a time).
        batch_size: sentences per update.

    Raises:
        ValueError: for a number outside its range.
    """

    dim: int = 700
    ngrams: int = 2
    num_buckets: int = 200_000
    ngram_hash: NgramHash = "mixed"
    min_count: int = 5
    min_target_count: int = 0
    dropped_ngrams: int = 2
    num_negatives: int = 10
    subsample: float = 1e-5
    num_epochs: int = 9
    lr: float = 0.1
    batch_size: int = 64

    def __post_init__(self) -> None:
        names = ("dim", "ngrams", "num_buckets", "min_count", "num_negatives", "num_epochs", "lr")
        for name in (*names, "batch_size"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} must be positive")
        if self.ngram_hash not in get_args(NgramHash):
            raise ValueError(
                f"ngram_hash {self.ngram_hash!r} is unknown; choose one of {', '.join(get_args(NgramHash))}"
            )
        for name in ("subsample", "min_target_count", "dropped_ngrams"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative")
