"""A study from its cells to its report, on one cluster; cells that are there are not run again."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from indexing.evaluation.study_report import StudyReport
from pipelines.cluster import connected
from pipelines.config import RunConfig
from pipelines.errors import InputError
from pipelines.progress import Reporter
from pipelines.storage import Location
from pipelines.study.grid import Cell, Chosen, cells_of
from pipelines.study.identity import Prepared, cell_key
from pipelines.study.label_efficiency import Search, search_labels
from pipelines.study.live import StudyView
from pipelines.study.material import (
    corpus_manifest,
    labels_manifest,
    material_name,
    prepare_corpora,
    prepare_label_sets,
)
from pipelines.study.raw import RAW_FOLDER, is_taken, write_raw, write_study_file
from pipelines.study.run_cell import CellJob
from pipelines.study.schedule import run_cells
from pipelines.study.study_config import Domain, StudyConfig
from pipelines.study.study_report_files import write_study_report
from pipelines.study.task_scores import CellTask
from pipelines.study.track import StudyRuns
from pipelines.study.tuning import Tuning, chosen_of, tunings_of
from pipelines.task_source import TaskSource
from pipelines.tracking import Tracker
from pipelines.workspace_lock import only_one


def study_folder(study: StudyConfig, size: str) -> Location:
    """Where the report and the small files of a study are."""
    return Location.parse(study.workspace) / study.name / (size or "default")


def run_study(study: StudyConfig, *, size: str, reporter: Reporter) -> StudyReport:
    """Runs what is missing, then writes the report.

    Raises:
        InputError: data or settings cannot be used, some cells failed (the others are kept, and reported), or
            the study is at work already.
    """
    cells = cells_of(study)
    folder = study_folder(study, size)
    first = cells[0].config
    Tracker.of(first, folder).check()
    large = next((cell.config for cell in cells if cell.is_large), None)
    cluster = RunConfig(cluster=first.cluster) if large is None else large
    with (
        only_one(folder, note=reporter.note),
        connected(cluster, replicas_cpus=1.0 if large is None else None),
    ):
        runs = StudyRuns(Tracker.of(first, folder), study, size=size)
        work = _Work(study, folder, runs, reporter)
        chosen, failed = work.tune()
        failed |= work.run(cells_of(study, chosen))
        if study.search is not None:
            failed |= work.search(chosen)
        work.write(size=size)
        report, names = write_study_report(folder)
        means: dict[str, dict[str, float]] = {}
        for (setting, column), cell in report.table.cells.items():
            means.setdefault(setting, {})[column] = cell.mean
        runs.log_report(folder, names, means)
        runs.close(is_whole=not failed)
    if failed:
        title, reason = next(iter(failed.items()))
        raise InputError(
            f"{len(failed)} cells failed, the report in '{folder}' is without them; the first: {title}: "
            f"{reason}"
        )
    return report


class _Work:
    """The cells of a study on their way, and what is known of them: `keyed` has each with its key."""

    def __init__(self, study: StudyConfig, folder: Location, runs: StudyRuns, reporter: Reporter):
        self._study, self._folder, self._runs, self._reporter = study, folder, runs, reporter
        self._workspace = Location.parse(study.workspace)
        domains = study.domains.values()
        used = dict.fromkeys(name for domain in domains for name in (*domain.tasks, *_dev(study, domain)))
        self._tasks = {name: CellTask.of(name, _source(study, name)) for name in used}
        self.keyed: list[tuple[Cell, str]] = []
        self.searches: list[Search] = []
        self.tunings: list[Tuning] = []

    def tune(self) -> tuple[Chosen, dict[str, str]]:
        """Searches on development data; returns what is chosen, and reasons by title of failed cells.

        A value that cannot be trained with is no failure while another of the setting can.
        """
        tunings = tunings_of(self._study)
        cells = [trial.cell for tuning in tunings for trial in tuning.trials]
        if not cells:
            return {}, {}
        self._reporter.note(f"study: {len(cells)} trainings for development data choose what is tested")
        keyed, jobs = self._jobs(cells)
        failed = self._run(keyed, jobs)
        found = iter([(key, self._score(cell, key)) for cell, key in keyed])
        self.tunings = [tuning.told(list(itertools.islice(found, len(tuning.trials)))) for tuning in tunings]
        lost = {trial.cell.title for one in self.tunings if one.chosen is None for trial in one.trials}
        lasting = {title: reason for title, reason in failed.items() if title in lost}
        return chosen_of(self._study, self.tunings), lasting

    def run(self, cells: Sequence[Cell]) -> dict[str, str]:
        """Runs those that are not done; returns reasons by title of those that failed."""
        keyed, jobs = self._jobs(cells)
        self.keyed += keyed
        self.write(size=self._folder.name)
        return self._run(keyed, jobs)

    def write(self, *, size: str) -> None:
        """What is asked, and what the searches have found."""
        write_study_file(
            self._folder, self._study, self.keyed, size=size, searches=self.searches, tunings=self.tunings
        )

    def _jobs(self, cells: Sequence[Cell]) -> tuple[list[tuple[Cell, str]], dict[str, CellJob]]:
        """Cells with their keys, and the job of each key; prepares what they read."""
        homes = prepare_corpora(cells, self._workspace / "material", reporter=self._reporter)
        labels = prepare_label_sets(cells, self._workspace / "material", reporter=self._reporter)
        prepared = {name: Prepared.of(corpus_manifest(home)) for name, home in homes.items()}
        prepared |= {name: Prepared.of(labels_manifest(place)) for name, place in labels.items()}
        digests = {name: rows.digest for name, rows in prepared.items()}
        keyed = [(cell, cell_key(cell, prepared)) for cell in cells]
        jobs: dict[str, CellJob] = {}
        for cell, key in keyed:
            jobs[key] = self._job(cell, key, (homes, labels, digests), jobs.get(key))
        return keyed, jobs

    def _run(self, keyed: Sequence[tuple[Cell, str]], jobs: Mapping[str, CellJob]) -> dict[str, str]:
        done = [job for job in jobs.values() if job.is_done]
        for job in done:
            self._take(job)
        todo = [job for job in jobs.values() if not job.is_done]
        self._reporter.note(f"study: {len(done)} cells are there, {len(todo)} to run")
        view = StudyView(self._reporter, keyed, done=[job.key for job in done])
        failed = run_cells(todo, view, on_done=self._take, reporter=self._reporter)
        return {jobs[key].cell.title: reason for key, reason in failed.items()}

    def search(self, chosen: Chosen) -> dict[str, str]:
        """Runs the search for labelled rows; returns reasons by title of cells that failed."""
        failed: dict[str, str] = {}

        def run(cells: Sequence[Cell]) -> dict[int, float]:
            failed.update(self.run(cells))
            keys = [key for _, key in self.keyed[-len(cells) :]]
            scores = [self._score(cell, key) for cell, key in zip(cells, keys, strict=True)]
            return {i: score for i, score in enumerate(scores) if score is not None}

        assert self._study.search is not None
        targets: dict[str, list[float]] = {domain: [] for domain in self._study.domains}
        for cell, key in self.keyed:
            score = self._score(cell, key)
            if cell.setting.label == self._study.search.match and score is not None:
                targets[cell.domain].append(score)
        self.searches = search_labels(self._study, targets, run, chosen)
        return failed

    def _score(self, cell: Cell, key: str) -> float | None:
        """The mean of a cell's main measures over the tasks that count; None for one that failed."""
        place = self._folder / RAW_FOLDER / f"{key}.json"
        if not place.exists():
            return None
        found = place.read_json()["tasks"]
        names = [name for name in cell.tasks if self._study.tasks[name].in_mean] or list(cell.tasks)
        values = [float(found[name]["values"][found[name]["main_measure"]]) for name in names]
        return sum(values) / len(values)

    def _job(
        self,
        cell: Cell,
        key: str,
        prepared: tuple[dict[str, Location], dict[str, Location], dict[str, str]],
        other: CellJob | None,
    ) -> CellJob:
        """The job of a cell, with the tasks of an equal cell of another domain."""
        homes, labels, digests = prepared
        tasks = tuple(self._tasks[name] for name in cell.tasks)
        if other is not None:
            more = tuple(task for task in tasks if task not in other.tasks)
            return replace(other, tasks=(*other.tasks, *more))
        home = homes.get(cell.config.corpus.input)
        material = None
        if home is not None and cell.system.kind in ("trained", "start"):
            _, first = cell.trainings[0]
            material = (
                self._workspace / "material" / "starts" / material_name(first, corpus_manifest(home), digests)
            )
        return CellJob(
            cell=cell,
            key=key,
            place=self._workspace / "cells" / key,
            tasks=tasks,
            home=home,
            labels=labels,
            material=material,
            keep_encoder=self._study.keep_encoders,
        )

    def _take(self, job: CellJob) -> str:
        """Copies what a finished cell gave and logs it, unless that has been done; returns it in words.

        A task whose contents have changed since is another.
        """
        if is_taken(self._folder, job):
            raw: dict[str, Any] = (self._folder / RAW_FOLDER / f"{job.key}.json").read_json()
        else:
            raw = write_raw(self._folder, job)
            self._runs.log_cell(job, raw)
        return ", ".join(
            f"{name} {100 * scores['values'][scores['main_measure']]:.1f}"
            for name, scores in raw["tasks"].items()
        )


def _source(study: StudyConfig, name: str) -> TaskSource:
    task = study.tasks[name]
    return TaskSource(
        name=name,
        kind=task.kind,
        place=Location.parse(task.folder),
        split=task.split,
        qrels=task.qrels,
        top_k=task.top_k,
    )


def _dev(study: StudyConfig, domain: Domain) -> tuple[str, ...]:
    return () if study.tune is None else domain.dev
