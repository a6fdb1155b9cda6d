"""What one Ray Train worker does: load, resume, loop over the steps, validate, checkpoint, export.

The loop is the same for every objective and any number of workers. All that it needs comes in one picklable
TrainJob; all that it leaves goes into Ray Train checkpoints, MLflow and the progress board.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import ray.train
import ray.train.torch
import torch
from torch import Tensor

from pipelines.compiling import compiler_told
from pipelines.config_values import config_to_dict
from pipelines.errors import InputError
from pipelines.held_out import HeldOut
from pipelines.lanes import step_digest
from pipelines.metric_log import MetricLog
from pipelines.parallel import Parallel
from pipelines.step_meter import Feeding, StepMeter
from pipelines.stopping import best_step, has_stopped
from pipelines.stream import BatchStream, StepBatch, StreamSpec
from pipelines.token_shards import TokenRows
from pipelines.train_checkpoint import Checkpoints, advice, broken_part
from pipelines.train_job import (
    BEST_FOLDER,
    ENCODER_FOLDER,
    LOG_NAME,
    STATE_FOLDER,
    History,
    Training,
    TrainJob,
    digest_window,
)
from pipelines.train_links import Links, Stream
from pipelines.validation_score import ValidationScore
from tsdae_core.batch import Batch
from tsdae_core.checkpoint import TrainingState, write_state
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.hashing import fold_key
from tsdae_core.in_batch import InBatchModel
from tsdae_core.keyed_dropout import has_dropout
from tsdae_core.lm_head import LmHead
from tsdae_core.objective_model import ObjectiveModel
from tsdae_core.optim import NonFiniteGradientError, learning_rate, set_learning_rate
from tsdae_core.preflight import check_decoder_is_causal, check_decoder_uses_vector
from tsdae_core.protected_model import ProtectedModel
from tsdae_core.step import seed_step, training_step
from tsdae_core.tsdae_model import TsdaeModel

_ROWS_NAMED = 32


def train_worker(job: TrainJob) -> None:
    """Trains, as one of the workers of Ray Train."""
    context = ray.train.get_context()
    rank = context.get_world_rank()
    device = torch.device("cpu")
    if job.config.gpus_per_worker:
        device = ray.train.torch.get_device()
        torch.cuda.set_device(device)
    links = Links(
        rank=rank,
        world_size=context.get_world_size(),
        device=device,
        checkpoints=Checkpoints(job.storage),
        metrics=MetricLog(job.tracker, job.run_id, is_writer=rank == 0),
        open_stream=BatchStream,
        show=job.board.write.remote,
    )
    with _node_watched(job, context):
        train_linked(job, links)


def train_linked(job: Training, links: Links) -> None:
    """Trains from the last checkpoint to the end; the last checkpoint then holds the encoder.

    Raises:
        InputError: settings, data or disk are unfit.
    """
    told = compiler_told(compiles=job.config.compile)
    with told, tempfile.TemporaryDirectory(prefix="tsdae-best-") as best:
        _Worker(job, links, best=Path(best)).run()


@contextmanager
def _node_watched(job: TrainJob, context: ray.train.TrainContext) -> Iterator[None]:
    """One worker of every node reads the node's load for MLflow."""
    if context.get_local_rank() > 0:
        yield
        return
    with job.tracker.system_metrics(job.run_id, node=f"node_{context.get_node_rank()}"):
        yield


