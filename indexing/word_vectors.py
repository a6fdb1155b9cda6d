"""Averaged word vectors as a sentence encoder: GloVe, word2vec and fastText files, numpy only.

Owns the text formats, word2vec's binary one, and the average, plain or weighted by inverse document
frequency. Must not know tasks. Formats by content: text with one word and its numbers per line (GloVe;
word2vec's and fastText's `.vec` begin with a line of counts), word2vec's binary format, and fastText's
(`fasttext_file`).
"""

from __future__ import annotations

import gzip
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from io import BufferedReader
from pathlib import Path

import bm25s.stopwords
import numpy as np

from indexing.arrays import Float32Array
from indexing.bm25 import Tokenizer
from indexing.fasttext_file import FASTTEXT_MAGIC, FastText, read_fasttext

# 179 English words that drown the others in a plain average. The averaged word vectors of
# sentence-transformers, which the paper used, leave stop words out, too.
STOPWORDS = frozenset(bm25s.stopwords.STOPWORDS_EN_PLUS)


class WordVectors:
    """Word vectors ready to average.

    Attributes:
        words: word -> row.
        vectors: float32[number of words, d].
        weights: word -> weight in the average; None = plain average.
        unseen_weight: of a word that `weights` has not.
        model: has vectors of further words, made of their pieces.
    """

    def __init__(
        self,
        words: dict[str, int],
        vectors: Float32Array,
        weights: dict[str, float] | None = None,
        *,
        unseen_weight: float = 1.0,
        model: FastText | None = None,
    ) -> None:
        self.words, self.vectors, self.weights = words, vectors, weights
        self.unseen_weight, self.model = unseen_weight, model
        self._tokenizer = Tokenizer()

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return int(self.vectors.shape[1])

    def weighted_by_idf(self, texts: Sequence[str]) -> WordVectors:
        """The same vectors with the weight log(n / df) of each word in `texts`; unseen words have log(n)."""
        frequency: Counter[str] = Counter()
        for text in texts:
            frequency.update(set(self._tokenizer.words_of(text)))
        total = max(2, len(texts))
        weights = {word: math.log(total / count) for word, count in frequency.items()}
        unseen = math.log(total)
        return WordVectors(self.words, self.vectors, weights, unseen_weight=unseen, model=self.model)

    def vector(self, word: str) -> Float32Array | None:
        """float32[d] of a word in lower case, or None."""
        if word in self.words:
            found: Float32Array = self.vectors[self.words[word]]
            return found
        return None if self.model is None else self.model.vector(word)

    def encode(self, texts: Sequence[str]) -> Float32Array:
        """float32[n, d]: the (weighted) mean over the known lower-cased words of each text; 0 without any."""
        out = np.zeros((len(texts), self.dim), np.float32)
        for place, text in enumerate(texts):
            words = self._tokenizer.words_of(text)
            known = [(word, found) for word in words if (found := self.vector(word)) is not None]
            if not known:
                continue
            rows = np.stack([vector for _, vector in known])
            if self.weights is None:
                out[place] = rows.mean(axis=0)
                continue
            weights = np.array([self.weights.get(word, self.unseen_weight) for word, _ in known], np.float32)
            # Weights that are all 0 (words of every text) leave the zero vector: such a text says nothing.
            out[place] = weights @ rows / max(float(weights.sum()), 1e-9)
        return out


def read_word_vectors(path: Path | str, *, only: Collection[str] | None = None) -> WordVectors:
    """Read a file of word vectors, plain or gzipped.

    Args:
        path: local file.
        only: keep these words alone, which bounds memory by them; None keeps all.

    A word that occurs twice keeps its first vector. A model of fastText has a vector for every word of `only`
    that it knows or has pieces of; without `only` vectors are made when asked for, and `words` is empty.

    Raises:
        ValueError: not such a file, rows of different widths, NaN or infinity, or no word kept.
    """
    place = Path(path)
    if _is_fasttext(place):
        return _from_fasttext(read_fasttext(place), only, place)
    words: dict[str, int] = {}
    rows: list[Float32Array] = []
    for word, vector in _entries(place):
        if word in words or (only is not None and word not in only):
            continue
        if rows and len(vector) != len(rows[0]):
            raise ValueError(f"{place}: {word!r} has {len(vector)} numbers, the words before {len(rows[0])}")
        words[word] = len(rows)
        rows.append(vector)
    return WordVectors(words, _stacked(rows, only, place))


