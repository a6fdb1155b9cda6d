"""One rank of the two-process test; its own file because spawned processes import it."""

import core_builders
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tsdae_core.objective import build_objective
from tsdae_core.optim import OptimConfig, build_optimizer
from tsdae_core.step import training_step
from tsdae_core.tokens import tokenize_texts

NUM_STEPS = 3


def build(name):
    texts = core_builders.make_texts(60)
    tokenizer = core_builders.wordpiece_tokenizer(texts)
    objective = build_objective(name, tokenizer=tokenizer)
    model = objective.build_model(core_builders.bert_encoder(tokenizer), seed=1).train()
    return objective, model, tokenize_texts(texts, tokenizer, max_tokens=64)


def train(objective, model, tokens, *, rank, world_size):
    optimizer = build_optimizer(model, OptimConfig(lr=1e-3))
    module = DistributedDataParallel(model) if world_size > 1 else model
    norms = []
    for step in range(NUM_STEPS):
        whole = np.arange(12) + 12 * step
        total = objective.num_targets(objective.make_batch(tokens.take(whole), whole, seed=0, epoch=0))
        # Uneven micro-batches: the first exercises no_sync, the shares hold different numbers of tokens.
        mine = np.array_split(whole, world_size)[rank]
        micro = [
            objective.make_batch(tokens.take(rows), rows, seed=0, epoch=0) for rows in (mine[:2], mine[2:])
        ]
        stats = training_step(
            module, micro, optimizer, global_num_targets=total, world_size=world_size, max_grad_norm=1.0
        )
        norms.append(stats.grad_norm)
    return norms


def run_rank(rank, store, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for name in ("tsdae", "mlm"):
        objective, model, tokens = build(name)
        norms = train(objective, model, tokens, rank=rank, world_size=2)
        torch.save({"norms": norms, "weights": model.state_dict()}, f"{folder}/{name}-{rank}.pt")
    dist.destroy_process_group()
