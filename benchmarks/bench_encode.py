"""`SentenceEncoder.encode` beside sentence-transformers' `encode`, one thread, the same weights and texts.

Prints the ratio of the medians of alternating rounds, the ratio against calls block by block (what a service
or a data pipeline does that passes on what it was handed), and the cosine of the two sides' vectors.

    python benchmarks/bench_encode.py [--sentences FILE] [--rounds 5] [--encoder FOLDER]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer
from step_setting import (
    Shape,
    add_corpus_argument,
    alternate,
    build_encoder,
    build_tokenizer,
    median_ratio,
    read_sentences,
)

from tsdae_core import int8
from tsdae_core.encoder import SentenceEncoder

_NUM_SENTENCES = 20_000
_NUM_ENCODED = 2_048
_BLOCK = 32


def main() -> None:
    """Runs the comparison of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_corpus_argument(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--encoder", help="a trained encoder of BERT's shape; without it a random 6 x 384")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    texts = read_sentences(args.sentences, limit=_NUM_SENTENCES)
    if args.encoder:
        ours = SentenceEncoder.load(args.encoder)
    else:
        ours = build_encoder(Shape(6, 384), build_tokenizer(texts))
    texts = texts[:_NUM_ENCODED]
    with tempfile.TemporaryDirectory() as folder:
        ours.save(folder)
        reference = SentenceTransformer(folder, device="cpu")
    vectors = ours.encode(texts)
    cosine = _cosine(vectors, np.asarray(reference.encode(texts)))
    blocks = [texts[i : i + _BLOCK] for i in range(0, len(texts), _BLOCK)]
    sides: dict[str, Callable[[], object]] = {
        "ours": lambda: ours.encode(texts),
        "reference": lambda: reference.encode(texts),
        "reference, block by block": lambda: [reference.encode(block) for block in blocks],
    }
    if has_int8 := int8.is_supported():
        sides["ours, int8"] = lambda: ours.encode(texts, precision="int8")
    seconds = alternate(sides, rounds=args.rounds)
    print(f"torch {torch.__version__}, one thread, {args.encoder or '6 x 384'}, {len(texts):,} sentences")
    for name in ("reference", "reference, block by block"):
        print(f"{median_ratio(seconds[name], seconds['ours']):.2f}x sentence-transformers ({name})")
    print(f"cosine of the two vectors of a text: at least {cosine.min():.6f}")
    if has_int8:
        cosine = _cosine(vectors, ours.encode(texts, precision="int8"))
        for name in ("reference", "ours"):
            print(f"int8: {median_ratio(seconds[name], seconds['ours, int8']):.2f}x {name}, float32")
        print(f"int8: cosine to float32 {cosine.mean():.4f} in the mean, at least {cosine.min():.4f}")


def _cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


if __name__ == "__main__":
    main()
