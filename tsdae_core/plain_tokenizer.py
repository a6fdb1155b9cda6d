"""A tokenizer for raw text: no truncation, no padding, and no special tokens in the text itself.

A text that holds ``[MASK]`` means those characters: as the special token it would hide a word from the
decoder, or begin a sentence in the middle of one. Words added to the vocabulary stay words. Knows nothing of
words, noise or models.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from tokenizers import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Copies made for `_without_specials`, with the size of the vocabulary they were made of.
_COPIES: WeakKeyDictionary[PreTrainedTokenizerFast, tuple[int, Tokenizer]] = WeakKeyDictionary()


def encode_plain(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[Any]:
    """Return one `tokenizers.Encoding` per text, without special tokens.

    Raises:
        ValueError: if the tokenizer is not a fast one.
    """
    with plain_core(tokenizer) as core:
        encodings: list[Any] = core.encode_batch(list(texts), add_special_tokens=False)
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    rows = [row for row, encoding in enumerate(encodings) if not special.isdisjoint(encoding.ids)]
    if rows:
        core = _without_specials(tokenizer)
        again = core.encode_batch([texts[row] for row in rows], add_special_tokens=False)
        for row, encoding in zip(rows, again, strict=True):
            encodings[row] = encoding
    return encodings


@contextmanager
def plain_core(tokenizer: PreTrainedTokenizerFast) -> Iterator[Any]:
    """Lend the tokenizer's Rust core, set for raw text, and put its settings back afterwards.

    Raises:
        ValueError: if the tokenizer is not a fast one.
    """
    core = getattr(tokenizer, "backend_tokenizer", None)
    if core is None:
        raise ValueError(
            f"{type(tokenizer).__name__} is not a fast tokenizer; load it with AutoTokenizer "
            "(use_fast=True) or convert it to tokenizer.json"
        )
    truncation, padding, splits = core.truncation, core.padding, core.encode_special_tokens
    core.encode_special_tokens = True
    if truncation is not None:
        core.no_truncation()
    if padding is not None:
        core.no_padding()
    try:
        yield core
    finally:
        core.encode_special_tokens = splits
        if truncation is not None:
            core.enable_truncation(**truncation)
        if padding is not None:
            core.enable_padding(**padding)


def _without_specials(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    """Return a copy of the core whose model cannot spell a special token.

    Unigram models (SentencePiece) hold ``<s>`` among their pieces and find it in a text by themselves.
    """
    size, copy = _COPIES.get(tokenizer, (-1, None))
    if size == len(tokenizer) and copy is not None:
        return copy
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    content["truncation"] = content["padding"] = None
    content["added_tokens"] = [token for token in content["added_tokens"] if not token["special"]]
    names = set(tokenizer.all_special_tokens) - {tokenizer.unk_token}
    vocab = content["model"]["vocab"]
    if isinstance(vocab, dict):
        content["model"]["vocab"] = {_hidden(name, names): index for name, index in vocab.items()}
    else:
        content["model"]["vocab"] = [[_hidden(name, names), score] for name, score in vocab]
    copy = Tokenizer.from_str(json.dumps(content))
    _COPIES[tokenizer] = (len(tokenizer), copy)
    return copy


def _hidden(name: str, names: set[str]) -> str:
    return f"\0{name}" if name in names else name
