"""Bytes, core-hours, GPU-hours and driver memory of every stage at 10^7, 10^8 and 10^9 sentences.

Measures this machine's rates in CPU seconds of one core (a minute or two), then multiplies; `--rates` takes
rates measured before instead, and `--write` keeps them. The rate of prepare is the slope between two corpus
sizes, so that fixed seconds do not count. GPU-hours are arithmetic from the operations of a
step and a stated utilisation, not a measurement.

    python benchmarks/bench_scale.py [--write rates.json]
    python benchmarks/bench_scale.py --rates docs/scale_rates.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from indexing.plan import IndexConfig, IndexPlan, plan_index

T = TypeVar("T")
SIZES = (10**7, 10**8, 10**9)
_WORDS_PER_SENTENCE = 16
_PREPARE_ROWS = (40_000, 240_000)
_ENCODE_ROWS = 2_000
_TRAIN_STEPS = 6
_BATCH = 32
_INDEX_ROWS = 20_000
_INDEX_FACTORY = "IVF512,PQ192x4fs,Refine(SQfp16)"  # what `auto` takes beyond 200,000 rows, with fewer lists
_INDEX_LISTS = 512
_DIM = 384
_LAYERS = 6
_VOCAB = 30_522
_PAPER_SENTENCES = 800_000  # 100,000 steps of 8
_SHARD_BYTES = 64 << 20
# A shard's record on the driver (name, digest, counts) as Python objects, and its place in the manifest.
_RECORD_BYTES = 2_000


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What was measured, on one core. Rows are sentences; sizes are bytes per sentence on disk."""

    machine: str
    tokens_per_sentence: float
    prepare_rows_per_s: float
    tokenize_rows_per_s: float
    noise_rows_per_s: float
    train_sentences_per_s: float
    encode_sentences_per_s: float
    index_train_s: float
    index_add_rows_per_s: float
    input_bytes: float
    corpus_bytes: float
    tokens_bytes: float
    vectors_bytes: float


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One accelerator as assumed: dense bfloat16 peak, and the shares of it in training and encoding."""

    peak_tflops: float
    train_share: float
    encode_share: float


# An A100, and shares of its peak that public reports give for training and encoding with larger models.
DEFAULT_GPU = Gpu(peak_tflops=312.0, train_share=0.42, encode_share=0.30)


@dataclass(frozen=True, kw_only=True)
class Prices:
    """What a user pays, in any one currency: per hour of a core and of a GPU, per GB stored for a month."""

    core_hour: float
    gpu_hour: float
    gb_month: float


# Round numbers of the order that large providers list for rented machines; nobody's offer.
DEFAULT_PRICES = Prices(core_hour=0.05, gpu_hour=3.0, gb_month=0.025)


def main() -> None:
    """Measures or reads rates, prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", type=Path, help="rates measured before, instead of measuring")
    parser.add_argument("--write", type=Path, help="where to keep the measured rates")
    for option, default, told in (
        ("--gpu-tflops", DEFAULT_GPU.peak_tflops, "dense bfloat16 peak"),
        ("--train-share", DEFAULT_GPU.train_share, "share of it that training reaches"),
        ("--encode-share", DEFAULT_GPU.encode_share, "share of it that encoding reaches"),
    ):
        parser.add_argument(option, type=float, default=default, help=told)
    for name, value in asdict(DEFAULT_PRICES).items():
        parser.add_argument(f"--{name.replace('_', '-')}-price", type=float, default=value)
    args = parser.parse_args()
    rates = read_rates(args.rates) if args.rates else measure()
    if args.write:
        args.write.write_text(json.dumps(asdict(rates), indent=2, sort_keys=True) + "\n", encoding="utf-8")
    gpu = Gpu(peak_tflops=args.gpu_tflops, train_share=args.train_share, encode_share=args.encode_share)
    prices = {name: getattr(args, f"{name}_price") for name in asdict(DEFAULT_PRICES)}
    print(render(rates, gpu, Prices(**prices)))


