"""Damage sentences in id space: the five noise types of the TSDAE paper (section 3.1 and its noise study).

Owns which words are hit and what happens to them. Every choice is a hash of (seed, epoch, row id, word
position), so any batch size, order or number of workers gives the same bytes. Knows nothing of special
tokens, batches or models. In the paper the ratio is the share of words DELETED (0.6), not kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tsdae_core.hashing import fold_key, keyed_hash, keyed_uniform
from tsdae_core.ragged import Int64s, Ragged, expand_spans
from tsdae_core.tokens import TokenizedTexts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

NoiseKind = Literal["delete", "swap", "mask", "replace", "add"]


@dataclass(frozen=True, kw_only=True)
class NoiseConfig:
    """Which damage, and how much.

    Attributes:
        kind: ``delete`` drops words, ``swap`` permutes the chosen words among their places, ``mask`` and
            ``replace`` overwrite every piece of a word with the mask token or a random token, ``add``
            inserts one random token after a word.
        ratio: share of the words hit, in [0, 1]; each word is hit independently. At least one word of a
            non-empty text survives ``delete``, ``mask`` and ``replace``.

    Raises:
        ValueError: for an unknown kind or a ratio outside [0, 1].
    """

    kind: NoiseKind = "delete"
    ratio: float = 0.6

    def __post_init__(self) -> None:
        if self.kind not in get_args(NoiseKind):
            raise ValueError(
                f"noise kind {self.kind!r} is unknown; choose one of {', '.join(get_args(NoiseKind))}"
            )
        if not 0.0 <= self.ratio <= 1.0:
            raise ValueError(
                f"noise ratio {self.ratio} is outside [0, 1]; it is the share of words that are hit"
            )


@dataclass(frozen=True)
class NoiseVocabulary:
    """Token ids that noise may write: the mask token (None if there is none) and ordinary tokens int32[n]."""

    mask_id: int | None
    random_ids: NDArray[np.int32]


def noise_vocabulary(tokenizer: PreTrainedTokenizerFast) -> NoiseVocabulary:
    """Return the tokenizer's mask token and all its ids that are not special tokens."""
    special = set(tokenizer.all_special_ids)
    ordinary = sorted(index for index in tokenizer.get_vocab().values() if index not in special)
    return NoiseVocabulary(tokenizer.mask_token_id, np.asarray(ordinary, dtype=np.int32))


@dataclass(frozen=True)
class _Words:
    """The words of a batch: spans in the flat ids, their row, and which of them the noise hits (all [W])."""

    starts: Int64s
    lengths: Int64s
    row: Int64s
    num_per_row: Int64s
    hit: NDArray[np.bool_]


def apply_noise(
    tokens: TokenizedTexts,
    row_ids: Int64s,
    *,
    seed: int,
    epoch: int,
    config: NoiseConfig,
    vocab: NoiseVocabulary,
) -> Ragged:
    """Return the damaged ids, one int32 row per text.

    Args:
        tokens: B texts.
        row_ids: int64[B], the corpus-wide identity of each text, which keys its noise.
        seed: run seed.
        epoch: noise differs between epochs and repeats for the same one.
        config: kind and ratio.
        vocab: ids for ``mask``, ``replace`` and ``add``.

    Raises:
        ValueError: if ids and rows differ in number, or the vocabulary lacks what the kind needs.
    """
    row_ids = np.asarray(row_ids, dtype=np.int64)
    if row_ids.shape != (len(tokens),):
        raise ValueError(f"{row_ids.shape[0]} row ids for {len(tokens)} texts")
    words, positions = _split_words(tokens)
    keys = row_ids[words.row]
    uniform = keyed_uniform(fold_key("noise", seed, epoch), keys, positions)
    hit = uniform < config.ratio
    if config.kind in ("delete", "mask", "replace"):
        hit &= ~_spared(uniform, hit, words)
    words = _Words(words.starts, words.lengths, words.row, words.num_per_row, hit)
    choice = keyed_hash(fold_key("noise-choice", seed, epoch), keys, positions)
    if config.kind == "delete":
        return _gather(tokens, words, np.flatnonzero(~hit))
    if config.kind == "swap":
        return _gather(tokens, words, _swapped(words, choice))
    if config.kind == "add":
        return _added(tokens, words, _random_ids(choice[hit], vocab))
    return _overwritten(tokens, words, choice, config.kind, vocab)


