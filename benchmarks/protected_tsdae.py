"""Does TSDAE hurt an encoder that is tuned already, and does the protected objective prevent it?

Trains from one tuned encoder with plain TSDAE and with protections on the same batches, and prints average
precision (x100) on the two Twitter paraphrase tests and Spearman (x100) on STSb before and after.

    python benchmarks/protected_tsdae.py ENCODER TWITTERPARA_FOLDER STSB_FOLDER --steps 300
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score

from tsdae_core.encoder import SentenceEncoder
from tsdae_core.hashing import keyed_permutation
from tsdae_core.objective import ObjectiveConfig, build_objective
from tsdae_core.optim import OptimConfig, build_optimizer
from tsdae_core.protected import ProtectedConfig
from tsdae_core.step import seed_step, training_step
from tsdae_core.tokens import tokenize_texts
from tsdae_core.tsdae import TsdaeConfig

Pairs = list[tuple[str, str, float]]
VARIANTS: dict[str, tuple[str, ObjectiveConfig]] = {
    "plain": ("tsdae", TsdaeConfig()),
    "similarity-10": ("protected", ProtectedConfig(keep="similarity", weight=10.0)),
    "similarity-100": ("protected", ProtectedConfig(keep="similarity", weight=100.0)),
    "similarity-1000": ("protected", ProtectedConfig(keep="similarity", weight=1000.0)),
    "vector-10": ("protected", ProtectedConfig(keep="vector", weight=10.0)),
    "vector-100": ("protected", ProtectedConfig(keep="vector", weight=100.0)),
    "both-100": ("protected", ProtectedConfig(keep="both", weight=100.0)),
    "both-1000": ("protected", ProtectedConfig(keep="both", weight=1000.0)),
    "vector-1000": ("protected", ProtectedConfig(keep="vector", weight=1000.0)),
}


def lines(path: Path) -> list[list[str]]:
    """Return the fields of a gzipped file of tab-separated lines, without its header where it has one."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        rows = [line.rstrip("\n").split("\t") for line in stream]
    return rows[1:] if len(rows[0]) > 1 else rows


def read_tests(twitter: Path, stsb: Path) -> dict[str, Pairs]:
    """Return the pairs of each test; labels of the first two are 0 and 1, debatable pairs left out."""
    url = [(a, b, float(votes)) for votes, a, b, *_ in lines(twitter / "turl_test.tsv.gz")]
    pit = [(a, b, float(label)) for _, _, label, a, b in lines(twitter / "pit_test.tsv.gz")]
    tests = {
        name: [(a, b, float(label > 3)) for a, b, label in rows if label != 3]
        for name, rows in (("turl", url), ("pit", pit))
    }
    return tests | {"stsb": [(row[4], row[5], float(row[3])) for row in lines(stsb / "test.tsv.gz")]}


def scores(encoder: SentenceEncoder, tests: dict[str, Pairs]) -> dict[str, float]:
    """Return average precision or Spearman of the cosine, x100."""
    found = {}
    for name, pairs in tests.items():
        left, right, labels = zip(*pairs, strict=True)
        a, b = (encoder.encode(side, normalize=True) for side in (left, right))
        cosine = (a * b).sum(1)
        value = spearmanr(cosine, labels)[0] if name == "stsb" else average_precision_score(labels, cosine)
        found[name] = 100 * float(value)
    return found


def main() -> None:
    """Parse arguments, train every variant, print a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("encoder")
    parser.add_argument("twitter", type=Path)
    parser.add_argument("stsb", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=10_000, help="of each test, drawn by a keyed order")
    parser.add_argument("--lr", type=float, default=3e-5)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), choices=list(VARIANTS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    tests = {
        name: [pairs[row] for row in keyed_permutation(len(pairs), 1)[: options.pairs]]
        for name, pairs in read_tests(options.twitter, options.stsb).items()
    }
    sentences = [row[0] for row in lines(options.twitter / "train_unlabelled.txt.gz")]
    print("start", scores(SentenceEncoder.load(options.encoder), tests), flush=True)
    for name in options.variants:
        encoder = SentenceEncoder.load(options.encoder, max_tokens=75)
        last = train(encoder, sentences, VARIANTS[name], options)
        print(name, f"loss {last:.3f}", scores(encoder, tests), flush=True)


def train(
    encoder: SentenceEncoder,
    sentences: list[str],
    variant: tuple[str, ObjectiveConfig],
    options: argparse.Namespace,
) -> float:
    """Run the steps on the same batches for every variant; return the mean loss of the last 50."""
    name, config = variant
    objective = build_objective(name, tokenizer=encoder.tokenizer, config=config)
    model = objective.build_model(encoder, seed=0).train()
    optimizer = build_optimizer(model, OptimConfig(lr=options.lr))
    order = keyed_permutation(len(sentences), 0)
    found = []
    for step in range(options.steps):
        rows = np.take(order, np.arange(options.batch_size) + step * options.batch_size, mode="wrap")
        tokens = tokenize_texts([sentences[row] for row in rows], encoder.tokenizer, max_tokens=75)
        batch = objective.make_batch(tokens, rows, seed=0, epoch=0)
        seed_step(0, step, 0)
        count = objective.num_targets(batch)
        stats = training_step(model, batch, optimizer, global_num_targets=count, max_grad_norm=1.0)
        found.append(stats.loss)
    return float(np.mean(found[-50:]))


if __name__ == "__main__":
    main()