def read_rates(path: Path) -> Rates:
    """Rates that `--write` kept."""
    return Rates(**json.loads(path.read_text(encoding="utf-8")))


def render(rates: Rates, gpu: Gpu, prices: Prices) -> str:
    """The measured rates and the table as Markdown; equal input gives equal text."""
    lines = ["| measured on one core | value |", "|---|---|"]
    for field in fields(Rates):
        value = getattr(rates, field.name)
        lines.append(f"| {field.name} | {value if isinstance(value, str) else _number(value)} |")
    lines += [
        "",
        "| stage | rows | written | core-hours | GPU-hours | driver memory | price, CPUs | GPUs | a month |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for num_rows in SIZES:
        for stage, written, cores, gpus, driver in _stages(rates, gpu, num_rows):
            gpu_text = "-" if gpus is None else _number(gpus)
            gpu_price = "-" if gpus is None else _number(gpus * prices.gpu_hour)
            lines.append(
                f"| {stage} | 10^{round(np.log10(num_rows))} | {_bytes(written)} | {_number(cores)} "
                f"| {gpu_text} | {_bytes(driver)} | {_number(cores * prices.core_hour)} | {gpu_price} "
                f"| {_number(written / 1e9 * prices.gb_month)} |"
            )
    return "\n".join(lines)


def _stages(rates: Rates, gpu: Gpu, num_rows: int) -> list[tuple[str, float, float, float | None, float]]:
    """(stage, bytes written, core-hours, GPU-hours or None, driver bytes)."""
    shards = max(8, 2 ** int(np.ceil(np.log2(max(1.0, num_rows * rates.input_bytes / _SHARD_BYTES)))))
    driver = shards * _RECORD_BYTES

    def hours(rows_per_s: float, rows: float = num_rows) -> float:
        return rows / rows_per_s / 3600

    train_gpu = _train_flops(rates) / (gpu.peak_tflops * 1e12 * gpu.train_share)
    encode_gpu = _encode_flops(rates) / (gpu.peak_tflops * 1e12 * gpu.encode_share)
    # Two are kept: weights and two moments, the decoder's modules on top.
    checkpoint = 2 * 4 * 3 * 1.5 * _parameters()
    return [
        # Bytes of prepare: the exchange files, removed at its end, and the corpus.
        ("prepare", 2 * num_rows * rates.corpus_bytes, hours(rates.prepare_rows_per_s), None, 3 * driver),
        ("tokenize", num_rows * rates.tokens_bytes, hours(rates.tokenize_rows_per_s), None, driver),
        (
            "train, the paper's 800,000 sentences",
            checkpoint,
            hours(rates.train_sentences_per_s, _PAPER_SENTENCES),
            _PAPER_SENTENCES * train_gpu / 3600,
            driver,
        ),
        (
            "train, one pass",
            checkpoint,
            hours(rates.train_sentences_per_s) + hours(rates.noise_rows_per_s),
            num_rows * train_gpu / 3600,
            driver,
        ),
        (
            "embed",
            num_rows * rates.vectors_bytes,
            hours(rates.encode_sentences_per_s),
            num_rows * encode_gpu / 3600,
            driver,
        ),
        (
            "index",
            num_rows * _plan(num_rows).bytes_per_vector,
            _index_train_hours(rates, num_rows) + hours(rates.index_add_rows_per_s * _list_share(num_rows)),
            None,
            driver,
        ),
    ]


def _plan(num_rows: int) -> IndexPlan:
    """What `index.factory: auto` takes."""
    return plan_index(num_rows, _DIM, IndexConfig())


def _index_train_hours(rates: Rates, num_rows: int) -> float:
    """k-means costs sample x lists, and the sample is proportional to the lists."""
    return rates.index_train_s * (_plan(num_rows).nlist / _INDEX_LISTS) ** 2 / 3600


def _list_share(num_rows: int) -> float:
    """Adding a vector is dominated by finding its list: by the number of lists, or by a graph beyond 10^7."""
    lists = _plan(num_rows).nlist
    if num_rows > 10**7:
        return _INDEX_LISTS / (64 * np.log2(lists))  # a graph looks at some tens of lists per level
    return _INDEX_LISTS / lists


def _parameters() -> int:
    return _VOCAB * _DIM + _LAYERS * 12 * _DIM**2


def _encode_flops(rates: Rates) -> float:
    return 2 * _LAYERS * 12 * _DIM**2 * (rates.tokens_per_sentence + 2)


def _train_flops(rates: Rates) -> float:
    """Forward and backward of a step, per sentence: 40 % of the tokens encoded, all decoded and predicted."""
    tokens = rates.tokens_per_sentence
    body = 2 * _LAYERS * 12 * _DIM**2 * (0.4 * tokens + 2 + tokens + 1)
    return 3 * (body + 2 * _VOCAB * _DIM * (tokens + 1))


def measure() -> Rates:
    """All rates of this machine, one thread."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch

    torch.set_num_threads(1)
    texts = make_sentences(max(_PREPARE_ROWS))
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as folder:
        prepare_rate, input_bytes, corpus_bytes = _measure_prepare(Path(folder), texts)
        rows = texts[:20_000]
        return Rates(
            machine=f"{platform.processor() or platform.machine()}, Python {platform.python_version()}",
            prepare_rows_per_s=prepare_rate,
            input_bytes=input_bytes,
            corpus_bytes=corpus_bytes,
            **_measure_learning(Path(folder), rows),
            **_measure_index(Path(folder)),
        )


def make_sentences(count: int) -> list[str]:
    """Different sentences of about 16 words; word frequencies fall as in real text."""
    rng = np.random.default_rng(0)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    vocabulary = np.array(
        ["".join(rng.choice(syllables, size=int(size))) for size in rng.integers(1, 5, size=30_000)]
    )
    weights = 1.0 / np.arange(10, len(vocabulary) + 10)
    lengths = rng.poisson(_WORDS_PER_SENTENCE - 4, size=count) + 4
    words = rng.choice(vocabulary, size=int(lengths.sum()), p=weights / weights.sum())
    ends = np.cumsum(lengths)
    return [" ".join(words[end - size : end]) for end, size in zip(ends, lengths, strict=True)]


def _measure_prepare(folder: Path, texts: list[str]) -> tuple[float, float, float]:
    """Rows per second of the stage's tasks on one core, and bytes per row before and after.

    The tasks run here, one after the other: what Ray adds is a fixed cost per task of 64 MiB.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    from rich.console import Console

    import pipelines.prepare
    from pipelines.collection_config import CollectionConfig
    from pipelines.progress import Reporter
    from pipelines.storage import Location

    pipelines.prepare.run_shards = _run_here
    quiet = Reporter(Console(file=(folder / "log").open("w"), force_terminal=False))
    seconds, sizes = [], (0, 0)
    for count in _PREPARE_ROWS:
        source, workspace = folder / f"in-{count}.parquet", folder / f"work-{count}"
        pq.write_table(pa.table({"text": texts[:count]}), source)
        config = CollectionConfig(input=str(source), num_shards=2)
        _, spent = _timed(
            lambda at=workspace, of=config: pipelines.prepare.prepare(
                "corpus", of, Location.parse(at), reporter=quiet
            )
        )
        seconds.append(spent)
        written = sum(path.stat().st_size for path in (workspace / "corpus").glob("part-*.parquet"))
        sizes = (source.stat().st_size, written)
    small, large = _PREPARE_ROWS
    rate = (large - small) / (seconds[1] - seconds[0])
    return rate, sizes[0] / large, sizes[1] / large


def _run_here(_stage: Any, _group: str, items: Any, work: Any, **_: object) -> list[Any]:
    """What `run_shards` gives, without Ray."""
    function = work()
    return [function(name, items[name]) for name in sorted(items)]


def _measure_learning(folder: Path, texts: list[str]) -> dict[str, float]:
    """Tokens, noise, training and encoding with a random 6 x 384 encoder of BERT's vocabulary."""
    from pyarrow.parquet import write_table

    from pipelines.token_tables import to_table
    from tsdae_core.objective import build_objective
    from tsdae_core.optim import OptimConfig, build_optimizer
    from tsdae_core.scratch import ScratchConfig, build_scratch_encoder, train_tokenizer
    from tsdae_core.step import training_step
    from tsdae_core.tokens import tokenize_texts

    tokenizer = train_tokenizer(texts, vocab_size=_VOCAB)
    shape = ScratchConfig(
        num_layers=_LAYERS,
        hidden_size=_DIM,
        num_heads=12,
        intermediate_size=4 * _DIM,
        max_tokens=128,
        dropout=0.0,
    )
    encoder = build_scratch_encoder(shape, tokenizer, pooling="cls", seed=0)
    tokens, tokenize_s = _timed(lambda: tokenize_texts(texts, tokenizer, max_tokens=75))
    row_ids = np.arange(len(texts), dtype=np.int64)
    write_table(to_table(row_ids, tokens), folder / "tokens.parquet", compression="zstd")
    objective = build_objective("tsdae", tokenizer=tokenizer)
    model = objective.build_model(encoder, seed=0).train()
    optim = OptimConfig(lr=1e-4)
    optimizer = build_optimizer(model, optim)
    picks = [np.arange(i * _BATCH, (i + 1) * _BATCH) for i in range(_TRAIN_STEPS + 1)]
    chunk = np.arange(2_048)
    _, noise_s = _timed(lambda: objective.make_batch(tokens.take(chunk), row_ids[chunk], seed=0, epoch=0))
    batches = [objective.make_batch(tokens.take(pick), row_ids[pick], seed=0, epoch=0) for pick in picks]

    def train(number: int) -> None:
        batch = batches[number]
        training_step(
            model, batch, optimizer, global_num_targets=objective.num_targets(batch), max_grad_norm=1.0
        )

    train(_TRAIN_STEPS)  # makes optimizer state
    _, train_s = _timed(lambda: [train(i) for i in range(_TRAIN_STEPS)])
    model.eval()
    encoder.encode(texts[:64])
    _, encode_s = _timed(lambda: encoder.encode(texts[:_ENCODE_ROWS]))
    return {
        "tokens_per_sentence": len(tokens.ids.values) / len(texts),
        "tokenize_rows_per_s": len(texts) / tokenize_s,
        "noise_rows_per_s": len(chunk) / noise_s,
        "train_sentences_per_s": _TRAIN_STEPS * _BATCH / train_s,
        "encode_sentences_per_s": _ENCODE_ROWS / encode_s,
        "tokens_bytes": (folder / "tokens.parquet").stat().st_size / len(texts),
    }


def _measure_index(folder: Path) -> dict[str, float]:
    """Training and filling the index type that a large corpus gets, with few lists."""
    import faiss

    from indexing.build import add_vectors, train_index
    from indexing.vectors import write_vectors
    from pipelines.storage import Location

    faiss.omp_set_num_threads(1)
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((_INDEX_ROWS, _DIM)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    place = Location.parse(folder / "vectors.parquet")
    row_ids = np.arange(_INDEX_ROWS, dtype=np.int64)
    write_vectors(place.filesystem, place.path, row_ids, vectors, dtype="float16")
    plan = plan_index(_INDEX_ROWS, _DIM, IndexConfig(factory=_INDEX_FACTORY))
    sample = vectors[: min(_INDEX_ROWS, plan.num_train_vectors)]
    index, train_s = _timed(lambda: train_index(sample, plan))
    _, add_s = _timed(lambda: add_vectors(index, row_ids, vectors))
    return {
        "vectors_bytes": place.local_path.stat().st_size / _INDEX_ROWS,
        "index_train_s": train_s,
        "index_add_rows_per_s": _INDEX_ROWS / add_s,
    }


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    started = time.process_time()  # not wall time: other work on the machine does not count
    result = work()
    return result, time.process_time() - started


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _bytes(value: float) -> str:
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            return f"{value:.3g} {unit}"
        value /= 1000
    raise AssertionError


if __name__ == "__main__":
    sys.exit(main())
