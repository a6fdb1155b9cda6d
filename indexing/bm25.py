"""BM25, the lexical baseline and the other half of a hybrid search.

Scores follow Lucene's BM25 (Kamphuis et al., ECIR 2020) with k1 = 0.9 and b = 0.4, the defaults of Anserini
and so of the published BM25 rows of BEIR and MS MARCO; Elasticsearch uses 1.2 and 0.75. Words are lower-cased
runs of letters and digits; in scripts without spaces every character is a word, as in Lucene's standard
tokeniser; no stemmer unless asked for. Computed by bm25s in plain numpy: deterministic, no progress bars.
Knows texts and row ids; must not know vectors.
"""

import dataclasses
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bm25s
import bm25s.stopwords
import numpy as np
import numpy.typing as npt

from indexing.arrays import BoolArray, Float32Array, Int64Array, as_row_ids
from indexing.hits import Hits, top_k_of_pairs

DEFAULT_K1 = 0.9
DEFAULT_B = 0.4

_SETTINGS_FILE = "bm25.json"
_ROW_IDS_FILE = "row_ids.npy"
_NO_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_NO_SPACES}]|(?:(?![{_NO_SPACES}_])\w)+")
_STOPWORDS: dict[str | None, frozenset[str]] = {
    None: frozenset(),
    "en": frozenset(bm25s.stopwords.STOPWORDS_EN),
}


@dataclass(frozen=True, kw_only=True)
class BM25Config:
    """What a BM25 index was built with; see `BM25Searcher.build`. Two with equal ones rank alike."""

    k1: float = DEFAULT_K1
    b: float = DEFAULT_B
    stopwords: str | None = None
    stemmer: str | None = None

    @staticmethod
    def saved_in(folder: Path | str) -> "BM25Config":
        """That of an index which `BM25Searcher.save` wrote.

        Raises:
            FileNotFoundError: no complete BM25 index in the folder.
        """
        place = Path(folder) / _SETTINGS_FILE
        if not place.exists():
            raise FileNotFoundError(f"no complete BM25 index in {folder} ({_SETTINGS_FILE} is missing)")
        return BM25Config(**json.loads(place.read_text(encoding="utf-8")))


