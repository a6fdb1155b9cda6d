"""Extend an encoder's vocabulary with words of the domain.

A new row starts as the mean of the pieces the word was split into before, so that vectors hardly move on the
first step. Knows nothing of where the words come from.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from tsdae_core.backbone import word_embeddings
from tsdae_core.encoder import SentenceEncoder


def add_tokens(encoder: SentenceEncoder, words: Sequence[str]) -> int:
    """Add words to tokenizer, embeddings and LM head, in place; return how many were new.

    Call it before an objective builds its model and its batches.

    Args:
        encoder: changed in place; its head keeps being tied to the longer table.
        words: whole words; those the vocabulary has already are skipped.

    Raises:
        ValueError: for a word without any piece, such as an empty one.
    """
    tokenizer = encoder.tokenizer
    known = tokenizer.get_vocab()
    fresh = [word for word in dict.fromkeys(words) if word not in known]
    pieces = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in fresh]
    for word, ids in zip(fresh, pieces, strict=True):
        if not ids:
            raise ValueError(f"{word!r} has no tokens, so it cannot be added")
    if not fresh:
        return 0
    tokenizer.add_tokens(fresh)
    places = [tokenizer.convert_tokens_to_ids(word) for word in fresh]
    table = word_embeddings(encoder.backbone).weight.detach().clone()
    size = max(table.shape[0], max(places) + 1)
    encoder.backbone.resize_token_embeddings(size, mean_resizing=False)  # type: ignore[operator]
    with torch.no_grad():
        rows = word_embeddings(encoder.backbone).weight
        for place, ids in zip(places, pieces, strict=True):
            rows[place] = table[ids].mean(0)
        if encoder.lm_head is not None:
            bias = encoder.lm_head.bias.new_zeros(size)
            bias[: encoder.lm_head.bias.shape[0]] = encoder.lm_head.bias
            for place, ids in zip(places, pieces, strict=True):
                bias[place] = encoder.lm_head.bias[ids].mean()
            encoder.lm_head.bias = nn.Parameter(bias)
    return len(fresh)
