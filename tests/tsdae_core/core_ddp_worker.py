"""One rank of the two-process test; its own file because spawned processes import it."""

import core_builders
import core_losses
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tsdae_core.contrastive_tension import CtConfig
from tsdae_core.objective import build_objective
from tsdae_core.optim import OptimConfig, build_optimizer
from tsdae_core.retromae import RetromaeConfig
from tsdae_core.step import training_step
from tsdae_core.tokens import tokenize_texts

NUM_STEPS = 3
NAMES = (
    *("tsdae", "protected", "mlm", "simcse", "ct", "retromae", "retromae basic"),
    *("nli", "sts", "pairs", "ranking", "margin_mse"),
)
CONFIGS = {
    "ct": CtConfig(num_negatives=1),  # groups of two, so that the shares below cut none
    "retromae basic": RetromaeConfig(decoding="basic"),
}
LABELS = {"nli": np.arange(60) % 3, "sts": np.arange(60) % 6, "pairs": np.arange(60) % 2, "ranking": None}
LABELS["margin_mse"] = np.linspace(-4, 9, 40)


# Per step: where the 12 rows are cut between the ranks, and where each rank cuts its own. Shares hold
# different numbers of tokens, micro-batches exercise no_sync, in the last step the second rank has no row.
PLANS = (([4], [], [2]), ([8], [2], []), ([12], [4], []))
# Every step has one row twice: on both ranks, or in two micro-batches of one.
REPEATED = np.where(np.arange(120) % 12 == 9, np.arange(120) - 8, np.arange(120))


def build(name):
    texts = core_builders.make_texts(120)
    tokenizer = core_builders.wordpiece_tokenizer(texts)
    objective = build_objective(name.split()[0], tokenizer=tokenizer, config=CONFIGS.get(name))
    model = objective.build_model(core_builders.bert_encoder(tokenizer, dropout=0.2), seed=1).train()
    rows = tokenize_texts(texts, tokenizer, max_tokens=64)
    if name in LABELS:
        num_columns = 3 if name in ("ranking", "margin_mse") else 2
        rows = core_losses.labelled(texts, tokenizer, num_columns=num_columns, labels=LABELS[name])
    if name in ("simcse", "ranking"):
        rows = rows.take(REPEATED[: len(rows)])
    return objective, model, rows


def idle_batch(objective, tokens):
    """A worker without rows in a step still meets the others; its row counts for nobody."""
    batch = objective.make_batch(tokens.take([0]), np.zeros(1, np.int64), seed=0, epoch=0)
    return batch | {"row_ids": np.empty(0, np.int64)}


def train(objective, model, tokens, *, rank, world_size):
    optimizer = build_optimizer(model, OptimConfig(lr=1e-3, eps=1e-4))
    module = model
    if world_size > 1:
        model.enable_gradient_checkpointing()  # changes no number, so the one process does without
        module = DistributedDataParallel(model)
    norms = []
    for step in range(NUM_STEPS):
        whole = np.arange(12) + 12 * step
        total = objective.num_targets(objective.make_batch(tokens.take(whole), whole, seed=0, epoch=0))
        cuts, inner = PLANS[step][0], PLANS[step][1 + rank]
        mine = np.split(whole, cuts)[rank] if world_size > 1 else whole
        micro = [
            objective.make_batch(tokens.take(rows), rows, seed=0, epoch=0)
            for rows in np.split(mine, inner if world_size > 1 else [])
            if len(rows)
        ]
        stats = training_step(
            module,
            micro or [idle_batch(objective, tokens)],
            optimizer,
            global_num_targets=total,
            world_size=world_size,
            max_grad_norm=1.0,
            weight=1.0 if micro else 0.0,
            dropout_key=step + 1,
        )
        norms.append(stats.grad_norm)
    return norms


def run_rank(rank, store, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for name in NAMES:
        objective, model, tokens = build(name)
        norms = train(objective, model, tokens, rank=rank, world_size=2)
        torch.save({"norms": norms, "weights": model.state_dict()}, f"{folder}/{name}-{rank}.pt")
    dist.destroy_process_group()
