"""What one Ray Train worker does: load, resume, loop over the steps, validate, checkpoint, export.

The loop is the same for every objective and any number of workers. All that it needs comes in one picklable
TrainJob; all that it leaves goes into Ray Train checkpoints, MLflow and the progress board.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import ray.train
import ray.train.torch
import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pipelines.config_values import config_to_dict
from pipelines.lanes import LanePlan, step_digest
from pipelines.manifest import Manifest
from pipelines.storage import Location
from pipelines.stream import StepBatch, batch_stream, micro_batches
from pipelines.token_shards import TokenRows, read_validation
from pipelines.tracking import Tracker
from pipelines.train_config import TrainConfig
from tsdae_core.batch import Batch
from tsdae_core.checkpoint import load_training_state, save_training_state
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.lm_head import LmHead
from tsdae_core.objective import Objective
from tsdae_core.optim import build_optimizer, learning_rate, set_learning_rate
from tsdae_core.preflight import check_decoder_is_causal, check_decoder_uses_vector
from tsdae_core.step import seed_step, training_step
from tsdae_core.tsdae import TsdaeModel

STATE_FOLDER = "state"
ENCODER_FOLDER = "encoder"
LOG_NAME = "training_log.json"
_VALIDATION_EPOCH = -1
_VALIDATION_TOKENS = 4_096
_MASK64 = 2**64 - 1


@dataclass(frozen=True, kw_only=True)
class TrainJob:
    """Everything a worker needs."""

    config: TrainConfig
    seed: int
    workspace: Location
    tokens: Manifest
    plan: LanePlan
    objective: Objective
    tracker: Tracker
    run_id: str
    board: Any


@dataclass
class History:
    """What a run remembers through restarts; kept in the checkpoint, so a resumed run repeats it exactly."""

    losses: list[tuple[int, float]] = field(default_factory=list)
    validation_losses: list[tuple[int, float]] = field(default_factory=list)
    stream_digest: int = 0
    num_sentences: int = 0
    num_target_tokens: int = 0


@dataclass
class _Window:
    """Sums over the steps since the last log line, of this worker; added over workers when logged."""

    loss_sum: float = 0.0
    num_targets: int = 0
    num_tokens: int = 0
    num_sentences: int = 0
    wait_s: float = 0.0
    grad_norm: float = 0.0
    started_s: float = field(default_factory=time.monotonic)


def train_worker(settings: Mapping[str, TrainJob]) -> None:
    """The train loop function that Ray Train calls on every worker."""
    context = ray.train.get_context()
    _Worker(settings["job"], rank=context.get_world_rank(), world_size=context.get_world_size()).run()


class _Worker:
    def __init__(self, job: TrainJob, *, rank: int, world_size: int):
        self.job, self.rank, self.world_size = job, rank, world_size
        config = job.config
        torch.set_num_threads(config.threads_per_worker)
        self.device = torch.device("cpu")
        if config.gpus_per_worker:
            self.device = ray.train.torch.get_device()
            torch.cuda.set_device(self.device)
        with (job.workspace / "start").as_local_folder() as folder:
            encoder = SentenceEncoder.load(str(folder))
            self.model = job.objective.build_model(encoder, seed=job.seed)
        self.encoder = encoder
        self.idle_batch = self._idle_batch()
        if isinstance(self.model, TsdaeModel):
            check_decoder_uses_vector(self.model, self.idle_batch)
            check_decoder_is_causal(self.model, self.idle_batch)
        self.model.to(self.device)
        self.optimizer = build_optimizer(self.model, config.optim)
        self.history = History()
        self.first_step = 0
        self._resume()
        self.wrapped: nn.Module = self.model
        if world_size > 1:
            self.wrapped = DistributedDataParallel(self.model)
        self.pending: list[tuple[int, int, dict[str, float]]] = []
        self.validation = list(self._validation_batches())

    def _resume(self) -> None:
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is None:
            return
        with checkpoint.as_directory() as folder:
            step, extra = load_training_state(Path(folder) / STATE_FOLDER, self.model, self.optimizer)
        self.first_step = step
        history = dict(extra["history"])
        for name in ("losses", "validation_losses"):
            history[name] = [(int(at), float(value)) for at, value in history[name]]
        self.history = History(**history)
        if self.rank > 0:  # the checkpoint holds sums over workers; one worker carries them on
            self.history = replace(self.history, stream_digest=0, num_sentences=0, num_target_tokens=0)

    def run(self) -> None:
        """Steps from the checkpoint to the end."""
        job, config = self.job, self.job.config
        self._show(self.first_step, "starting")
        if self.first_step == 0:
            self._validate(0)
        rows = TokenRows.open(job.workspace, job.tokens)
        stream = batch_stream(
            job.plan,
            rows,
            job.objective,
            rank=self.rank,
            world_size=self.world_size,
            first_step=self.first_step,
            num_steps=config.num_steps,
            max_batch_tokens=config.max_batch_tokens,
        )
        self.wrapped.train()
        window = _Window()
        asked_s = time.monotonic()
        for step_batch in stream:
            window.wait_s += time.monotonic() - asked_s
            self._step(step_batch, window)
            done = step_batch.step + 1
            last = done == config.num_steps
            if last or done % config.log_every == 0:
                self._log(done, window)
                window = _Window()
            if last or done % config.validate_every == 0:
                self._validate(done)
            if last or done % config.checkpoint_every == 0:
                self._checkpoint(done, last=last)
            asked_s = time.monotonic()

    def _step(self, step_batch: StepBatch, window: _Window) -> None:
        config, objective = self.job.config, self.job.objective
        batches = step_batch.micro_batches
        num_targets = sum(objective.num_targets(batch) for batch in batches)
        (global_targets,) = self._sum_over_workers(num_targets)
        set_learning_rate(self.optimizer, learning_rate(step_batch.step, config.num_steps, config.optim))
        seed_step(self.job.seed, step_batch.step, self.rank)
        stats = training_step(
            self.wrapped,
            batches or [self.idle_batch],
            self.optimizer,
            global_num_targets=int(global_targets),
            world_size=self.world_size,
            max_grad_norm=config.optim.max_grad_norm,
            weight=1.0 if batches else 0.0,
        )
        digest = step_digest(step_batch.row_ids, step_batch.step)
        self.history.stream_digest = (self.history.stream_digest + digest) & _MASK64
        self.history.num_sentences += len(step_batch.row_ids)
        self.history.num_target_tokens += num_targets
        window.loss_sum += stats.loss_sum if batches else 0.0
        window.num_targets += num_targets
        window.num_tokens += sum(num_tokens(batch) for batch in batches)
        window.num_sentences += len(step_batch.row_ids)
        window.grad_norm = stats.grad_norm

    def _sum_over_workers(self, *values: float) -> list[float]:
        if self.world_size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(total)
        return [float(value) for value in total]

    def _log(self, done: int, window: _Window) -> None:
        elapsed_s = time.monotonic() - window.started_s
        sums = self._sum_over_workers(
            window.loss_sum, window.num_targets, window.num_tokens, window.num_sentences, window.wait_s
        )
        loss_sum, num_targets, tokens, num_sentences, wait_s = sums
        loss = loss_sum / num_targets
        self.history.losses.append((done, loss))
        values = {
            f"train_loss_nats_per_{self.job.config.loss_unit}": loss,
            "learning_rate": learning_rate(done - 1, self.job.config.num_steps, self.job.config.optim),
            "gradient_norm": window.grad_norm,
            "tokens_per_s": tokens / elapsed_s,
            "sentences_per_s": num_sentences / elapsed_s,
            "starved_share": wait_s / self.world_size / elapsed_s,
        }
        if self.job.config.loss_unit == "token":
            values["target_token_share"] = num_targets / tokens
        self.pending.append((done, int(time.time() * 1000), values))
        self._show(done, f"loss {loss:.3f}, {values['tokens_per_s']:,.0f} tokens/s{self._validation_note()}")

    def _validation_note(self) -> str:
        losses = self.history.validation_losses
        return f", validation loss {losses[-1][1]:.3f}" if losses else ""

    def _validation_batches(self) -> Iterator[Batch]:
        """This worker's share of the held-out rows, noised once and for all."""
        row_ids, tokens = read_validation(self.job.workspace, self.job.tokens)
        mine = np.arange(self.rank, len(row_ids), self.world_size)
        yield from micro_batches(
            self.job.objective,
            tokens.take(mine),
            row_ids[mine],
            seed=self.job.seed,
            epoch=_VALIDATION_EPOCH,
            max_tokens=min(self.job.config.max_batch_tokens, _VALIDATION_TOKENS),
        )

    def _idle_batch(self) -> Batch:
        """A row for steps in which this worker has none: it runs with weight 0, so that all workers meet."""
        row_ids, tokens = TokenRows.open(self.job.workspace, self.job.tokens).read(np.zeros(1, np.int64))
        return self.job.objective.make_batch(tokens, row_ids, seed=self.job.seed, epoch=0)

    def _validate(self, done: int) -> None:
        self.model.eval()
        loss_sum, num_targets = 0.0, 0
        with torch.no_grad():
            for batch in self.validation:
                sums = self.model(batch)
                loss_sum += float(sums.loss_sum)
                num_targets += int(sums.num_targets)
        self.model.train()
        loss_sum, total = self._sum_over_workers(loss_sum, num_targets)
        if total:
            self.history.validation_losses.append((done, loss_sum / total))
            values = {f"validation_loss_nats_per_{self.job.config.loss_unit}": loss_sum / total}
            self.pending.append((done, int(time.time() * 1000), values))

    def _checkpoint(self, done: int, *, last: bool) -> None:
        """Reports a checkpoint (all workers meet here), then logs what it covers: nothing is logged twice."""
        history = self._global_history()
        with tempfile.TemporaryDirectory(prefix="tsdae-checkpoint-") as folder:
            checkpoint = None
            if self.rank == 0:
                extra = {
                    "history": asdict(history),
                    "seed": self.job.seed,
                    "config": config_to_dict(self.job.config),
                }
                save_training_state(
                    Path(folder) / STATE_FOLDER, self.model, self.optimizer, step=done, extra=extra
                )
                if last:
                    self._export(Path(folder) / ENCODER_FOLDER, history)
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"step": done}, checkpoint=checkpoint)
        if self.rank == 0:
            self.job.tracker.log_metrics(self.job.run_id, self.pending)
        self.pending = []

    def _global_history(self) -> History:
        """The history with the sums over all workers; the curves are the same on each."""
        parts = [self.history.stream_digest]
        if self.world_size > 1:
            gathered: list[int | None] = [None] * self.world_size
            torch.distributed.all_gather_object(gathered, self.history.stream_digest)
            parts = [int(part or 0) for part in gathered]
        sentences, targets = self._sum_over_workers(
            self.history.num_sentences, self.history.num_target_tokens
        )
        return replace(
            self.history,
            stream_digest=sum(parts) & _MASK64,
            num_sentences=int(sentences),
            num_target_tokens=int(targets),
        )

    def _export(self, folder: Path, history: History) -> None:
        self.model.eval()
        head = self.model.lm_head
        assert isinstance(head, LmHead)
        self.encoder.save(folder, lm_head=head)
        self.model.train()
        log = {**asdict(history), "num_steps": self.job.config.num_steps, "seed": self.job.seed}
        (folder / LOG_NAME).write_text(json.dumps(log, indent=2, sort_keys=True) + "\n")

    def _show(self, step: int, note: str) -> None:
        if self.rank == 0:
            self.job.board.write.remote({"first_step": self.first_step, "step": step, "note": note})


def num_tokens(batch: Batch) -> int:
    """All tokens that go through the model for a batch: the sum of everything its lengths count."""
    return int(sum(values.sum() for key, values in batch.items() if key.endswith("lengths")))
