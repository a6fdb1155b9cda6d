"""For a machine with a GPU: equality, step time, tokens/s, MFU, embedding rate, memory; under 5 minutes.

    python benchmarks/gpu.py [--sentences FILE] [--peak-tflops 989]

Without a GPU the same steps run on the CPU at toy size, which shows that the script works and nothing else.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import transformers
from step_setting import (
    OurStep,
    Shape,
    add_corpus_argument,
    build_encoder,
    build_tokenizer,
    make_batches,
    needed_gflop,
    read_sentences,
)

from tsdae_core.batch import Batch
from tsdae_core.encoder import SentenceEncoder

_NUM_SENTENCES = 50_000
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Size:
    """What is measured: the model, the batch sizes, how many steps are timed, how many texts embedded."""

    shape: Shape
    batch_sizes: tuple[int, ...]
    num_steps: int
    num_texts: int


_ON_GPU = Size(Shape(12, 768), (8, 64, 512), 30, 20_000)
_ON_CPU = Size(Shape(2, 48), (8,), 3, 200)


def main() -> None:
    """Runs every check of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_corpus_argument(parser)
    parser.add_argument("--peak-tflops", type=float, default=989.0, help="dense bf16 peak of the device")
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size = _ON_GPU if device.type == "cuda" else _ON_CPU
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU, toy size"
    print(f"torch {torch.__version__}, {name}")
    texts = read_sentences(args.sentences, limit=_NUM_SENTENCES)
    tokenizer = build_tokenizer(texts)
    _check_equality(texts, device)
    for batch_size in size.batch_sizes:
        encoder = build_encoder(size.shape, tokenizer).to(device)
        _time_steps(encoder, size, batch_size, texts, peak_tflops=args.peak_tflops)
    _time_encode(build_encoder(size.shape, tokenizer).to(device), texts[: size.num_texts])


def _check_equality(texts: list[str], device: torch.device) -> None:
    """Losses and gradient norms of the packed path equal those of the padded path, and the CPU's, in float32.

    Raises:
        SystemExit: they do not.
    """
    tokenizer = build_tokenizer(texts[:5_000])
    curves = {}
    for where, packed in (("cpu", True), (device.type, True), (device.type, False)):
        ours = OurStep(build_encoder(Shape(2, 48), tokenizer).to(where))
        ours.model.encoder.use_packed = packed
        batches = make_batches(ours.objective, texts, tokenizer, size=16, count=5)
        stats = [ours.step(batch) for batch in batches]
        name = f"{where}, {'packed' if packed else 'padded'}"
        curves[name] = [value for step in stats for value in (step.loss, step.grad_norm)]
    reference = np.array(next(iter(curves.values())))
    for name, values in curves.items():
        apart = float(np.abs(np.array(values) - reference).max())
        print(f"equality over 5 steps, {name}: {apart:.1e} from the CPU")
        if apart > _TOLERANCE:
            raise SystemExit(f"{name} differs from the CPU by {apart:.1e}, more than {_TOLERANCE}")


def _time_steps(
    encoder: SentenceEncoder, size: Size, batch_size: int, texts: list[str], *, peak_tflops: float
) -> None:
    ours = OurStep(encoder)
    batches = make_batches(ours.objective, texts, encoder.tokenizer, size=batch_size, count=size.num_steps)
    for precision, dtype in (("float32", None), ("bfloat16", torch.bfloat16)):
        _reset_peak(encoder.device)
        for batch in batches[:3]:
            ours.step(batch, autocast_dtype=dtype)
        seconds = _seconds(
            encoder.device, lambda dtype=dtype: [ours.step(b, autocast_dtype=dtype) for b in batches]
        )
        per_step = seconds / len(batches)
        gflop = sum(needed_gflop(size.shape, b, vocab_size=len(encoder.tokenizer)) for b in batches)
        tokens = sum(_num_tokens(batch) for batch in batches)
        print(
            f"{size.shape.name}, batch {batch_size}, {precision}: {per_step * 1e3:.1f} ms a step, "
            f"{tokens / seconds:,.0f} tokens/s, MFU {gflop / seconds / 1e3 / peak_tflops:.1%}"
            f"{_peak_note(encoder.device)}"
        )


def _time_encode(encoder: SentenceEncoder, texts: list[str]) -> None:
    encoder.encode(texts[:64])
    seconds = _seconds(encoder.device, lambda: encoder.encode(texts, batch_tokens=65_536))
    print(f"encode: {len(texts) / seconds:,.0f} sentences/s, texts to vectors")


def _seconds(device: torch.device, call: Callable[[], object]) -> float:
    _wait(device)
    begin = time.perf_counter()
    call()
    _wait(device)
    return time.perf_counter() - begin


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()


def _peak_note(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    return f", peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"


def _num_tokens(batch: Batch) -> int:
    return int(batch["source_lengths"].sum() + batch["target_lengths"].sum())


if __name__ == "__main__":
    main()
