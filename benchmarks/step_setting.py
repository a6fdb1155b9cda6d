"""What the step benchmarks share: real sentences, a BERT of a given shape, our step and the reference's.

Both sides start from the same weights and see the same token ids, so that their losses are equal; a benchmark
prints that difference beside its ratios. The reference is sentence-transformers' TSDAE loss driven as its
trainer drives it: padded batches, gradient clipping, fused AdamW.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from pipelines.docs_corpus import write_docs_corpus
from tsdae_core.batch import Batch
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.hashing import keyed_permutation
from tsdae_core.objective import Objective, build_objective
from tsdae_core.optim import OptimConfig, build_optimizer
from tsdae_core.scratch import ScratchConfig, build_scratch_encoder, train_tokenizer
from tsdae_core.step import StepStats, training_step
from tsdae_core.tokens import TokenizedTexts, tokenize_texts
from tsdae_core.tsdae_model import TsdaeModel

MAX_TOKENS = 75
_TOKENIZER_SENTENCES = 100_000
_OPTIM = OptimConfig(lr=3e-5)
_MATRIX_SIZE = 1536


def add_corpus_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --sentences: Parquet with a `text` column."""
    parser.add_argument(
        "--sentences",
        type=Path,
        help="Parquet file or folder with a column `text`; without it the docstrings of installed packages",
    )


def read_sentences(place: Path | None, *, limit: int) -> list[str]:
    """Returns `limit` sentences in a keyed order; without a place, of the quickstart's corpus."""
    if place is None:
        place = Path("work/docs-corpus")
        write_docs_corpus(place, num_queries=1000, seed=0, max_documents=10_000)
        place = place / "sentences"
    texts: list[str] = pq.read_table(place, columns=["text"]).column("text").to_pylist()
    return [texts[i] for i in keyed_permutation(len(texts), 0)[:limit].tolist()]


@dataclass(frozen=True)
class Shape:
    """A BERT's size; the vocabulary is BERT's 30,522."""

    num_layers: int
    hidden_size: int
    dropout: float = 0.0

    @property
    def name(self) -> str:
        """As in tables."""
        return f"{self.num_layers} x {self.hidden_size}"


def build_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Returns a WordPiece tokenizer of BERT's size trained on the sentences."""
    return train_tokenizer(texts[:_TOKENIZER_SENTENCES], vocab_size=30_522)


def build_encoder(shape: Shape, tokenizer: PreTrainedTokenizerFast) -> SentenceEncoder:
    """Returns a randomly initialised BERT of the shape with [CLS] pooling."""
    config = ScratchConfig(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        num_heads=12,
        intermediate_size=4 * shape.hidden_size,
        max_tokens=128,
        dropout=shape.dropout,
    )
    return build_scratch_encoder(config, tokenizer, pooling="cls", seed=0)


class OurStep:
    """Our model, optimizer and step on the batches of `make_batches`."""

    def __init__(self, encoder: SentenceEncoder):
        self.objective = build_objective("tsdae", tokenizer=encoder.tokenizer)
        model = self.objective.build_model(encoder, seed=0)
        assert isinstance(model, TsdaeModel)
        self.model = model.train()
        self.optimizer = build_optimizer(self.model, _OPTIM)

    def step(self, batch: Batch, *, autocast_dtype: torch.dtype | None = None) -> StepStats:
        """Trains on one batch."""
        return training_step(
            self.model,
            batch,
            self.optimizer,
            global_num_targets=self.objective.num_targets(batch),
            max_grad_norm=_OPTIM.max_grad_norm,
            autocast_dtype=autocast_dtype,
        )


