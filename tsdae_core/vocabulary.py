"""Extend an encoder's vocabulary with words of the domain: from a list, a file, or mined from texts.

A new row starts as the mean of the pieces the word was split into before, so that vectors hardly move on the
first step.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import torch
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from tsdae_core.backbone import word_embeddings
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.tokens import is_spaceless, tokenize_texts

_WORD = re.compile(r"[^\W_]+(?:-[^\W_]+)*")
_BLOCK_WORDS = 8192
_LONGEST_WORD_TOKENS = 64


def add_tokens(encoder: SentenceEncoder, words: Sequence[str]) -> int:
    """Add words to tokenizer, embeddings and LM head, in place; return how many were new.

    Call it before an objective builds its model and its batches.

    Args:
        encoder: changed in place; its head keeps being tied to the longer table.
        words: whole words, never matched inside longer ones; those the vocabulary has already are skipped.

    Raises:
        ValueError: for a word without any piece, such as an empty one.
    """
    tokenizer = encoder.tokenizer
    known = tokenizer.get_vocab()
    fresh = [word for word in dict.fromkeys(words) if word not in known]
    pieces = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in fresh]
    for word, ids in zip(fresh, pieces, strict=True):
        if not ids or not word.strip():
            raise ValueError(f"{word!r} has no tokens, so it cannot be added")
    if not fresh:
        return 0
    # Where spaces are part of pieces, an added word takes the space before it, or that would be left alone.
    keeps_spaces = bool(tokenizer(" ", add_special_tokens=False)["input_ids"])
    tokenizer.add_tokens([AddedToken(word, single_word=True, lstrip=keeps_spaces) for word in fresh])
    places = [tokenizer.convert_tokens_to_ids(word) for word in fresh]
    table = word_embeddings(encoder.backbone).weight.detach().clone()
    size = max(table.shape[0], max(places) + 1)
    encoder.backbone.resize_token_embeddings(size, mean_resizing=False)  # type: ignore[operator]
    with torch.no_grad():
        rows = word_embeddings(encoder.backbone).weight
        for place, ids in zip(places, pieces, strict=True):
            rows[place] = table[ids].mean(0)
    if encoder.lm_head is not None:
        encoder.lm_head.extend(size, dict(zip(places, pieces, strict=True)))
    return len(fresh)


def read_tokens(path: str | Path) -> list[str]:
    """Read words from a UTF-8 file, one a line; empty lines are skipped, repeated words kept once.

    Raises:
        ValueError: if the file is missing or holds no word, or a line holds several.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read words from {path}: {error}") from error
    words: dict[str, None] = {}
    for number, line in enumerate(lines, 1):
        if len(line.split()) > 1:
            raise ValueError(f"{path}, line {number}: {line.strip()!r} has a space; write one word a line")
        if line.strip():
            words[line.strip()] = None
    if not words:
        raise ValueError(f"{path} holds no words; write one a line")
    return list(words)


def mine_tokens(
    texts: Iterable[str], tokenizer: PreTrainedTokenizerFast, *, num_tokens: int, min_count: int
) -> list[str]:
    """Return the words whose addition shortens the texts most, best first.

    The gain of a word is its count times the pieces that it saves (all but one); a word with an unknown piece
    counts as split into its characters. Words are runs of letters and digits, with hyphens inside, in the
    tokenizer's own normal form; scripts without spaces have none.

    Args:
        texts: read once; the counts of their distinct words are held, so pass a sample of a large corpus.
        tokenizer: whose pieces are counted.
        num_tokens: at most so many words.
        min_count: rarer words are left out.

    Raises:
        ValueError: if a number is below 1.
    """
    if num_tokens < 1 or min_count < 1:
        raise ValueError(f"num_tokens={num_tokens} and min_count={min_count} must be at least 1")
    normalizer = tokenizer.backend_tokenizer.normalizer
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_WORD.findall(text if normalizer is None else normalizer.normalize_str(text)))
    frequent = (word for word, count in counts.items() if count >= min_count and not is_spaceless(word))
    gains: list[tuple[int, str]] = []
    while words := list(islice(frequent, _BLOCK_WORDS)):
        # A word in the middle of a text: the space before it belongs to the first piece of some vocabularies.
        tokens = tokenize_texts([f" {word}" for word in words], tokenizer, max_tokens=_LONGEST_WORD_TOKENS)
        for index, word in enumerate(words):
            ids = tokens.ids.row(index)
            num_pieces = len(word) if tokenizer.unk_token_id in ids else ids.shape[0]
            gains.append((counts[word] * (num_pieces - 1), word))
    useful = sorted((-gain, word) for gain, word in gains if gain > 0)
    return [word for _, word in useful[:num_tokens]]
