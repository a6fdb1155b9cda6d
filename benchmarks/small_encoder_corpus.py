"""Write the general English text of the shipped small encoder as Parquet, one shuffled sentence per row.

Owns which texts are taken and why some are left out. Input is a folder with three subfolders: `debian_prose`
(sentences of Debian's documentation packages), `debian_packages` (sentences of package descriptions) and
`wordnet_glosses`. Python's own manual is left out: the quickstart adapts the encoder to Python documentation,
and its start must not have read that.

    python benchmarks/small_encoder_corpus.py DATA general.parquet
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_LEFT_OUT = frozenset({"python3.11-doc"})
_PROSE = "debian_prose/sentences.tsv.gz"
_PLAIN = (
    "debian_packages/sentences.txt.gz",
    "wordnet_glosses/definitions.txt.gz",
    "wordnet_glosses/examples.txt.gz",
)
_MIN_WORDS = 4
_SHUFFLE_SEED = 0


def read_sentences(data: Path) -> Iterator[tuple[str, str]]:
    """Yield (source, sentence) of every text, in the order of the files."""
    with gzip.open(data / _PROSE, "rt", encoding="utf-8") as lines:
        next(lines)
        for line in lines:
            source, _, sentence = line.rstrip("\n").partition("\t")
            if source not in _LEFT_OUT:
                yield source, sentence
    for name in _PLAIN:
        with gzip.open(data / name, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield name.partition("/")[0], line


def build_table(data: Path) -> pa.Table:
    """Return ``text`` and ``source``: unique sentences of at least four words, shuffled by a fixed seed."""
    seen: dict[str, str] = {}
    for source, sentence in read_sentences(data):
        text = sentence.strip()
        if len(text.split()) >= _MIN_WORDS:
            seen.setdefault(text, source)
    table = pa.table({"text": list(seen), "source": list(seen.values())})
    return table.take(np.random.default_rng(_SHUFFLE_SEED).permutation(table.num_rows))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="General text for the shipped small encoder.")
    parser.add_argument("data", type=Path, help="folder with debian_prose, debian_packages, wordnet_glosses")
    parser.add_argument("output", type=Path, help="Parquet file to write")
    args = parser.parse_args()
    table = build_table(args.data)
    pq.write_table(table, args.output)
    print(f"{table.num_rows:,} sentences in {args.output}")


if __name__ == "__main__":
    main()
