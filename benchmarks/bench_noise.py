"""Noise and batching in id space beside the reference's input path: nltk, then two passes of the tokenizer.

Both sides turn batches of 32 raw or once-tokenised sentences into the ids of a training step, one thread.
nltk is needed for the reference's side only (`pip install nltk`); its word splitter is used without the
sentence splitter, whose model is a download.

    python benchmarks/bench_noise.py [--sentences FILE] [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import torch
from nltk.tokenize.destructive import NLTKWordTokenizer
from nltk.tokenize.treebank import TreebankWordDetokenizer
from step_setting import (
    MAX_TOKENS,
    add_corpus_argument,
    alternate,
    batch_of,
    build_tokenizer,
    median_ratio,
    read_sentences,
)
from transformers import PreTrainedTokenizerFast

from tsdae_core.batch import Batch
from tsdae_core.objective import build_objective, make_batches
from tsdae_core.packed import plan_packing
from tsdae_core.tokens import tokenize_texts

_NUM_SENTENCES = 20_000
_BATCH = 32
_NUM_BATCHES = 64
_DELETE_PROB = 0.6


def main() -> None:
    """Runs the comparison of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_corpus_argument(parser)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    texts = read_sentences(args.sentences, limit=_NUM_SENTENCES)
    tokenizer = build_tokenizer(texts)
    texts = texts[: _BATCH * _NUM_BATCHES]
    objective = build_objective("tsdae", tokenizer=tokenizer)
    tokens = tokenize_texts(texts, tokenizer, max_tokens=MAX_TOKENS)
    groups = [np.arange(i, i + _BATCH) for i in range(0, len(texts), _BATCH)]
    bounds, row_ids = np.arange(0, len(texts) + 1, _BATCH), np.arange(len(texts))

    def pack(batch: Batch) -> None:
        plan_packing(batch["source_lengths"], device=torch.device("cpu"))

    def ours() -> None:
        for batch in make_batches(objective, tokens, row_ids, bounds, seed=0, epoch=0):
            pack(batch)

    def one_by_one() -> None:
        for rows in groups:
            pack(batch_of(objective, tokens, rows))

    reference = _Reference(tokenizer)
    sides: dict[str, Callable[[], object]] = {
        "ours": ours,
        "ours, batch by batch": one_by_one,
        "ours, without the packing plan": lambda: make_batches(
            objective, tokens, row_ids, bounds, seed=0, epoch=0
        ),
        "reference": lambda: [reference.batch([texts[i] for i in rows]) for rows in groups],
        "tokenize once": lambda: tokenize_texts(texts, tokenizer, max_tokens=MAX_TOKENS),
    }
    seconds = alternate(sides, rounds=args.rounds)
    for name, values in seconds.items():
        print(f"{name}: {len(texts) / statistics.median(values):,.0f} sentences/s")
    for name in sides:
        if name.startswith("ours"):
            ratio = median_ratio(seconds["reference"], seconds[name])
            print(
                f"noise + ids to a packed batch of {_BATCH}, {name}: {ratio:.0f}x the reference's input path"
            )


class _Reference:
    """Deletes words of a string as sentence-transformers does, then tokenises both texts."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self.tokenizer = tokenizer
        self.words = NLTKWordTokenizer()
        self.detokenizer = TreebankWordDetokenizer()
        self.rng = np.random.default_rng(0)

    def batch(self, texts: Sequence[str]) -> None:
        """Makes the two padded inputs of one batch."""
        for side in ([self._damaged(text) for text in texts], list(texts)):
            self.tokenizer(side, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")

    def _damaged(self, text: str) -> str:
        words = self.words.tokenize(text)
        if not words:
            return text
        kept = self.rng.random(len(words)) > _DELETE_PROB
        if not kept.any():
            kept[self.rng.integers(len(words))] = True
        damaged: str = self.detokenizer.detokenize(np.array(words)[kept])
        return damaged


if __name__ == "__main__":
    main()
