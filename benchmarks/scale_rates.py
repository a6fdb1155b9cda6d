"""The rates behind docs/scale.md, measured here in CPU seconds of one core.

Owns what is measured and its names. Must not know what is computed from it.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
DIM = 384
LAYERS = 6
VOCAB = 30_522
BATCH = 32
# Of the graph whose searching and growing is measured, as many as lists are at ten million rows.
GRAPH_LISTS = 16_384
_WORDS_PER_SENTENCE = 16
_PREPARE_ROWS = (40_000, 240_000)
_ENCODE_ROWS = 2_000
_TRAIN_STEPS = 6


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What was measured, on one core. Rows are sentences, `..._bytes` are on disk and per sentence.

    Of memory are lookup_words_memory_bytes, per sentence, and of the driver record_bytes, per shard's record,
    and input_file_bytes. comparisons are of a row with a centroid, scores of a query with a row.
    """

    machine: str
    tokens_per_sentence: float
    prepare_rows_per_s: float
    tokenize_rows_per_s: float
    noise_rows_per_s: float
    train_sentences_per_s: float
    encode_sentences_per_s: float
    comparisons_per_s: float
    graph_rows_per_s: float
    graph_grow_rows_per_s: float
    codes_train_s: float
    codes_add_rows_per_s: float
    vectors_read_rows_per_s: float
    exact_scores_per_s: float
    lookup_texts_rows_per_s: float
    lookup_words_rows_per_s: float
    input_bytes: float
    corpus_bytes: float
    tokens_bytes: float
    vectors_bytes: float
    lookup_texts_bytes: float
    lookup_words_bytes: float
    lookup_words_memory_bytes: float
    record_bytes: float
    input_file_bytes: float


def read_rates(path: Path) -> Rates:
    """Rates that `bench_scale.py --write` kept."""
    return Rates(**json.loads(path.read_text(encoding="utf-8")))


def measure() -> Rates:
    """All rates of this machine, one thread."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch
    from scale_driver import measure_driver
    from scale_search import measure_index, measure_lookup

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
            **measure_index(Path(folder)),
            **measure_lookup(Path(folder), rows),
            **measure_driver(),
        )


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """The result and the CPU seconds it took: other work on the machine does not count."""
    started = time.process_time()
    result = work()
    return result, time.process_time() - started


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
        _, spent = timed(
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

    tokenizer = train_tokenizer(texts, vocab_size=VOCAB)
    shape = ScratchConfig(
        num_layers=LAYERS,
        hidden_size=DIM,
        num_heads=12,
        intermediate_size=4 * DIM,
        max_tokens=128,
        dropout=0.0,
    )
    encoder = build_scratch_encoder(shape, tokenizer, pooling="cls", seed=0)
    tokens, tokenize_s = timed(lambda: tokenize_texts(texts, tokenizer, max_tokens=75))
    row_ids = np.arange(len(texts), dtype=np.int64)
    write_table(to_table(row_ids, tokens), folder / "tokens.parquet", compression="zstd")
    objective = build_objective("tsdae", tokenizer=tokenizer)
    model = objective.build_model(encoder, seed=0).train()
    optim = OptimConfig(lr=1e-4)
    optimizer = build_optimizer(model, optim)
    picks = [np.arange(i * BATCH, (i + 1) * BATCH) for i in range(_TRAIN_STEPS + 1)]
    chunk = np.arange(2_048)
    _, noise_s = timed(lambda: objective.make_batch(tokens.take(chunk), row_ids[chunk], seed=0, epoch=0))
    batches = [objective.make_batch(tokens.take(pick), row_ids[pick], seed=0, epoch=0) for pick in picks]

    def train(number: int) -> None:
        batch = batches[number]
        training_step(
            model, batch, optimizer, global_num_targets=objective.num_targets(batch), max_grad_norm=1.0
        )

    train(_TRAIN_STEPS)  # makes optimizer state
    _, train_s = timed(lambda: [train(i) for i in range(_TRAIN_STEPS)])
    model.eval()
    encoder.encode(texts[:64])
    _, encode_s = timed(lambda: encoder.encode(texts[:_ENCODE_ROWS]))
    return {
        "tokens_per_sentence": len(tokens.ids.values) / len(texts),
        "tokenize_rows_per_s": len(texts) / tokenize_s,
        "noise_rows_per_s": len(chunk) / noise_s,
        "train_sentences_per_s": _TRAIN_STEPS * BATCH / train_s,
        "encode_sentences_per_s": _ENCODE_ROWS / encode_s,
        "tokens_bytes": (folder / "tokens.parquet").stat().st_size / len(texts),
    }
