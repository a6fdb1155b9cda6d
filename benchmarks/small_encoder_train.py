"""Pre-train the small encoder that ships with the package: one CPU core, minutes.

Owns the recipe. It is masked language modelling, as BERT's: the encoder that TSDAE then adapts to a domain
has seen general text only, and no sentence objective. Minutes of training from random weights make a sentence
encoder worse before it gets better, so training starts from weights that already are a sentence encoder:

- token embeddings are latent semantic factors of the text (see `tsdae_core.scratch`), scaled to one length;
  positions and token types start small beside them;
- value and output projections of self-attention start as the identity, so [CLS] starts as a repeated mean of
  the tokens; feed-forward blocks start small;
- the dense layer of the LM head starts as the identity, and its bias as the log frequency of each token.

    python benchmarks/small_encoder_train.py general.parquet tsdae_core/small_encoder --num-steps N
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import nn
from transformers import PreTrainedTokenizerFast

from tsdae_core.backbone import layers_of, word_embeddings
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.mlm_model import MlmModel
from tsdae_core.objective import build_objective
from tsdae_core.optim import OptimConfig, build_optimizer, set_learning_rate
from tsdae_core.scratch import ScratchConfig, build_scratch_encoder, svd_embeddings, train_tokenizer
from tsdae_core.step import seed_step, training_step
from tsdae_core.tokens import TokenizedTexts, special_frame, tokenize_texts

SHAPE = ScratchConfig(
    num_layers=3, hidden_size=256, num_heads=4, vocab_size=8000, max_tokens=128, dropout=0.0
)
OPTIM = OptimConfig(lr=5e-4, betas=(0.9, 0.98), warmup_steps=20)
BATCH_SIZE = 64
SEED = 0
_TRAIN_TOKENS = 64
_TOKENIZER_SENTENCES = 200_000
_SVD_SENTENCES = 50_000
_BLOCK_SENTENCES = 6_400
_DECAY_SHARE = 0.3
_ROW_LENGTH = 1.6
_SMALL = 0.2
_SMALL_FEED_FORWARD = 0.3
_HEAD_SCALE = 0.5


def build_start(texts: list[str], tokenizer: PreTrainedTokenizerFast) -> SentenceEncoder:
    """Return the encoder before training; a function of the texts alone."""
    encoder = build_scratch_encoder(SHAPE, tokenizer, pooling="cls", seed=SEED)
    short = ScratchConfig(hidden_size=SHAPE.hidden_size, num_heads=SHAPE.num_heads, max_tokens=_TRAIN_TOKENS)
    factors = svd_embeddings(texts[:_SVD_SENTENCES], tokenizer, config=short, seed=SEED)
    norms = np.linalg.norm(factors, axis=1, keepdims=True)
    known = torch.from_numpy(np.flatnonzero(norms[:, 0] > 0))
    start = torch.from_numpy((factors / np.maximum(norms, 1e-9) * _ROW_LENGTH).astype(np.float32))
    table = word_embeddings(encoder.backbone).weight
    with torch.no_grad():
        table.mul_(_ROW_LENGTH / table.norm(dim=1).mean())
        table[known] = start[known]
        for name in ("position_embeddings", "token_type_embeddings"):
            _weight(encoder.backbone, f"embeddings.{name}").mul_(_SMALL)
        for layer in layers_of(encoder.backbone):
            _set_identity(layer, "attention.self.value", "attention.output.dense")
            _weight(layer, "output.dense").mul_(_SMALL_FEED_FORWARD)
    return encoder


def build_model(encoder: SentenceEncoder, sample: TokenizedTexts) -> MlmModel:
    """Return the model around the encoder, its LM head starting as the module docstring says."""
    model = build_objective("mlm", tokenizer=encoder.tokenizer).build_model(encoder, seed=SEED)
    assert isinstance(model, MlmModel)
    counts = np.bincount(special_frame(encoder.tokenizer).wrap(sample.ids).values, minlength=SHAPE.vocab_size)
    frequency = (counts + 1.0) / (counts + 1.0).sum()
    with torch.no_grad():
        _set_identity(model.lm_head, "dense")
        _weight(model.lm_head, "norm").fill_(_HEAD_SCALE)
        model.lm_head.get_parameter("bias").copy_(torch.from_numpy(np.log(frequency)))
    return model


def learning_rate(step: int, num_steps: int) -> float:
    """Return the rate of a 0-based step: warm-up, constant, linear decay over the last steps."""
    decay_steps = max(1, round(_DECAY_SHARE * num_steps))
    return OPTIM.lr * min(1.0, (step + 1) / OPTIM.warmup_steps, (num_steps - step) / decay_steps)


def batches(
    texts: list[str], tokenizer: PreTrainedTokenizerFast
) -> Iterator[tuple[TokenizedTexts, np.ndarray]]:
    """Yield batches of tokens with their row numbers int64[B], in the order of the texts, once."""
    for begin in range(0, len(texts) - _BLOCK_SENTENCES + 1, _BLOCK_SENTENCES):
        block = tokenize_texts(texts[begin : begin + _BLOCK_SENTENCES], tokenizer, max_tokens=_TRAIN_TOKENS)
        for first in range(0, _BLOCK_SENTENCES, BATCH_SIZE):
            rows = np.arange(first, first + BATCH_SIZE, dtype=np.int64)
            yield block.take(rows), begin + rows


def _weight(module: nn.Module, path: str) -> torch.Tensor:
    weight = module.get_submodule(path).weight
    assert isinstance(weight, torch.Tensor)
    return weight


def _set_identity(module: nn.Module, *paths: str) -> None:
    for path in paths:
        nn.init.eye_(_weight(module, path))


def save_half(encoder: SentenceEncoder, model: MlmModel, folder: Path) -> None:
    """Round encoder and head to float16 and write them; everybody loads them as float32."""
    encoder.eval().half().save(folder, lm_head=model.lm_head.half())
    path = folder / "config.json"
    config = json.loads(path.read_text())
    # What plain transformers loads the weights as; they are stored in half the bytes all the same.
    config["dtype"] = "float32"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Pre-train the shipped small encoder.")
    parser.add_argument("corpus", type=Path, help="Parquet file of small_encoder_corpus.py")
    parser.add_argument("output", type=Path, help="folder of the encoder")
    parser.add_argument("--num-steps", type=int, required=True)
    parser.add_argument("--start-only", action="store_true", help="write the untrained start and stop")
    args = parser.parse_args()
    torch.set_num_threads(1)
    texts: list[str] = pq.read_table(args.corpus, columns=["text"])["text"].to_pylist()
    tokenizer = train_tokenizer(texts[:_TOKENIZER_SENTENCES], vocab_size=SHAPE.vocab_size)
    encoder = build_start(texts, tokenizer)
    model = build_model(encoder, tokenize_texts(texts[:_SVD_SENTENCES], tokenizer, max_tokens=_TRAIN_TOKENS))
    if not args.start_only:
        train(encoder, model, texts, args.num_steps)
    save_half(encoder, model, args.output)


def train(encoder: SentenceEncoder, model: MlmModel, texts: list[str], num_steps: int) -> None:
    """Run all steps, printing a line every 50."""
    tokenizer = encoder.tokenizer
    objective = build_objective("mlm", tokenizer=tokenizer)
    optimizer = build_optimizer(model, OPTIM)
    began = time.monotonic()
    model.train()
    for step, (tokens, rows) in zip(range(num_steps), batches(texts, tokenizer), strict=False):
        batch = objective.make_batch(tokens, rows, seed=SEED, epoch=0)
        set_learning_rate(optimizer, learning_rate(step, num_steps))
        seed_step(SEED, step, 0)
        stats = training_step(
            model,
            batch,
            optimizer,
            global_num_targets=objective.num_targets(batch),
            max_grad_norm=OPTIM.max_grad_norm,
        )
        if step % 50 == 0:
            about = {
                "step": step,
                "loss": round(stats.loss, 3),
                "seconds": round(time.monotonic() - began),
                "cpu_seconds": round(time.process_time()),
            }
            print(json.dumps(about), flush=True)


if __name__ == "__main__":
    main()
