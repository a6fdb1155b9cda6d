"""The validation loss is a number of the held-out rows alone: not of workers, nor of micro-batches."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from labelled_builders import SCRATCH, sentences

from pipelines.held_out import HeldOut
from pipelines.labels_config import SUPERVISED, LabelsConfig
from pipelines.train_config import TrainConfig
from tsdae_core.examples import LabelledTexts
from tsdae_core.objective import build_objective
from tsdae_core.scratch import build_scratch_encoder, train_tokenizer
from tsdae_core.tokens import tokenize_texts

NUM_ROWS = 43


class Worker:
    """One worker's side of `Parallel`; keeps what it would add up with the others."""

    sharded, device = False, torch.device("cpu")

    def __init__(self, model, rank, world_size):
        self.model, self.rank, self.world_size = model, rank, world_size
        self.summed = ()

    def sum(self, *values):
        self.summed = values
        return list(values)


@pytest.mark.parametrize("name", ["tsdae", "simcse", "ct", "protected", "ranking", "sts"])
def test_any_number_of_workers_and_any_cut_give_one_loss(name, monkeypatch):
    texts = sentences(2 * NUM_ROWS)
    tokenizer = train_tokenizer(texts, vocab_size=80)
    encoder = build_scratch_encoder(SCRATCH, tokenizer, pooling="mean", seed=0)
    tokens = tokenize_texts(texts, tokenizer, max_tokens=24)
    rows = tokens.take(np.arange(NUM_ROWS))
    labels = LabelsConfig(input="x") if name in SUPERVISED else None
    if labels is not None:
        scores = (np.arange(NUM_ROWS) % 5).astype(np.float32) if name == "sts" else None
        rows = LabelledTexts((rows, tokens.take(np.arange(NUM_ROWS, 2 * NUM_ROWS))), scores)
    monkeypatch.setattr("pipelines.held_out.read_validation", lambda *_: (np.arange(NUM_ROWS) * 7, rows))
    found = []
    for world_size, max_tokens in ((1, 4096), (1, 20), (2, 4096), (3, 20)):
        config = TrainConfig(objective=name, batch_size=8, labels=labels, max_batch_tokens=max_tokens)
        objective = build_objective(name, tokenizer=tokenizer, config=config.chosen)
        model = objective.build_model(encoder, seed=0).eval()
        job = SimpleNamespace(config=config, objective=objective, seed=0, workspace=None, tokens=None)
        workers = [Worker(model, rank, world_size) for rank in range(world_size)]
        for worker in workers:
            HeldOut(job, worker, idle_batch={}).loss()
        loss_sum, num_targets = (sum(values) for values in zip(*(w.summed for w in workers), strict=True))
        found.append((num_targets, loss_sum / num_targets))
    assert {count for count, _ in found} == {found[0][0]}
    np.testing.assert_allclose([loss for _, loss in found], found[0][1], rtol=1e-5)
