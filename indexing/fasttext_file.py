"""fastText's binary models (Bojanowski et al. 2017, arXiv 1607.04606): words and hashed pieces of words.

Owns the file format that `fasttext` writes as `.bin` (versions 11 and 12, not compressed), which Sent2Vec's
authors took over, and how a word's vector comes about: the mean of its own row, if it has one, and of the
rows of its pieces. Must not know averages or tasks.
"""

from __future__ import annotations

import gzip
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from indexing.arrays import Float32Array

FASTTEXT_MAGIC = (793712314).to_bytes(4, "little")
_VERSIONS = (11, 12)
# dim, ws, epoch, minCount, neg, wordNgrams, loss, model, bucket, minn, maxn, lrUpdateRate, t
_SETTINGS = struct.Struct("<12id")
_SUPERVISED, _SENT2VEC = 3, 4
_DICTIONARY = struct.Struct("<3i2q")  # entries, words, labels, tokens, pruned pieces (-1: not pruned)
_ENTRY = struct.Struct("<qb")  # count, kind (0 word, 1 label), behind the word and a zero byte
_MATRIX = struct.Struct("<2q")
_SENTENCE_END = "</s>"
_MASK32 = (1 << 32) - 1


@dataclass(frozen=True, kw_only=True)
class FastText:
    """A model's input side.

    Attributes:
        words: word -> row.
        table: float32[number of words + buckets, d], words first; may lie in the file.
        num_buckets: rows that pieces of words are hashed to.
        min_chars: length of the shortest piece, the marks of a word's ends counted.
        max_chars: of the longest piece; 0 for no pieces.
        word_ngrams: longest n-gram of words that has a bucket.
        is_sent2vec: whether Sent2Vec wrote it, whose buckets are of n-grams of words alone.
    """

    words: dict[str, int]
    table: Float32Array
    num_buckets: int
    min_chars: int
    max_chars: int
    word_ngrams: int
    is_sent2vec: bool

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return int(self.table.shape[1])

    def vector(self, word: str) -> Float32Array | None:
        """float32[d], of an unknown word by its pieces; None if it has none."""
        rows = [self.words[word]] if word in self.words else []
        if word != _SENTENCE_END and self.num_buckets:
            pieces = pieces_of(word, min_chars=self.min_chars, max_chars=self.max_chars)
            first = len(self.table) - self.num_buckets
            rows += [first + _hash(piece) % self.num_buckets for piece in pieces]
        return self.table[rows].mean(axis=0, dtype=np.float32) if rows else None


def pieces_of(word: str, *, min_chars: int, max_chars: int) -> list[str]:
    """The pieces of a word between its marks `<` and `>`, by their first character, then their length."""
    marked = f"<{word}>"
    return [
        marked[start : start + size]
        for start in range(len(marked))
        for size in range(max(1, min_chars), max_chars + 1)
        if start + size <= len(marked) and not (size == 1 and start in (0, len(marked) - 1))
    ]


def read_fasttext(path: Path) -> FastText:
    """Opens a model, plain (its table stays in the file) or gzipped.

    Raises:
        ValueError: cut short, compressed, or another version.
    """
    try:
        return _parse(_open(path), path)
    except (struct.error, IndexError) as error:
        raise _cut_short(path) from error


def _open(path: Path) -> bytes | mmap.mmap:
    if path.suffix == ".gz":
        with gzip.open(path, "rb") as stream:
            return stream.read()
    with path.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def _parse(data: bytes | mmap.mmap, path: Path) -> FastText:
    magic, (version,) = data[:4], struct.unpack_from("<i", data, 4)
    if magic != FASTTEXT_MAGIC or version not in _VERSIONS:
        raise ValueError(
            f"{path}: expected a fastText model of version 11 or 12; write it anew with fastText"
        )
    settings = _SETTINGS.unpack_from(data, 8)
    dim, word_ngrams, (model, num_buckets, min_chars, max_chars) = settings[0], settings[5], settings[7:11]
    if model == _SENT2VEC or (version == 11 and model == _SUPERVISED):
        max_chars = 0  # such models have no pieces, whatever their settings say
    place = 8 + _SETTINGS.size
    num_entries, num_words, _, _, num_pruned = _DICTIONARY.unpack_from(data, place)
    place += _DICTIONARY.size
    words: dict[str, int] = {}
    for number in range(num_entries):
        end = data.find(b"\0", place)
        if end < 0:
            raise _cut_short(path)
        if number < num_words:
            words[data[place:end].decode("utf-8", errors="replace")] = number
        place = end + 1 + _ENTRY.size
    is_compressed = data[place]
    if num_pruned >= 0 or is_compressed:
        raise ValueError(f"{path}: compressed models of fastText (.ftz) are not read; give the .bin")
    num_rows, width = _MATRIX.unpack_from(data, place + 1)
    spare = int(model == _SENT2VEC)  # a last row that is never used
    if (num_rows, width) != (num_words + num_buckets + spare, dim) or dim < 1:
        raise ValueError(
            f"{path}: a table of {num_rows} x {width} does not fit {num_words} words, {num_buckets} buckets "
            f"and width {dim}; the file is damaged, or another program's"
        )
    place += 1 + _MATRIX.size
    if len(data) < place + 4 * num_rows * dim:
        raise _cut_short(path)
    table = np.frombuffer(data, dtype="<f4", count=num_rows * dim, offset=place)
    return FastText(
        words=words,
        table=table.reshape(num_rows, dim)[: num_words + num_buckets],
        num_buckets=num_buckets,
        min_chars=min_chars,
        max_chars=max_chars,
        word_ngrams=word_ngrams,
        is_sent2vec=model == _SENT2VEC,
    )


def _hash(piece: str) -> int:
    """FNV-1a of 32 bits, in which fastText extends the sign of every byte."""
    value = 2166136261
    for byte in piece.encode(errors="replace"):
        value = (value ^ (byte if byte < 0x80 else byte | 0xFFFFFF00)) * 16777619 & _MASK32
    return value


def _cut_short(path: Path) -> ValueError:
    return ValueError(f"{path}: the file ends inside the model; copy it anew")
