"""A TSDAE training step beside sentence-transformers' on the same ids and weights, one thread.

Prints, for each shape and batch size, the ratio of the medians of alternating rounds, the share of this
machine's matrix product rate that our step reaches on the operations it needs, and, at batch 32, the ratio
against the reference given batches of like lengths. `--memory` measures the memory a step adds, each side in
a process of its own.

    python benchmarks/bench_train_step.py [--sentences FILE] [--rounds 7] [--memory]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence

import torch
import transformers
from bench_prepare import peak_mib
from step_setting import (
    MatrixProducts,
    OurStep,
    ReferenceStep,
    Shape,
    add_corpus_argument,
    alternate,
    bucketed_batches,
    build_encoder,
    build_tokenizer,
    make_batches,
    median_ratio,
    needed_gflop,
    read_sentences,
)
from transformers import PreTrainedTokenizerFast

from tsdae_core.batch import Batch

_SMALL = Shape(6, 384)
_BASE = Shape(12, 768)
# shape, batch size, batches per round
_CASES = ((_SMALL, 8, 8), (_SMALL, 32, 4), (_SMALL, 128, 2), (_BASE, 8, 2))
_MEMORY_CASES = ((_SMALL, 32), (_SMALL, 128))
_NUM_SENTENCES = 100_000


def main() -> None:
    """Runs the cases of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_corpus_argument(parser)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--memory", action="store_true", help="also the memory that a step adds")
    parser.add_argument("--measure-memory-of", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    texts = read_sentences(args.sentences, limit=_NUM_SENTENCES)
    tokenizer = build_tokenizer(texts)
    if args.measure_memory_of:
        print(_added_mib(json.loads(args.measure_memory_of), texts, tokenizer))
        return
    print(f"torch {torch.__version__}, one thread, a vocabulary of {tokenizer.vocab_size}")
    for shape, size, count in _CASES:
        _compare(shape, size, count, texts, tokenizer, rounds=args.rounds)
    if args.memory:
        for shape, size in _MEMORY_CASES:
            _compare_memory(shape, size, sys.argv[1:])


def _compare(
    shape: Shape,
    size: int,
    count: int,
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerFast,
    *,
    rounds: int,
) -> None:
    ours = OurStep(build_encoder(shape, tokenizer))
    reference = ReferenceStep(ours)
    batches = make_batches(ours.objective, texts, tokenizer, size=size, count=count)
    apart = abs(ours.step(batches[0]).loss - reference.step(batches[0]))
    products = MatrixProducts(count=20)
    sides: dict[str, Callable[[], object]] = {
        "ours": lambda: [ours.step(batch) for batch in batches],
        "reference": lambda: [reference.step(batch) for batch in batches],
        "sgemm": products.run,
    }
    seconds = alternate(sides, rounds=rounds)
    ratio = median_ratio(seconds["reference"], seconds["ours"])
    gflop = sum(needed_gflop(shape, batch, vocab_size=len(tokenizer)) for batch in batches)
    share = gflop / products.gflop * median_ratio(seconds["sgemm"], seconds["ours"])
    num_pieces = sum(int(batch["target_lengths"].sum()) for batch in batches) / (size * count)
    print(
        f"{shape.name}, batch {size}: {ratio:.2f}x the reference, {share:.0%} of sgemm "
        f"({num_pieces:.0f} pieces a sentence, first losses {apart:.1e} apart)"
    )
    if size == 32:
        sorted_batches = bucketed_batches(ours.objective, texts, tokenizer, size=size, count=32)[::8]
        _compare_bucketed(ours, reference, sorted_batches, rounds=rounds)


def _compare_bucketed(
    ours: OurStep, reference: ReferenceStep, batches: Sequence[Batch], *, rounds: int
) -> None:
    """Both sides on length-sorted batches: what is left of the ratio once the reference pads little."""
    sides: dict[str, Callable[[], object]] = {
        "ours": lambda: [ours.step(batch) for batch in batches],
        "reference": lambda: [reference.step(batch) for batch in batches],
    }
    seconds = alternate(sides, rounds=rounds)
    ratio = median_ratio(seconds["reference"], seconds["ours"])
    print(f"  the same with batches of like lengths for both: {ratio:.2f}x")


def _compare_memory(shape: Shape, size: int, arguments: Sequence[str]) -> None:
    added = {}
    for side in ("ours", "reference"):
        case = json.dumps({"shape": [shape.num_layers, shape.hidden_size], "size": size, "side": side})
        command = [sys.executable, __file__, *arguments, "--measure-memory-of", case]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        added[side] = float(done.stdout.split()[-1])
    print(
        f"{shape.name}, batch {size}: a step adds {added['ours']:.0f} MiB, the reference's "
        f"{added['reference']:.0f} MiB ({added['ours'] / added['reference']:.2f}x)"
    )


def _added_mib(case: dict[str, object], texts: Sequence[str], tokenizer: PreTrainedTokenizerFast) -> float:
    """Returns how far steps raise the process's peak memory above what model and optimizer state take."""
    layers, width = case["shape"]  # type: ignore[misc]
    ours = OurStep(build_encoder(Shape(layers, width), tokenizer))
    side = ours if case["side"] == "ours" else ReferenceStep(ours)
    tiny = make_batches(ours.objective, ["one two three"], tokenizer, size=1, count=1)[0]
    side.step(tiny)  # makes gradients and optimizer state
    batches = make_batches(ours.objective, texts, tokenizer, size=int(str(case["size"])), count=4)
    before = peak_mib()
    for batch in batches:
        side.step(batch)
    return peak_mib() - before


if __name__ == "__main__":
    main()