def _is_fasttext(place: Path) -> bool:
    with _open(place) as stream:
        return stream.read(len(FASTTEXT_MAGIC)) == FASTTEXT_MAGIC


def _from_fasttext(model: FastText, only: Collection[str] | None, place: Path) -> WordVectors:
    if only is None:
        return WordVectors({}, np.empty((0, model.dim), np.float32), model=model)
    found = {word: vector for word in sorted(only) if (vector := model.vector(word)) is not None}
    words = {word: row for row, word in enumerate(found)}
    return WordVectors(words, _stacked(list(found.values()), only, place))


def _stacked(rows: list[Float32Array], only: Collection[str] | None, place: Path) -> Float32Array:
    if not rows:
        raise ValueError(f"{place}: no word vectors{' for the words wanted' if only is not None else ''}")
    vectors = np.stack(rows)
    if not np.isfinite(vectors).all():
        raise ValueError(f"{place}: NaN or infinity among the vectors")
    return vectors


def _entries(place: Path) -> Iterator[tuple[str, Float32Array]]:
    with _open(place) as stream:
        start = stream.peek(1 << 16)
        first, _, rest = start.partition(b"\n")
        counts = first.split()
        headed = len(counts) == 2 and all(part.isdigit() for part in counts)
        if headed and _looks_binary(rest):
            yield from _binary(place, stream)
            return
        dim = int(counts[1]) if headed else None
        for number, line in enumerate(stream, start=1):
            if (number == 1 and headed) or not line.strip():
                continue
            word, vector = _text_entry(line, dim, f"{place}: line {number}")
            dim = dim or len(vector)
            yield word, vector


def _open(place: Path) -> gzip.GzipFile | BufferedReader:
    try:
        return gzip.open(place, "rb") if place.suffix == ".gz" else place.open("rb")
    except OSError as error:
        raise ValueError(f"cannot read word vectors from '{place}': {error.strerror or error}") from error


def _looks_binary(rest: bytes) -> bool:
    """Whether what follows the counts holds bytes that no text has."""
    return any(byte < 9 for byte in rest)


def _text_entry(line: bytes, dim: int | None, where: str) -> tuple[str, Float32Array]:
    parts = line.decode("utf-8", errors="replace").rstrip().split(" ")
    # GloVe's 840B words hold spaces; with a known width the numbers are the last ones. Where what is left of
    # them are numbers too, the line is too long instead.
    width = len(parts) - 1
    if dim is not None and width > dim and not all(map(_is_number, parts[1:-dim])):
        width = dim
    try:
        vector = np.array(parts[-width:], dtype=np.float32)
    except ValueError as error:
        raise ValueError(f"{where}: expected a word and its numbers") from error
    if width < 1:
        raise ValueError(f"{where}: expected a word and its numbers")
    return " ".join(parts[:-width]).removeprefix("\ufeff"), vector


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _binary(place: Path, stream: gzip.GzipFile | BufferedReader) -> Iterator[tuple[str, Float32Array]]:
    num_words, dim = map(int, stream.readline().split())
    for _ in range(num_words):
        word = bytearray()
        while (sign := stream.read(1)) not in (b" ", b""):
            word += sign
        data = stream.read(4 * dim)
        if len(data) != 4 * dim:
            raise ValueError(f"{place}: the file ends before its {num_words} words")
        yield word.decode("utf-8", errors="replace").lstrip("\n"), np.frombuffer(data, dtype="<f4")
