"""One cell inside one Ray task: an encoder by its recipe, then its scores.

Whatever is there already is not made again, and a training goes on from its newest checkpoint, so the same
call after a kill ends with the same files. Must not know which cells there are.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from indexing.evaluation.scorers import Scorer, VectorScorer
from pipelines.code_version import code_version
from pipelines.collection import sample_texts
from pipelines.compared_system import ComparedSystem
from pipelines.config import RunConfig
from pipelines.local_training import train_here
from pipelines.progress import Reporter
from pipelines.start import START_FOLDER
from pipelines.storage import Location
from pipelines.study.grid import Cell
from pipelines.study.material import corpus_manifest, locked, make_material
from pipelines.study.study_config import SystemConfig
from pipelines.study.task_scores import CellTask, score_into, scores_place
from pipelines.train_job import LOG_NAME, Training
from tsdae_core.encoder import SentenceEncoder

ENCODER_FOLDER = "encoder"
MADE_NAME = "made.json"
_TRAINING_FOLDER = "training"
_HANDED_ON = "handed-on"

# Takes what a person is to see of a running cell.
Show = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class CellJob:
    """A cell and all the places it needs; picklable.

    place: the cell's folder. home: has the prepared corpus, where the cell reads it. labels: folders of
    labelled rows by name. material: has, or gets, start and tokens of its first training. encoder: a folder
    that a training of its own has left, if any.
    """

    cell: Cell
    key: str
    place: Location
    tasks: tuple[CellTask, ...]
    home: Location | None = None
    labels: Mapping[str, Location] = field(default_factory=dict)
    material: Location | None = None
    encoder: Location | None = None
    keep_encoder: bool = True

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return not self.missing_tasks()

    def missing_tasks(self) -> list[CellTask]:
        """The tasks that the cell has not been scored on."""
        return [task for task in self.tasks if not scores_place(self.place, task).exists()]


def run_cell(job: CellJob, show: Show) -> None:
    """Makes what is missing of a cell.

    Raises:
        ValueError: settings, data or disk are unfit.
    """
    with locked(job.place):
        job.place.delete_temporary_files()
        todo = job.missing_tasks()
        if not todo:
            return
        if _makes_encoder(job.cell.system) and not (job.place / MADE_NAME).exists():
            _make(job, show)
        for task in todo:
            show(f"scoring {task.name}")
            score_into(job.place, task, _scorer(job, task))
        (job.place / _TRAINING_FOLDER).delete()
        if not job.keep_encoder:
            (job.place / MADE_NAME).delete()
            (job.place / ENCODER_FOLDER).delete()


def _makes_encoder(system: SystemConfig) -> bool:
    return system.kind in ("trained", "start", "sent2vec")


def _make(job: CellJob, show: Show) -> None:
    """Writes the encoder's folder, then what is to be remembered of its making."""
    started_s = time.monotonic()
    system = job.cell.system
    facts: dict[str, Any] = {}
    if system.kind == "sent2vec":
        show("sent2vec")
        _fit_sent2vec(job)
    else:
        source, facts = _transformer(job, show)
        with source.as_local_folder() as folder:
            if system.transform == "none":
                (job.place / ENCODER_FOLDER).upload_folder(folder)
            else:
                show(system.transform)
                _fit_transform(job, folder)
    seconds = round(time.monotonic() - started_s, 1)
    (job.place / MADE_NAME).write_json({**facts, "seconds": seconds, "version": code_version()})


def _transformer(job: CellJob, show: Show) -> tuple[Location, dict[str, Any]]:
    """The folder of the encoder, trained or as it starts, and its training log."""
    reporter = Reporter.silent()
    if job.encoder is not None:
        return job.encoder, _log(job.encoder)
    assert job.home is not None
    assert job.material is not None
    if not job.cell.system.trains:
        _, first = job.cell.trainings[0]
        make_material(first, job.material, job.home, job.labels, reporter=reporter)
        return job.material / START_FOLDER, {}
    *earlier, (last_name, last) = job.cell.trainings
    material = job.material
    for name, part in earlier:
        encoder = _train(job, _from(part, material), material, name, show, is_last=False)
        material = job.place / _TRAINING_FOLDER / f"after-{name}"
        with encoder.as_local_folder() as folder:
            (material / _HANDED_ON).upload_folder(folder)
    encoder = _train(job, _from(last, material), material, last_name, show, is_last=True)
    return encoder, _log(encoder)