class ReferenceStep:
    """sentence-transformers' loss with the weights of our model, its trainer's clipping and optimizer."""

    def __init__(self, ours: OurStep):
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.losses import DenoisingAutoEncoderLoss

        self.pad_id = int(ours.model.encoder.tokenizer.pad_token_id or 0)
        with tempfile.TemporaryDirectory() as folder:
            ours.model.encoder.save(folder, lm_head=ours.model.lm_head)
            self.loss = DenoisingAutoEncoderLoss(SentenceTransformer(folder, device="cpu")).train()
        self._copy_bottleneck(ours.model)
        self.params = [param for param in self.loss.parameters() if param.requires_grad]
        self.optimizer = torch.optim.AdamW(self.params, lr=_OPTIM.lr, weight_decay=0.0, fused=True)

    def _copy_bottleneck(self, model: TsdaeModel) -> None:
        """Cross-attention over one key is the only part that the saved encoder does not carry."""
        places = {"value": "self.value", "output": "output.dense", "norm": "output.LayerNorm"}
        weights = dict(self.loss.decoder.named_parameters())
        with torch.no_grad():
            for name, param in model.bottleneck.named_parameters():
                layer, module, leaf = name.split(".")
                weights[f"bert.encoder.layer.{layer}.crossattention.{places[module]}.{leaf}"].copy_(param)

    def step(self, batch: Batch) -> float:
        """Trains on one batch and returns its loss in nats per target token."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss([self._padded(batch, "source"), self._padded(batch, "target")], None)
        loss.backward()
        nn.utils.clip_grad_norm_(self.params, _OPTIM.max_grad_norm)
        self.optimizer.step()
        return float(loss.detach())

    def _padded(self, batch: Batch, side: str) -> dict[str, Tensor]:
        lengths = batch[f"{side}_lengths"]
        ids = np.full((len(lengths), int(lengths.max())), self.pad_id, dtype=np.int64)
        mask = np.arange(ids.shape[1]) < lengths[:, None]
        ids[mask] = batch[f"{side}_ids"]
        return {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask.astype(np.int64))}


def make_batches(
    objective: Objective, texts: Sequence[str], tokenizer: PreTrainedTokenizerFast, *, size: int, count: int
) -> list[Batch]:
    """Returns `count` batches of `size` sentences, in the texts' order."""
    tokens = tokenize_texts(texts[: size * count], tokenizer, max_tokens=MAX_TOKENS)
    return [batch_of(objective, tokens, np.arange(i * size, (i + 1) * size)) for i in range(count)]


def bucketed_batches(
    objective: Objective, texts: Sequence[str], tokenizer: PreTrainedTokenizerFast, *, size: int, count: int
) -> list[Batch]:
    """Returns batches of sentences of like length: what a user of the reference can do against padding."""
    tokens = tokenize_texts(texts[: size * count], tokenizer, max_tokens=MAX_TOKENS)
    order = np.argsort(tokens.ids.lengths, kind="stable").astype(np.int64)
    return [batch_of(objective, tokens, order[i * size : (i + 1) * size]) for i in range(count)]


def batch_of(objective: Objective, tokens: TokenizedTexts, rows: np.ndarray) -> Batch:
    """Returns the batch of some rows."""
    return objective.make_batch(tokens.take(rows), rows, seed=0, epoch=0)


def needed_gflop(shape: Shape, batch: Batch, *, vocab_size: int) -> float:
    """Returns the 10^9 floating point operations of a step's matrix products on real tokens.

    Forward and backward together. The last encoder layer counts beyond its projections only for
    the [CLS] tokens that are pooled.
    """
    width, layers = shape.hidden_size, shape.num_layers
    source = batch["source_lengths"].astype(np.float64)
    target = batch["target_lengths"].astype(np.float64) - 1
    block, project = 24 * width**2, 6 * width**2
    encoder = (layers - 1) * block * source.sum() + project * source.sum() + (block - project) * len(source)
    attention = 4 * width * (layers * (source**2).sum() + layers * (target**2).sum() / 2)
    decoder = layers * block * target.sum()
    head = (2 * width**2 + 2 * width * vocab_size) * target.sum()
    return float(3 * (encoder + attention + decoder + head) / 1e9)


class MatrixProducts:
    """A side that multiplies square fp32 matrices: the ceiling of a step, measured in the same rounds."""

    def __init__(self, *, count: int):
        self.a, self.b = torch.randn(_MATRIX_SIZE, _MATRIX_SIZE), torch.randn(_MATRIX_SIZE, _MATRIX_SIZE)
        self.count = count

    def run(self) -> None:
        """Multiplies `count` times."""
        for _ in range(self.count):
            torch.mm(self.a, self.b)

    @property
    def gflop(self) -> float:
        """10^9 floating point operations of a run."""
        return self.count * 2 * _MATRIX_SIZE**3 / 1e9


def alternate(sides: dict[str, Callable[[], object]], *, rounds: int) -> dict[str, list[float]]:
    """Returns CPU seconds of each side per round; the sides take turns, so that both meet one machine."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, call in sides.items():
            begin = time.process_time()
            call()
            if number:  # the first round warms up
                seconds[name].append(time.process_time() - begin)
    return seconds


def median_ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    """Returns the median over rounds of slow / fast."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))