class _Worker:
    def __init__(self, job: Training, links: Links, *, best: Path):
        self.job, self.links, self.rank, self.best = job, links, links.rank, best
        config = job.config
        torch.set_num_threads(config.threads_per_worker)
        self.encoder, model = self._build()
        self.idle_batch = self._idle_batch()
        decoding = model.tsdae if isinstance(model, ProtectedModel) else model
        if isinstance(decoding, TsdaeModel):
            check_decoder_uses_vector(decoding, self.idle_batch)
            check_decoder_is_causal(decoding, self.idle_batch)
        if config.gradient_checkpointing:
            model.enable_gradient_checkpointing()
        if config.compile:
            model.compile_blocks()
        # Compiled blocks draw their own.
        self.keys_dropout = has_dropout(model) and not config.compile
        self.checkpoints = links.checkpoints
        state = self.checkpoints.latest(best=best if self.rank == 0 else None)
        self.first_step = state.step if state else 0
        self.metrics = links.metrics
        self.metrics.carry_on(state.extra["metrics"] if state else [])
        self.history = self._history_in(state)
        self.parallel = Parallel(
            model,
            config=config,
            rank=self.rank,
            world_size=links.world_size,
            device=links.device,
            state=state,
        )
        self.feeding = Feeding()
        self.held_out = HeldOut(job, self.parallel, idle_batch=self.idle_batch)
        self.task_score = None
        if job.validation is not None:
            self.task_score = ValidationScore(config, job.validation.load(), self.parallel)

    def _build(self) -> tuple[SentenceEncoder, ObjectiveModel]:
        """The starting encoder and the module around it; shards need the general path (`Parallel`)."""
        with (self.job.workspace / "start").as_local_folder() as folder:
            encoder = SentenceEncoder.load(str(folder))
        if self.job.config.strategy == "fsdp2":
            encoder.use_packed = False
        model = self.job.objective.build_model(encoder, seed=self.job.seed)
        if self.job.config.strategy == "fsdp2" and isinstance(model, InBatchModel):
            raise InputError(
                f"train.strategy=fsdp2 cannot run {self.job.config.objective}, whose loss compares rows; "
                "use ddp"
            )
        return encoder, model

    def _history_in(self, state: TrainingState | None) -> History:
        if state is None:
            return History()
        history = History.from_plain(state.extra["history"])
        # The checkpoint holds sums over workers; one worker carries them on.
        return history if self.rank == 0 else history.without_sums()

    def run(self) -> None:
        """Steps from the checkpoint to the end."""
        job, config = self.job, self.job.config
        if self._is_over(self.first_step):
            return
        self._show(self.first_step, "starting")
        if self.first_step == 0:
            self._watched(0)
            self._validate(0)
        self.parallel.wrapped.train()
        spec = StreamSpec(
            plan=job.plan,
            rows=TokenRows.open(job.workspace, job.tokens),
            objective=job.objective,
            rank=self.rank,
            world_size=self.parallel.world_size,
            first_step=self.first_step,
            num_steps=config.num_steps,
            max_batch_tokens=config.max_batch_tokens,
        )
        with closing(self.links.open_stream(spec)) as stream:
            self._loop(stream)

    def _is_over(self, done: int) -> bool:
        return done == self.job.config.num_steps or has_stopped(self.history, self.job.config.early_stopping)

    def _loop(self, stream: Stream) -> None:
        config = self.job.config
        meter = self._new_meter()
        meter.carry_on(self.history.open_window, rank=self.rank, world_size=self.parallel.world_size)
        asked_s = time.monotonic()
        for batch in stream:
            waited_s = time.monotonic() - asked_s
            if batch.step == self.first_step:  # the start of the stream says nothing about its speed
                self.feeding.first_batch_s = waited_s
                meter.restart_clock()
            else:
                meter.fed(wait_s=waited_s, tokens_waiting=stream.tokens_waiting)
            self._step(batch, meter)
            done = batch.step + 1
            meter.skip(self._watched(done))
            paused_s = time.monotonic()
            if done == config.num_steps or done % config.validate_every == 0:
                self._validate(done)
                meter.skip(time.monotonic() - paused_s)
            over = self._is_over(done)
            if over or done % config.log_every == 0:
                self._log(done, meter)
                meter = self._new_meter()
            if over or done % config.checkpoint_every == 0:
                paused_s = time.monotonic()
                self.history.open_window = self.parallel.gather(meter.loss_and_targets)
                self._checkpoint(done, last=over)
                meter.skip(time.monotonic() - paused_s)
            if over:
                return
            asked_s = time.monotonic()

    def _watched(self, done: int) -> float:
        """Lets somebody look at the encoder, before a checkpoint covers the step; returns the seconds."""
        started_s = time.monotonic()
        if self.links.after_step is not None:
            self.links.after_step(done, self.encoder)
        return time.monotonic() - started_s

    def _new_meter(self) -> StepMeter:
        return StepMeter(padded=not self.encoder.use_packed)

    def _step(self, step: StepBatch, meter: StepMeter) -> None:
        config, objective, parallel = self.job.config, self.job.objective, self.parallel
        batches = list(step.micro_batches)
        num_targets = sum(objective.num_targets(batch) for batch in batches)
        (global_targets,) = parallel.sum(num_targets)
        wanted = max(parallel.gather(len(batches))) if parallel.sharded else max(1, len(batches))
        num_idle = wanted - len(batches)
        set_learning_rate(parallel.optimizer, learning_rate(step.step, config.num_steps, config.optim))
        seed_step(self.job.seed, step.step, self.rank)
        weights = [1.0] * len(batches) + [0.0] * num_idle
        try:
            stats = training_step(
                parallel.wrapped,
                batches + [self.idle_batch] * num_idle,
                parallel.optimizer,
                global_num_targets=int(global_targets),
                world_size=parallel.world_size,
                max_grad_norm=config.optim.max_grad_norm,
                weight=weights,
                autocast_dtype=torch.bfloat16 if config.precision == "bfloat16" else None,
                dropout_key=fold_key("dropout", self.job.seed, step.step) if self.keys_dropout else None,
            )
        except NonFiniteGradientError as error:
            raise self._not_finite(step) from error
        digest = step_digest(step.row_ids, step.step)
        self.history.count_rows(digest, step=step.step, num_steps=config.num_steps)
        self.history.num_sentences += len(step.row_ids)
        self.history.num_target_tokens += num_targets
        meter.add(step, loss_sum=stats.loss_sum, num_targets=num_targets, grad_norm=stats.grad_norm)

    def _not_finite(self, step: StepBatch) -> InputError:
        """Every worker comes here in the same step, because the norm of the gradient is that of all."""
        row_ids = np.sort(np.concatenate(self.parallel.gather(step.row_ids)))
        named = ", ".join(map(str, row_ids[:_ROWS_NAMED]))
        more = f" and {len(row_ids) - _ROWS_NAMED} more" if len(row_ids) > _ROWS_NAMED else ""
        rate = learning_rate(step.step, self.job.config.num_steps, self.job.config.optim)
        return InputError(
            f"the loss or its gradient is not finite in step {step.step + 1} (learning rate {rate:g}); "
            f"{self.checkpoints.describe()}; its rows (row_id of corpus/) are {named}{more}. "
            f"{advice(self.checkpoints.encoder())}; if it is always these rows, look at their texts"
        )

    def _log(self, done: int, meter: StepMeter) -> None:
        config = self.job.config
        measured = meter.summed(self.parallel)
        self.history.losses.append((done, measured.loss))
        rate = learning_rate(done - 1, config.num_steps, config.optim)
        self.metrics.keep(done, measured.metrics(loss_name=config.loss_name, rate=rate))
        self.feeding.add(meter)
        self._show(done, measured.note() + self._validation_note())

    def _validation_note(self) -> str:
        named = (
            ("validation loss", self.history.validation_losses),
            ("retrieval", self.history.retrieval_mrrs),
            ("task", self.history.task_scores),
        )
        return "".join(f", {name} {curve[-1][1]:.3f}" for name, curve in named if curve)

    def _idle_batch(self) -> Batch:
        """A row for steps in which this worker has none: it runs with weight 0, so that all workers meet."""
        row_ids, tokens = TokenRows.open(self.job.workspace, self.job.tokens).read(np.zeros(1, np.int64))
        batch = self.job.objective.make_batch(tokens, row_ids, seed=self.job.seed, epoch=0)
        return batch | {"row_ids": row_ids[:0]}  # nobody's negatives, where a loss compares rows

    def _validate(self, done: int) -> None:
        """Measures held-out rows and validation task; keeps the best encoder so far, where asked for."""
        config, history = self.job.config, self.history
        self.parallel.model.eval()
        self.encoder.eval()
        loss = self.held_out.loss()
        mrr = self.held_out.retrieval(self.encoder)
        if loss is not None:
            history.validation_losses.append((done, loss))
            self.metrics.keep(done, {f"validation_loss_{config.loss_name}": loss})
        if mrr is not None:
            history.retrieval_mrrs.append((done, mrr))
            self.metrics.keep(done, {"validation_retrieval_mrr": mrr})
        if self.task_score is not None:
            score = self.task_score(self.encoder)
            history.task_scores.append((done, score))
            self.metrics.keep(done, {"validation_task_score": score})
        if config.keep == "best" and best_step(history, config.early_stopping) == done:
            weights = self.parallel.weights()
            if self.rank == 0:
                shutil.rmtree(self.best, ignore_errors=True)
                self._save_encoder(self.best, weights)
        self.parallel.model.train()
        self.encoder.train()

    def _checkpoint(self, done: int, *, last: bool) -> None:
        """Reports a checkpoint (all workers meet here), then logs what it covers: nothing is logged twice."""
        history = self._global_history()
        weights, optimizer = self.parallel.weights(), self.parallel.optimizer_state()
        self._refuse_broken(done, weights)

        def write(folder: Path) -> None:
            extra = {
                "history": history.to_plain(),
                "seed": self.job.seed,
                "config": config_to_dict(self.job.config),
                "metrics": self.metrics.pending,
            }
            state = TrainingState(step=done, weights=weights, optimizer=optimizer, extra=extra)
            write_state(folder / STATE_FOLDER, state)
            if any(self.best.iterdir()):
                shutil.copytree(self.best, folder / BEST_FOLDER)
            if last:
                self._export(folder / ENCODER_FOLDER, weights, history, num_steps=done)
            else:  # so that another training can start here, should this one fail
                self._save_encoder(folder / ENCODER_FOLDER, weights)

        self.checkpoints.report(done, write if self.rank == 0 else None)
        self.metrics.flush()

    def _refuse_broken(self, done: int, weights: dict[str, Tensor]) -> None:
        """Nobody can start from a checkpoint of broken weights, so the one before stays the last."""
        broken = broken_part(weights, None if self.parallel.sharded else self.encoder)
        if broken is not None:
            raise InputError(
                f"the weights are not finite after step {done} ({broken}); {self.checkpoints.describe()}. "
                f"{advice(self.checkpoints.encoder())}"
            )

    def _global_history(self) -> History:
        """The history with the sums over all workers; the curves are the same on each."""
        history = self.history
        sentences, targets = self.parallel.sum(history.num_sentences, history.num_target_tokens)
        return replace(
            history.with_digests_of(self.parallel.gather(history)),
            num_sentences=int(sentences),
            num_target_tokens=int(targets),
        )

    def _export(self, folder: Path, weights: dict[str, Tensor], history: History, *, num_steps: int) -> None:
        """The result of the run: the encoder of the last step or of the best validation, and the log."""
        config = self.job.config
        kept = num_steps
        if config.keep == "best" and any(self.best.iterdir()):
            kept = best_step(history, config.early_stopping) or 0
            shutil.copytree(self.best, folder)
        else:
            self._save_encoder(folder, weights)
        log = history.to_plain() | {"num_steps": num_steps, "kept_step": kept, "seed": self.job.seed}
        log["steps_per_stream_digest"] = digest_window(config.num_steps)
        del log["open_window"]
        (folder / LOG_NAME).write_text(json.dumps(log, indent=2, sort_keys=True) + "\n")

    def _save_encoder(self, folder: Path, weights: dict[str, Tensor]) -> None:
        encoder, model = self.encoder, self.parallel.model
        if self.parallel.sharded:
            encoder, model = self._build()
            model.load_state_dict(weights)
        was_training = model.training
        model.eval()
        head = getattr(getattr(model, "tsdae", model), "lm_head", None)
        encoder.save(folder, lm_head=head if isinstance(head, LmHead) else None)
        model.train(was_training)

    def _show(self, step: int, note: str) -> None:
        if self.rank == 0:
            state = {
                "first_step": self.first_step,
                "step": step,
                "note": note,
                "summary": self.feeding.told(),
            }
            self.links.show(state)