def _from(part: RunConfig, material: Location) -> RunConfig:
    """The settings of a training that starts where the one before ended, if there was one."""
    handed_on = material / _HANDED_ON
    if not handed_on.exists():
        return part
    model = replace(part.model, start=str(handed_on.local_path), add_tokens_file=None, mine_tokens=0)
    return replace(part, model=model)


def _train(
    job: CellJob, config: RunConfig, material: Location, name: str, show: Show, *, is_last: bool
) -> Location:
    assert job.home is not None
    tokens = make_material(config, material, job.home, job.labels, reporter=Reporter.silent())
    training = Training.of(config, material, tokens, storage=job.place / _TRAINING_FOLDER / name)
    steps = set(job.cell.score_steps) if is_last else set()
    total = config.train.num_steps

    def look(done: int, encoder: SentenceEncoder) -> None:
        if done in steps:
            for task in job.tasks:
                if not scores_place(job.place, task, done).exists():
                    score_into(job.place, task, VectorScorer(encoder.encode), done)

    return train_here(
        training,
        device=torch.device("cuda" if config.train.gpus_per_worker else "cpu"),
        show=lambda state: show(f"{name} {state['step']:,}/{total:,}"),
        after_step=look if steps else None,
    )


def _log(encoder: Location) -> dict[str, Any]:
    """What a study keeps of a training's log."""
    log = (encoder / LOG_NAME).read_json()
    return {key: log[key] for key in ("losses", "validation_losses", "num_steps", "num_sentences")}


def _fit_transform(job: CellJob, folder: Path) -> None:
    from tsdae_core.flow import FlowConfig, fit_flow
    from tsdae_core.whitening import fit_whitening

    system = job.cell.system
    encoder = SentenceEncoder.load(str(folder))
    vectors = encoder.encode(_texts(job))
    if system.transform == "whitening":
        encoder.heads.append(fit_whitening([vectors]))
    else:
        config = FlowConfig(lr=system.flow_lr, num_epochs=system.flow_epochs)
        encoder.heads.append(fit_flow(vectors, config, seed=job.cell.seed)[0])
    _save(job, encoder)


def _fit_sent2vec(job: CellJob) -> None:
    from tsdae_core.sent2vec import Sent2VecConfig, train_sent2vec

    system = job.cell.system
    config = Sent2VecConfig(
        dim=system.sent2vec_dim, num_epochs=system.sent2vec_epochs, min_count=system.sent2vec_min_count
    )
    _save(job, train_sent2vec(_texts(job), config, seed=job.cell.seed))


def _save(job: CellJob, encoder: Any) -> None:
    with tempfile.TemporaryDirectory(prefix="tsdae-cell-") as folder:
        encoder.save(Path(folder))
        (job.place / ENCODER_FOLDER).upload_folder(Path(folder))


def _texts(job: CellJob) -> list[str]:
    assert job.home is not None
    return sample_texts(job.home / "corpus", corpus_manifest(job.home), job.cell.system.max_texts)


def _scorer(job: CellJob, task: CellTask) -> Scorer:
    system = job.cell.system
    compared = ComparedSystem(name="cell", kind="encoder", source=str(job.place / ENCODER_FOLDER))
    if system.kind in ("bm25", "words", "words_idf", "encoder"):
        compared = ComparedSystem(name="cell", kind=system.kind, source=system.source)
    train = job.cell.config.train
    device = "cuda" if train.gpus_per_worker else "cpu"
    return compared.scorer(task.source.load(), threads=train.threads_per_worker, device=device)