class BM25Searcher:
    """Texts ready for BM25 search; safe to search from several threads. Make one with `build` or `load`."""

    def __init__(self, scorer: Any, row_ids: Int64Array, config: BM25Config) -> None:
        self._scorer = scorer
        self._row_ids = row_ids
        self._config = config
        self._tokenizer = Tokenizer(stopwords=config.stopwords, stemmer=config.stemmer)

    @classmethod
    def build(
        cls,
        row_ids: npt.ArrayLike,
        texts: Sequence[str],
        *,
        k1: float = DEFAULT_K1,
        b: float = DEFAULT_B,
        stopwords: str | None = None,
        stemmer: str | None = None,
    ) -> "BM25Searcher":
        """Index texts.

        Args:
            row_ids: int64[n], unique.
            texts: n texts; empty ones are allowed and are never found.
            k1: term-frequency saturation, >= 0.
            b: length normalisation, in [0, 1].
            stopwords: "en" leaves out bm25s's 33 English stop words, None keeps every word.
            stemmer: "en_plural" joins English singular and plural (Harman's S-stemmer, 1991), None keeps
                words as they are.

        Raises:
            ValueError: no texts, counts that differ, repeated ids, or a parameter outside its range.
        """
        if not texts:
            raise ValueError("BM25: no texts to index")
        if k1 < 0 or not 0 <= b <= 1:
            raise ValueError(f"BM25: expected k1 >= 0 and 0 <= b <= 1, got k1={k1}, b={b}")
        ids = as_row_ids(row_ids, what="BM25", num_rows=len(texts))
        if len(np.unique(ids)) != len(ids):
            raise ValueError("BM25: row ids occur more than once")
        config = BM25Config(k1=k1, b=b, stopwords=stopwords, stemmer=stemmer)
        tokenizer = Tokenizer(stopwords=stopwords, stemmer=stemmer)
        documents = [tokenizer.words_of(text) for text in texts]
        words = sorted({word for document in documents for word in document})
        vocabulary = {word: number for number, word in enumerate(words)}
        token_ids = [[vocabulary[word] for word in document] for document in documents]
        scorer = bm25s.BM25(method="lucene", k1=k1, b=b, backend="numpy", csc_backend="numpy")
        # A corpus without a single word is legal here (every query misses): bm25s needs one column for it and
        # divides by the mean length, zero.
        with np.errstate(invalid="ignore"):
            scorer.index((token_ids, vocabulary or {"": 0}), create_empty_token=False, show_progress=False)
        return cls(scorer, ids, config)

    def select(self, row_ids: npt.ArrayLike) -> BoolArray:
        """The texts that a search may find, for `retrieve`: bool[n], true for those with one of these ids."""
        return np.isin(self._row_ids, as_row_ids(row_ids, what="BM25 selection"))

    def retrieve(self, texts: Sequence[str], k: int, *, selection: BoolArray | None = None) -> Hits:
        """The best k texts for each query that share a word with it, by score, then id.

        A query that is empty or has no known word gets no hits. A word said twice in the query counts twice.
        With a `selection` (from `select`) only its texts are found, with the scores they have among all.

        Raises:
            ValueError: k < 1.
        """
        rows, ids, scores = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.float32)]
        for number, text in enumerate(texts):
            positions, found = self._score(text, k, selection)
            rows.append(np.full(len(positions), number, dtype=np.int64))
            ids.append(self._row_ids[positions])
            scores.append(found)
        parts = (np.concatenate(rows), np.concatenate(ids), np.concatenate(scores))
        return top_k_of_pairs(*parts, num_queries=len(texts), k=k)

    def scores_of(self, text: str, positions: Int64Array) -> Float32Array:
        """The scores float32[m] of chosen texts for one query; 0 where they share no word.

        positions: int64[m], places in the texts that were indexed (not row ids).
        """
        known = self._known(text)
        if not known:
            return np.zeros(len(positions), np.float32)
        scores: Float32Array = self._scorer.get_scores_from_ids(known)
        return scores[positions]

    def save(self, folder: Path | str) -> None:
        """Write the index to a local folder, made if needed; `bm25.json` comes last."""
        root = Path(folder)
        root.mkdir(parents=True, exist_ok=True)
        (root / _SETTINGS_FILE).unlink(missing_ok=True)
        self._scorer.save(root, show_progress=False)
        np.save(root / _ROW_IDS_FILE, self._row_ids, allow_pickle=False)
        settings = json.dumps(dataclasses.asdict(self._config), sort_keys=True)
        (root / _SETTINGS_FILE).write_text(settings + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path | str, *, mmap: bool = False) -> "BM25Searcher":
        """Open what `save` wrote; with `mmap` the postings stay on disk until a query touches them.

        Raises:
            FileNotFoundError: no complete BM25 index in the folder.
            ValueError: files of different builds.
        """
        root = Path(folder)
        config = BM25Config.saved_in(root)
        scorer = bm25s.BM25.load(root, mmap=mmap, show_progress=False)
        row_ids = np.load(root / _ROW_IDS_FILE, mmap_mode="r" if mmap else None, allow_pickle=False)
        if len(row_ids) != int(scorer.scores["num_docs"]):
            raise ValueError(f"{root}: the files are of different builds; build the BM25 index again")
        return cls(scorer, row_ids, config)

    def _score(self, text: str, k: int, selection: BoolArray | None) -> tuple[Int64Array, Float32Array]:
        """Positions and scores of at least the k best matching texts, ties at place k included."""
        known = self._known(text)
        if not known:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        scores: Float32Array = self._scorer.get_scores_from_ids(known)
        if selection is not None:
            scores = np.where(selection, scores, np.float32(0))
        floor = np.float32(0)
        if 0 < k < len(scores):
            floor = np.partition(scores, len(scores) - k)[len(scores) - k]
        positions = np.flatnonzero((scores >= floor) & (scores > 0))
        return positions, scores[positions]

    def _known(self, text: str) -> list[int]:
        """The numbers of the query's words that some text has."""
        vocabulary = self._scorer.vocab_dict
        return [vocabulary[word] for word in self._tokenizer.words_of(text) if word in vocabulary]


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """From a text to the words BM25 counts.

    Attributes:
        stopwords: language whose stop words are left out ("en") or None.
        stemmer: "en_plural" or None.

    Raises:
        ValueError: another language or stemmer.
    """

    stopwords: str | None = None
    stemmer: str | None = None

    def __post_init__(self) -> None:
        if self.stopwords not in _STOPWORDS:
            raise ValueError(f'BM25: stopwords must be "en" or None, got {self.stopwords!r}')
        if self.stemmer not in (None, "en_plural"):
            raise ValueError(f'BM25: stemmer must be "en_plural" or None, got {self.stemmer!r}')

    def words_of(self, text: str) -> list[str]:
        """Lower-cased words in order."""
        left_out = _STOPWORDS[self.stopwords]
        words = [word for word in _WORD.findall(text.lower()) if word not in left_out]
        return [singular(word) for word in words] if self.stemmer else words


def singular(word: str) -> str:
    """English plural endings removed (Harman, How effective is suffixing?, JASIS 1991, the S-stemmer)."""
    if len(word) > 3 and word.endswith("ies") and not word.endswith(("eies", "aies")):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("es") and not word.endswith(("aes", "ees", "oes")):
        return word[:-1]
    if len(word) > 2 and word.endswith("s") and not word.endswith(("us", "ss")):
        return word[:-1]
    return word
