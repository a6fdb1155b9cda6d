"""Texts as token ids with word boundaries, made once so that noise can work in id space.

Owns tokenising without special tokens, where words start, and the special tokens that frame a sentence.
Knows nothing of noise, batches or models. Word units are the tokenizer's own by default (no external word
splitter); text in scripts written without spaces falls back to pieces, because there a "word" of the
tokenizer, or what stands between two spaces, can be the whole sentence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tsdae_core.plain_tokenizer import encode_plain, plain_core
from tsdae_core.ragged import Ragged, expand_spans

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Thai, Lao, Myanmar, Khmer, kana, Han (with extensions and compatibility forms), half-width kana.
_SPACELESS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u19e0-\u19ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
_PROBE = "a"

WordUnit = Literal["word", "whitespace", "piece"]


@dataclass(frozen=True)
class TokenizedTexts:
    """B tokenized texts without special tokens.

    Attributes:
        ids: int32 token ids, one row per text; an empty text is an empty row.
        word_starts: bool[T], True where a token begins a word; every non-empty row begins with True.
    """

    ids: Ragged
    word_starts: NDArray[np.bool_]

    def __post_init__(self) -> None:
        starts = np.asarray(self.word_starts, dtype=np.bool_)
        if starts.shape != self.ids.values.shape:
            raise ValueError(f"{starts.shape[0]} word starts for {self.ids.values.shape[0]} tokens")
        first = self.ids.offsets[:-1][self.ids.lengths > 0]
        if not starts[first].all():
            starts = starts.copy()
            starts[first] = True
        object.__setattr__(self, "word_starts", starts)

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: NDArray[np.integer[Any]] | Sequence[int]) -> TokenizedTexts:
        """Return the given rows, in the given order."""
        rows = np.asarray(rows, dtype=np.int64)
        index = expand_spans(self.ids.offsets[:-1][rows], self.ids.lengths[rows])
        return TokenizedTexts(Ragged(self.ids.values[index], self.ids.lengths[rows]), self.word_starts[index])


@dataclass(frozen=True)
class SpecialFrame:
    """The special token ids put before and after one sentence, for instance ([CLS],) and ([SEP],)."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.prefix) + len(self.suffix)

    def wrap(self, ids: Ragged) -> Ragged:
        """Return int32 rows ``prefix + row + suffix``."""
        lengths = ids.lengths + len(self)
        framed = np.empty(int(lengths.sum()), dtype=np.int32)
        starts = np.cumsum(lengths) - lengths
        for shift, special in enumerate(self.prefix):
            framed[starts + shift] = special
        for shift, special in enumerate(self.suffix):
            framed[starts + len(self.prefix) + ids.lengths + shift] = special
        framed[expand_spans(starts + len(self.prefix), ids.lengths)] = ids.values
        return Ragged(framed, lengths)


def is_spaceless(text: str) -> bool:
    """Tell whether a text holds a character of a script written without spaces."""
    return _SPACELESS.search(text) is not None


def special_frame(tokenizer: PreTrainedTokenizerFast) -> SpecialFrame:
    """Find what the tokenizer puts around one sentence, by encoding a probe with and without it.

    Raises:
        ValueError: if the framed probe does not contain the bare one.
    """
    with plain_core(tokenizer) as core:
        framed = list(core.encode(_PROBE, add_special_tokens=True).ids)
        bare = list(core.encode(_PROBE, add_special_tokens=False).ids)
    for start in range(len(framed) - len(bare) + 1):
        if framed[start : start + len(bare)] == bare:
            return SpecialFrame(tuple(framed[:start]), tuple(framed[start + len(bare) :]))
    raise ValueError(
        f"this tokenizer rewrites a sentence when it adds special tokens ({bare} became {framed}); "
        "TSDAE needs one that only adds tokens before and after it"
    )


def tokenize_texts(
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerFast,
    *,
    max_tokens: int,
    word_unit: WordUnit = "word",
) -> TokenizedTexts:
    """Tokenize every text once, without special tokens.

    Args:
        texts: B strings; empty ones are allowed and give empty rows. The names of special tokens in them are
            plain text.
        tokenizer: a fast tokenizer; truncation and padding stored in its tokenizer.json are not applied.
        max_tokens: cap on the tokens of a sentence, its special tokens included.
        word_unit: what noise hits as a whole. ``word`` is the tokenizer's (BERT's splits off punctuation),
            ``whitespace`` what stands between spaces, ``piece`` every token. The first two fall back to
            pieces in scripts without spaces.

    Raises:
        ValueError: if the tokenizer is not a fast one, nothing fits beside the special tokens, or the unit
            is unknown.
    """
    if word_unit not in get_args(WordUnit):
        raise ValueError(f"word_unit {word_unit!r} is unknown; choose one of {', '.join(get_args(WordUnit))}")
    room = max_tokens - len(special_frame(tokenizer))
    if room < 1:
        raise ValueError(
            f"max_tokens={max_tokens} leaves no room for text beside the special tokens; raise it"
        )
    encodings = encode_plain(tokenizer, texts)
    rows = [encoding.ids[:room] for encoding in encodings]
    ids = Ragged(
        np.fromiter(chain.from_iterable(rows), dtype=np.int32),
        np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)),
    )
    starts = np.ones(ids.values.shape[0], dtype=np.bool_)
    if word_unit == "piece":
        return TokenizedTexts(ids, starts)
    if word_unit == "word":
        words = chain.from_iterable(encoding.word_ids[:room] for encoding in encodings)
    else:
        words = chain.from_iterable(
            _whitespace_words(text, encoding.offsets[:room])
            for text, encoding in zip(texts, encodings, strict=True)
        )
    word_of_token = np.array([-1 if word is None else word for word in words], dtype=np.int64)
    starts[1:] = (word_of_token[1:] != word_of_token[:-1]) | (word_of_token[1:] < 0)
    starts[ids.offsets[:-1][ids.lengths > 0]] = True
    for row, text in enumerate(texts):
        if is_spaceless(text):
            begin, end = ids.offsets[row], ids.offsets[row + 1]
            starts[begin:end] |= _piece_starts(text, encodings[row].offsets[:room])
    return TokenizedTexts(ids, starts)


def _whitespace_words(text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """Return for each token the number of the word, between spaces, that it belongs to or leads to."""
    number, inside = -1, False
    word_at = []
    for character in text:
        if character.isspace():
            inside = False
            word_at.append(number + 1)
        else:
            number += not inside
            inside = True
            word_at.append(number)
    return [min(word_at[min(begin, len(word_at) - 1)], number) for begin, _ in spans]


def _piece_starts(text: str, spans: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Mark pieces that touch a script without spaces.

    Pieces of one split character stay together, and so does a bare space (SentencePiece's) with what follows.
    """
    starts = np.zeros(len(spans), dtype=np.bool_)
    previous, was_spaceless, was_space = -1, False, False
    for position, (begin, end) in enumerate(spans):
        spaceless = _SPACELESS.search(text, begin, end) is not None
        starts[position] = (spaceless or was_spaceless) and begin != previous and not was_space
        previous, was_spaceless, was_space = begin, spaceless, text[begin:end].isspace()
    return starts
