"""Ray Train on the driver: one training to its end, started again when something was lost on the way.

Only losses are worth another try: a killed worker, node or task. What the settings or the data are to blame
for, and a full disk, would come again, and ends the training at once.
"""

from __future__ import annotations

import pickle

import ray.train
from ray.exceptions import RayError
from ray.train.torch import TorchTrainer

from pipelines.progress import Reporter, Tracker
from pipelines.progress_board import followed, last_state
from pipelines.shards import user_error_in
from pipelines.train_config import TrainConfig
from pipelines.train_entry import train_entry
from pipelines.train_job import TrainJob

_KEPT_CHECKPOINTS = 2


def run_training(job: TrainJob, *, reporter: Reporter) -> ray.train.Checkpoint:
    """Trains to the end and returns the last checkpoint, which holds the encoder.

    Raises:
        ValueError: a worker found the settings, the data or the disk unfit.
    """
    config = job.config
    with reporter.track("train", total=config.num_steps, unit="steps") as progress:
        failures = 0
        while (
            checkpoint := _attempt(job, progress, reporter, is_last=failures == config.max_failures)
        ) is None:
            failures += 1
    if summary := last_state(job.board).get("summary"):
        reporter.note(f"  train: {summary}")
    return checkpoint


def _attempt(
    job: TrainJob, progress: Tracker, reporter: Reporter, *, is_last: bool
) -> ray.train.Checkpoint | None:
    """One start of the workers; None when they were lost and may be started again."""
    try:
        with followed(job.board, progress):
            result = _trainer(job).fit()
    except (RayError, ray.train.TrainingFailedError) as error:
        if (user_error := user_error_in(error)) is not None:
            raise user_error from error
        if is_last:
            raise
        reporter.note(f"  train: lost a worker ({_reason(error)}); going on from the last checkpoint")
        return None
    assert isinstance(result.checkpoint, ray.train.Checkpoint)
    return result.checkpoint


def _trainer(job: TrainJob) -> TorchTrainer:
    storage = job.storage
    folder, _, name = storage.path.rpartition("/")
    return TorchTrainer(
        train_entry,
        train_loop_config={"job": pickle.dumps(job)},
        scaling_config=ray.train.ScalingConfig(
            num_workers=job.config.num_workers,
            use_gpu=job.config.gpus_per_worker > 0,
            resources_per_worker=_resources(job.config),
        ),
        run_config=ray.train.RunConfig(
            name=name,
            storage_path=folder,
            storage_filesystem=None if storage.is_local else storage.filesystem,
            failure_config=ray.train.FailureConfig(max_failures=0),  # `run_training` decides, not Ray
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=_KEPT_CHECKPOINTS),
        ),
    )


def _resources(config: TrainConfig) -> dict[str, float]:
    resources = {"CPU": config.cpus_per_worker}
    if config.gpus_per_worker:
        resources["GPU"] = config.gpus_per_worker
    return resources


def _reason(error: BaseException) -> str:
    """The first line of the first worker's error, which says more than that of the whole."""
    failures = getattr(error, "worker_failures", {})
    first = next(iter(failures.values()), error)
    lines = [line.strip() for line in str(first).splitlines() if line.strip()]
    return lines[0] if lines else type(first).__name__