def _split_words(tokens: TokenizedTexts) -> tuple[_Words, Int64s]:
    """Return the words and the position of each word in its row, int64[W]."""
    starts = np.flatnonzero(tokens.word_starts).astype(np.int64)
    ends = np.append(starts[1:], tokens.ids.values.shape[0])
    row = np.searchsorted(tokens.ids.offsets[1:], starts, side="right").astype(np.int64)
    num_per_row = np.bincount(row, minlength=len(tokens)).astype(np.int64)
    first_word = np.cumsum(num_per_row) - num_per_row
    positions = np.arange(starts.shape[0], dtype=np.int64) - first_word[row]
    hit = np.zeros(starts.shape[0], dtype=np.bool_)
    return _Words(starts, (ends - starts).astype(np.int64), row, num_per_row, hit), positions


def _spared(uniform: NDArray[np.float64], hit: NDArray[np.bool_], words: _Words) -> NDArray[np.bool_]:
    """Mark, in rows where every word is hit, the word with the largest number: a uniform, keyed choice."""
    num_rows = words.num_per_row.shape[0]
    num_left = np.bincount(words.row, weights=~hit, minlength=num_rows)
    largest = np.full(num_rows, -1.0)
    filled = words.num_per_row > 0
    if filled.any():
        first_word = (np.cumsum(words.num_per_row) - words.num_per_row)[filled]
        largest[filled] = np.maximum.reduceat(uniform, first_word)
    return np.asarray((num_left == 0)[words.row] & (uniform == largest[words.row]), dtype=np.bool_)


def _gather(tokens: TokenizedTexts, words: _Words, order: Int64s) -> Ragged:
    """Return the words ``order`` (int64, words of a row stay together) one after the other."""
    lengths = words.lengths[order]
    values = tokens.ids.values[expand_spans(words.starts[order], lengths)]
    num_rows = len(tokens)
    return Ragged(values, np.bincount(words.row[order], weights=lengths, minlength=num_rows).astype(np.int64))


def _swapped(words: _Words, choice: NDArray[np.uint64]) -> Int64s:
    """Return the word order in which the hit words of each row are permuted among their places."""
    order = np.arange(words.starts.shape[0], dtype=np.int64)
    places = np.flatnonzero(words.hit)
    order[places] = places[np.lexsort((choice[places], words.row[places]))]
    return order


def _added(tokens: TokenizedTexts, words: _Words, inserted: NDArray[np.int32]) -> Ragged:
    after = (words.starts + words.lengths)[words.hit]
    num_added = np.bincount(words.row[words.hit], minlength=len(tokens))
    return Ragged(np.insert(tokens.ids.values, after, inserted), tokens.ids.lengths + num_added)


def _overwritten(
    tokens: TokenizedTexts, words: _Words, choice: NDArray[np.uint64], kind: NoiseKind, vocab: NoiseVocabulary
) -> Ragged:
    lengths = words.lengths[words.hit]
    places = expand_spans(words.starts[words.hit], lengths)
    values = tokens.ids.values.copy()
    if kind == "mask":
        if vocab.mask_id is None:
            raise ValueError("this tokenizer has no mask token; use noise kind delete, swap, replace or add")
        values[places] = vocab.mask_id
    else:
        piece = places - np.repeat(words.starts[words.hit], lengths)
        values[places] = _random_ids(
            keyed_hash(fold_key("piece"), np.repeat(choice[words.hit], lengths), piece), vocab
        )
    return Ragged(values, tokens.ids.lengths)


def _random_ids(hashes: NDArray[np.uint64], vocab: NoiseVocabulary) -> NDArray[np.int32]:
    """Pick one ordinary token per hash; the bias of the modulus is below 2^-40 for any vocabulary."""
    if vocab.random_ids.shape[0] == 0:
        raise ValueError("noise kinds replace and add need ordinary tokens, but the vocabulary has none")
    return vocab.random_ids[(hashes % np.uint64(vocab.random_ids.shape[0])).astype(np.int64)]
