"""Vectors of real sentences for the index benchmark: text files in, one `.npy` out, kept for the next run.

Usage: python benchmarks/sentence_vectors.py TEXTS... --encoder FOLDER --rows 100000 --out vectors.npy

TEXTS are files or folders; `.txt`, `.txt.gz` hold one sentence per line, `.tsv`, `.tsv.gz` have a header and
the sentence in the column `sentence`. Sentences are made unique and taken in the order of a hash, so that the
first rows are a random sample of all and a larger run begins with the rows of a smaller one.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from tsdae_core.encoder import SentenceEncoder
from tsdae_core.pretrained import small_encoder_path

_BLOCK = 8_192


def sentences_below(places: list[Path]) -> list[str]:
    """All different sentences, in the order of a hash of their text."""
    files = [file for place in places for file in (sorted(place.iterdir()) if place.is_dir() else [place])]
    found = {text for file in files for text in _lines(file)}
    return sorted(found, key=lambda text: hashlib.blake2b(text.encode(), digest_size=8).digest())


def _lines(file: Path) -> Iterator[str]:
    name = file.name.removesuffix(".gz")
    if not name.endswith((".tsv", ".txt")) or name == "SOURCE.txt":
        return
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "rt", encoding="utf-8") as stream:
        column = next(stream).rstrip("\n").split("\t").index("sentence") if name.endswith(".tsv") else 0
        for line in stream:
            text = line.rstrip("\n").split("\t")[column] if name.endswith(".tsv") else line.rstrip("\n")
            if len(text) >= 10:
                yield text


def main() -> None:
    """Embeds in blocks into a memory-mapped file; a killed run is started again from its beginning."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument(
        "--encoder", default=None, help="a model folder; the shipped small encoder if left out"
    )
    parser.add_argument("--pooling", default=None, choices=["cls", "mean", "max"])
    parser.add_argument("--max-tokens", type=int, default=None)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    encoder = SentenceEncoder.load(
        options.encoder or small_encoder_path(), pooling=options.pooling, max_tokens=options.max_tokens
    )
    texts = sentences_below(options.texts)
    if len(texts) < options.rows:
        raise SystemExit(f"{len(texts):,} different sentences found, {options.rows:,} wanted")
    texts = texts[: options.rows]
    part = options.out.with_name(options.out.name + ".part.npy")
    vectors = np.lib.format.open_memmap(part, "w+", np.float32, (len(texts), encoder.dim))
    started_s = time.monotonic()
    for begin in range(0, len(texts), _BLOCK):
        block = texts[begin : begin + _BLOCK]
        vectors[begin : begin + len(block)] = encoder.encode(block, normalize=True)
        done = begin + len(block)
        print(f"{done:,} sentences, {done / (time.monotonic() - started_s):.0f}/s", flush=True)
    vectors.flush()
    part.rename(options.out)


if __name__ == "__main__":
    main()
