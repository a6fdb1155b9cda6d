"""The train stage on the driver: labels, starting encoder, tokens, one MLflow run, Ray Train, the encoder.

Interrupted at any moment, the same command goes on from the last checkpoint: Ray Train finds it under a run
name made of the stage's fingerprint, MLflow's run by the same fingerprint.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ray.train

from pipelines.config import RunConfig
from pipelines.config_values import config_to_dict
from pipelines.labels import LABELS_FOLDER, prepare_labels
from pipelines.lanes import LanePlan
from pipelines.manifest import Manifest, StageFolder
from pipelines.progress import Reporter
from pipelines.progress_board import new_board
from pipelines.pseudo_labels import PSEUDO_LABELS_FOLDER, generates, make_pseudo_labels
from pipelines.start import resolve_start
from pipelines.storage import Location, address_below
from pipelines.task_source import TaskSource
from pipelines.token_shards import tokenize
from pipelines.tracking import Tracker
from pipelines.train_config import TrainConfig
from pipelines.train_job import ENCODER_FOLDER, LOG_NAME, Training, TrainJob
from pipelines.train_run import run_training
from pipelines.training_record import log_training_artifacts, open_training_run
from pipelines.training_runs import TRAINING_FOLDER, remove_other_runs
from pipelines.validation_task import validation_source

_NAME_LENGTH = 16
# Settings that change where and how fast training runs, not what it computes.
SPEED_ONLY = (
    "num_workers",
    "cpus_per_worker",
    "gpus_per_worker",
    "threads_per_worker",
    "strategy",
    "gradient_checkpointing",
    "max_failures",
    "checkpoint_every",
)


# Sections of objectives that came after fingerprints were made: they count where they are in force only, so
# that other trainings keep theirs.
_ADDED_LATER = ("margin_mse",)


def train(
    config: RunConfig,
    workspace: Location,
    corpus: Manifest,
    *,
    reporter: Reporter,
    home: Location | None = None,
) -> Manifest:
    """Runs the stage unless it is finished; writes `encoder/`.

    Args:
        config: its `train` and `model` say what to do.
        workspace: where `start/`, `tokens/`, `training/` and `encoder/` go.
        corpus: manifest of the corpus.
        reporter: progress.
        home: the run's own workspace, with the corpus and the tracking, where it is another one (phases).

    Raises:
        InputError: labelled rows, the starting encoder, the settings or the tracking server cannot be used.
    """
    home = home or workspace
    validation = _validation(config.train)
    start, rows, folder = _start_and_rows(config, workspace, corpus, home, reporter)
    tokens = tokenize(config, workspace, rows, start, folder, reporter=reporter)
    inputs = {"start": start.digest, "tokens": tokens.digest} | _more_inputs(config.train, rows, validation)
    settings = _settings(config.train) | {"seed": config.seed}
    stage = StageFolder(workspace / ENCODER_FOLDER, stage="encoder", config=settings, inputs=inputs)
    if (manifest := stage.finished()) is not None:
        reporter.note(f"train: up to date, {manifest.counts['steps']:,} steps")
        return manifest
    stage.begin()
    name = stage.fingerprint[:_NAME_LENGTH]
    remove_other_runs(workspace, current=name, start=config.model.start, is_finished=False)
    tracker = Tracker.of(config, home)
    run_id = open_training_run(
        config,
        home,
        tracker,
        fingerprint=stage.fingerprint,
        rows=rows,
        folder=folder,
        start=start,
        validation=validation,
    )
    job = _job(config, workspace, tokens, tracker, run_id, name=name)
    _announce(job.config, job.plan, reporter)
    try:
        checkpoint = run_training(job, reporter=reporter)
        manifest = _take_encoder(stage, checkpoint)
        log_training_artifacts(tracker, run_id, stage.folder, config)
    except BaseException:
        tracker.close_run(run_id, status="FAILED")
        raise
    tracker.close_run(run_id, status="FINISHED")
    remove_other_runs(workspace, current=name, start=config.model.start, is_finished=True)
    return manifest


def _start_and_rows(
    config: RunConfig, workspace: Location, corpus: Manifest, home: Location, reporter: Reporter
) -> tuple[Manifest, Manifest, Location]:
    """The encoder that training begins with, the rows that it reads and where they lie."""
    rows, folder = corpus, home / "corpus"
    if config.train.labels is not None:
        folder = workspace / LABELS_FOLDER
        if not generates(config.train):  # bad rows show before anything is loaded
            rows = prepare_labels(config.train, workspace, reporter=reporter)
    start = resolve_start(config, workspace, corpus, home / "corpus", reporter=reporter)
    if generates(config.train):
        rows = _generated(config, workspace, start, home, reporter)
    return start, rows, folder


def _generated(
    config: RunConfig, workspace: Location, start: Manifest, home: Location, reporter: Reporter
) -> Manifest:
    """The labelled rows of a training that makes them itself, read as any others are."""
    make_pseudo_labels(config, workspace, start, home=home, reporter=reporter)
    place = address_below(workspace / PSEUDO_LABELS_FOLDER, home, config.workspace)
    assert config.train.labels is not None
    labels = replace(config.train.labels, input=place, generate=None)
    return prepare_labels(replace(config.train, labels=labels), workspace, reporter=reporter)


def _more_inputs(config: TrainConfig, rows: Manifest, validation: TaskSource | None) -> dict[str, str]:
    """Labelled rows and the validation task, where there are some."""
    labels = {} if config.labels is None else {"labels": rows.digest}
    return labels | ({} if validation is None else {"validation_task": validation.fingerprint()})


def _validation(config: TrainConfig) -> TaskSource | None:
    """The task of early_stopping, read once so that a bad one fails before anything is done."""
    source = validation_source(config.early_stopping.task)
    if source is not None:
        source.load()
    return source


def _settings(config: TrainConfig) -> dict[str, Any]:
    """What a training computes depends on; the places of its inputs do not count, their digests do."""
    settings = {key: value for key, value in config_to_dict(config).items() if key not in SPEED_ONLY}
    if settings["labels"] is not None:
        settings["labels"].pop("input")
        settings["labels"].pop("generate")
    for name in _ADDED_LATER:
        if name != config.objective:
            settings.pop(name)
    if settings["early_stopping"]["task"] is not None:
        settings["early_stopping"]["task"].pop("folder")
    return settings


def _job(
    config: RunConfig, workspace: Location, tokens: Manifest, tracker: Tracker, run_id: str, *, name: str
) -> TrainJob:
    training = Training.of(config, workspace, tokens, storage=workspace / TRAINING_FOLDER / name)
    return TrainJob(**vars(training), tracker=tracker, run_id=run_id, board=new_board())


def _announce(config: TrainConfig, plan: LanePlan, reporter: Reporter) -> None:
    epochs = config.num_steps / plan.steps_per_epoch
    unit = "sentences" if config.labels is None else "rows"
    reporter.note(
        f"train: {config.objective}, {config.num_steps:,} steps of {config.batch_size} {unit} "
        f"({epochs:.2f} passes over {plan.num_rows:,}), {config.num_workers} workers"
    )


def _take_encoder(stage: StageFolder, checkpoint: ray.train.Checkpoint) -> Manifest:
    from tsdae_core.encoder import SentenceEncoder

    with checkpoint.as_directory() as folder:
        encoder = Path(folder) / ENCODER_FOLDER
        assert encoder.is_dir(), f"the last checkpoint {checkpoint} has no encoder"
        files = stage.folder.upload_folder(encoder)
        loaded = SentenceEncoder.load(str(encoder))
    log = (stage.folder / LOG_NAME).read_json()
    facts = {
        "encoder_fingerprint": loaded.fingerprint(),
        "stream_digest": f"{log['stream_digest']:016x}",
        "last_loss": log["losses"][-1][1],
        "validation_losses": log["validation_losses"],
        "retrieval_mrrs": log["retrieval_mrrs"],
        "task_scores": log["task_scores"],
        "kept_step": log["kept_step"],
    }
    counts = {
        "steps": log["num_steps"],
        "sentences": log["num_sentences"],
        "target_tokens": log["num_target_tokens"],
        "dim": loaded.dim,
    }
    return stage.finish(counts=counts, files=files, facts=facts)
