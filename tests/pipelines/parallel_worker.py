"""One of two workers that share a model; its own file because spawned processes import it."""

import dataclasses
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from pipeline_builders import random_rows

from pipelines.parallel import Parallel
from pipelines.train_config import TrainConfig
from tsdae_core.checkpoint import TrainingState, read_state, write_state
from tsdae_core.objective import build_objective
from tsdae_core.optim import OptimConfig
from tsdae_core.ragged import Ragged
from tsdae_core.scratch import ScratchConfig, build_scratch_encoder, train_tokenizer
from tsdae_core.step import training_step
from tsdae_core.tokens import TokenizedTexts
from tsdae_core.tsdae import TsdaeConfig

NUM_STEPS, RESUME_AT = 6, 3
TEXTS = ["the cat sat on the mat", "a dog barked at the old cat", "seven small boats went out to sea"] * 4


def build(objective_config):
    tokenizer = train_tokenizer(TEXTS, vocab_size=60)
    shape = ScratchConfig(
        num_layers=2,
        hidden_size=16,
        num_heads=2,
        intermediate_size=24,
        vocab_size=60,
        max_tokens=32,
        dropout=0.2,
    )
    encoder = build_scratch_encoder(shape, tokenizer, pooling="cls", seed=0, texts=TEXTS)
    encoder.use_packed = False
    objective = build_objective("tsdae", tokenizer=tokenizer, config=objective_config)
    return objective, objective.build_model(encoder, seed=0).train()


def batches(objective, rank, world_size, step):
    """Three rows in one or two micro-batches of this worker, and the number of targets of all workers."""
    rows = [row or [7] for row in random_rows(6, seed=step)]
    ids = Ragged.from_rows(rows)
    tokens = TokenizedTexts(ids, np.ones(len(ids.values), dtype=np.bool_))
    cuts = {0: [[0, 1, 2]], 1: [[3], [4, 5]]}
    mine = cuts[rank] if world_size == 2 else cuts[0] + cuts[1]

    def make(part):
        return objective.make_batch(tokens.take(part), np.array(part), seed=0, epoch=step)

    return [make(part) for part in mine], objective.num_targets(make(list(range(6))))


def steps(parallel, objective, first, last):
    norms = []
    for step in range(first, last):
        parts, total = batches(objective, parallel.rank, parallel.world_size, step)
        weights = [1.0] * len(parts)
        if parallel.sharded:
            idle = max(parallel.gather(len(parts))) - len(parts)
            parts, weights = parts + parts[:1] * idle, weights + [0.0] * idle
        stats = training_step(
            parallel.wrapped,
            parts,
            parallel.optimizer,
            global_num_targets=total,
            world_size=parallel.world_size,
            max_grad_norm=0.5,
            weight=weights,
            dropout_key=step + 1,
        )
        norms.append(stats.grad_norm)
    return norms


def train(strategies, *, tie, rank, world_size, folder):
    """Trains to the end, handing over a state on disk between two strategies; returns norms and weights."""
    norms, state = [], None
    for first, last, strategy in strategies:
        objective, model = build(TsdaeConfig(tie=tie))
        config = TrainConfig(strategy=strategy, num_workers=1, optim=OptimConfig(lr=1e-3, eps=1e-6))
        parallel = Parallel(
            model, config=config, rank=rank, world_size=world_size, device=torch.device("cpu"), state=state
        )
        norms += steps(parallel, objective, first, last)
        weights, optimizer = parallel.weights(), parallel.optimizer_state()
        if rank == 0:
            state = TrainingState(step=last, weights=weights, optimizer=optimizer, extra={})
            write_state(folder, state)
        if world_size > 1:
            dist.barrier()
        state = read_state(folder)
    return norms, dataclasses.asdict(state)["weights"]


def run_rank(rank, store, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for tie in ("tied", "untied"):
        ways = {
            "copies": [(0, NUM_STEPS, "ddp")],
            "shards": [(0, NUM_STEPS, "fsdp2")],
            "shards, then copies": [(0, RESUME_AT, "fsdp2"), (RESUME_AT, NUM_STEPS, "ddp")],
            "copies, then shards": [(0, RESUME_AT, "ddp"), (RESUME_AT, NUM_STEPS, "fsdp2")],
        }
        for name, strategies in ways.items():
            place = Path(folder) / f"{tie}, {name}"
            norms, weights = train(strategies, tie=tie, rank=rank, world_size=2, folder=place)
            torch.save((norms, weights), f"{place}-{rank}.pt")
    dist.destroy_process_group()
