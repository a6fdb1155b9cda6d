"""The train stage without a cluster: `local_training` in the place of Ray Train, shards one after the other.

MLflow is replaced by something that remembers what a run read. `Here.die_at` stops a training, as a kill
would, in the middle.
"""

from functools import partial
from types import SimpleNamespace

import ray.train
import torch
from shard_builders import run_shards_here

from pipelines.local_training import train_here
from pipelines.token_shards import tokenize


class KilledError(BaseException):
    """What a killed process cannot catch."""


class SilentTracker:
    """Remembers what a run read, and its parameters."""

    def __init__(self):
        self.inputs = []
        self.params = {}

    def open_run(self, name, *, fingerprint, params):
        self.params = params
        return "run"

    def log_input(self, run_id, *, name, place, digest, context, **described):
        self.inputs.append((name, place, digest, context))

    def __getattr__(self, name):
        return lambda *_, **__: None


class Here:
    """What a test can ask for."""

    def __init__(self):
        self.tracker = SilentTracker()
        self.deadly = None

    def die_at(self, objective, step):
        """Kills the training of this objective after a step that no checkpoint covers yet."""
        self.deadly = (objective, step)

    def train(self, job, *, reporter):
        """`run_training`."""

        def after_step(step, _encoder):
            if (job.config.objective, step) == self.deadly:
                self.deadly = None
                raise KilledError

        encoder = train_here(job, device=torch.device("cpu"), show=lambda _: None, after_step=after_step)
        return ray.train.Checkpoint(encoder.path.rpartition("/")[0], filesystem=encoder.filesystem)


def without_ray(monkeypatch):
    """Replaces Ray and MLflow for the rest of a test."""
    here = Here()
    for module in ("prepare", "labels", "queries", "pseudo_labels"):
        monkeypatch.setattr(f"pipelines.{module}.run_shards", run_shards_here)
    monkeypatch.setattr("pipelines.train.tokenize", partial(tokenize, runner=run_shards_here))
    monkeypatch.setattr("pipelines.train.new_board", lambda: None)
    monkeypatch.setattr("pipelines.train.run_training", here.train)
    monkeypatch.setattr("pipelines.train.Tracker", SimpleNamespace(of=lambda config, home: here.tracker))
    return here
