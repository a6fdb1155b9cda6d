"""MLflow runs: one per training through any restart, with parameters, metrics, inputs and artifacts.

With `registry` (versions and aliases) and `registry_model` (the code that is logged with a version) the only
importer of mlflow, which it imports where it is called: that takes two seconds, and most train workers only
carry a Tracker along. A run is found again by its fingerprint, so restarts and reruns go on with it instead
of making a second one.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.config import RunConfig
from pipelines.errors import InputError
from pipelines.storage import Location

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

FINGERPRINT_TAG = "tsdae.fingerprint"
_URI_VARIABLE = "MLFLOW_TRACKING_URI"
_PARENT_TAG = "mlflow.parentRunId"
_SQLITE = "sqlite:///"
_SYSTEM = "system/"
_MAX_PARAM_CHARS = 5_000
_METRICS_PER_CALL = 1_000
_PARAMS_PER_CALL = 100
_MAX_DIGEST_CHARS = 36


@dataclass(frozen=True)
class Tracker:
    """Where runs are logged: a tracking URI and an experiment. Picklable; workers use it with a run id.

    system_metrics_every_s: seconds between two readings of a node's CPU, memory, disk, network and GPU; 0 is
    never.
    """

    uri: str
    experiment: str
    artifact_root: str | None
    system_metrics_every_s: float = 0.0

    @staticmethod
    def of(config: RunConfig, workspace: Location) -> Tracker:
        """The configured tracking server, MLFLOW_TRACKING_URI, or a sqlite database in the workspace.

        Raises:
            InputError: the workspace is remote and no server is named.
        """
        settings = config.tracking
        every_s = settings.system_metrics_every_s
        uri = settings.uri or os.environ.get(_URI_VARIABLE)
        if uri:
            return Tracker(uri, settings.experiment, None, every_s)
        if not workspace.is_local:
            raise InputError(
                "a remote workspace needs an MLflow server: set tracking.uri or MLFLOW_TRACKING_URI"
            )
        folder = workspace.local_path
        folder.mkdir(parents=True, exist_ok=True)
        database = f"{_SQLITE}{folder / 'mlflow.db'}"
        return Tracker(database, settings.experiment, str(folder / "mlartifacts"), every_s)

    def client(self) -> MlflowClient:
        """An MLflow client of this server.

        Raises:
            InputError: a sqlite database that cannot be opened or is none.
        """
        from mlflow.tracking import MlflowClient

        _quiet()
        _check_sqlite(self.uri)
        return MlflowClient(self.uri)

    def check(self) -> None:
        """Answers quickly whether runs can be logged at all.

        Raises:
            InputError: the server does not answer, or the database cannot be used.
        """
        if self.uri.startswith(_SQLITE):
            _check_sqlite(self.uri)
        else:
            self.experiment_id()

    def find_run(self, fingerprint: str) -> str | None:
        """The id of the run with this fingerprint, if there is one."""
        with self.refusals():
            runs = self.client().search_runs(
                [self.experiment_id()], f"tags.`{FINGERPRINT_TAG}` = '{fingerprint}'", max_results=1
            )
        return str(runs[0].info.run_id) if runs else None

    def open_run(
        self, name: str, *, fingerprint: str, params: Mapping[str, Any], parent: str | None = None
    ) -> str:
        """The id of the run with this fingerprint, made now if there is none, below `parent` if given.

        Raises:
            InputError: the server does not answer or refuses.
        """
        with self.refusals():
            found = self.find_run(fingerprint)
            client = self.client()
            if found is not None:
                client.update_run(found, status="RUNNING")
                return found
            from mlflow.entities import Param

            tags = {FINGERPRINT_TAG: fingerprint} | ({_PARENT_TAG: parent} if parent else {})
            run = client.create_run(self.experiment_id(), run_name=name, tags=tags)
            entries = [Param(key, str(value)[:_MAX_PARAM_CHARS]) for key, value in params.items()]
            for i in range(0, len(entries), _PARAMS_PER_CALL):
                client.log_batch(run.info.run_id, params=entries[i : i + _PARAMS_PER_CALL])
        return str(run.info.run_id)

    def experiment_id(self) -> str:
        """The id of the experiment, made now if there is none."""
        with self.refusals():
            client = self.client()
            found = client.get_experiment_by_name(self.experiment)
            if found is not None:
                return str(found.experiment_id)
            return str(client.create_experiment(self.experiment, artifact_location=self.artifact_root))

    def log_metrics(self, run_id: str, rows: Sequence[tuple[int, int, Mapping[str, float]]]) -> None:
        """Logs rows of (global step, ms since 1970, values by name); MLflow drops a row that it holds."""
        from mlflow.entities import Metric

        metrics = [
            Metric(key, float(value), time_ms, step)
            for step, time_ms, values in rows
            for key, value in values.items()
        ]
        with self.refusals():
            client = self.client()
            for i in range(0, len(metrics), _METRICS_PER_CALL):
                client.log_batch(run_id, metrics=metrics[i : i + _METRICS_PER_CALL])

    def last_steps(self, run_id: str) -> dict[str, int]:
        """The last step logged of every metric of a run, but for the system's, which count readings."""
        with self.refusals():
            client = self.client()
            names = [name for name in client.get_run(run_id).data.metrics if not name.startswith(_SYSTEM)]
            histories = {name: client.get_metric_history(run_id, name) for name in names}
        return {name: max(point.step for point in points) for name, points in histories.items()}

    @staticmethod
    def now_ms() -> int:
        """Milliseconds since 1970, the time stamp of metrics."""
        return int(time.time() * 1000)

    def log_input(
        self,
        run_id: str,
        *,
        name: str,
        place: str,
        digest: str,
        context: str,
        columns: Mapping[str, str] | None = None,
        counts: Mapping[str, int] | None = None,
    ) -> None:
        """Records what the run read: a name, the place it came from, its digest, and what it was for.

        The same input again changes nothing.

        Args:
            run_id: the run that read it.
            name: of the dataset.
            place: path or URL.
            digest: of its contents, of any length.
            context: `training` or `evaluation`.
            columns: MLflow's names of types (string, long, float) by name; its schema.
            counts: numbers of rows and the like by name; its profile.
        """
        import mlflow.data.dataset_source_registry
        from mlflow.entities import Dataset, DatasetInput, InputTag

        with warnings.catch_warnings():
            # Several kinds of source fit a path; the one that MLflow takes is as good as the others.
            warnings.simplefilter("ignore", UserWarning)
            source = mlflow.data.dataset_source_registry.resolve_dataset_source(place)
        fields = [
            {"name": column, "type": kind, "required": True} for column, kind in (columns or {}).items()
        ]
        dataset = Dataset(
            name=name,
            digest=dataset_digest(digest),
            source_type=source._get_source_type(),
            source=source.to_json(),
            schema=json.dumps({"mlflow_colspec": fields}) if fields else None,
            profile=json.dumps(dict(counts), sort_keys=True) if counts else None,
        )
        tags = [InputTag("mlflow.data.context", context)]
        with self.refusals():
            self.client().log_inputs(run_id, [DatasetInput(dataset, tags)])

    @contextmanager
    def system_metrics(self, run_id: str, *, node: str) -> Iterator[None]:
        """Logs this machine's CPU, memory, disk, network and GPU while the body runs, under the node's name.

        One caller per node. After a restart the steps go on where they ended.
        """
        if not self.system_metrics_every_s:
            yield
            return
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        monitor = SystemMetricsMonitor(
            run_id,
            sampling_interval=self.system_metrics_every_s,
            resume_logging=True,
            node_id=node,
            tracking_uri=self.uri,
        )
        monitor.start()
        try:
            yield
        finally:
            monitor.finish()

    def log_file(self, run_id: str, path: Path, *, folder: str | None = None) -> None:
        """Stores a file among the run's artifacts."""
        with self.refusals():
            self.client().log_artifact(run_id, str(path), folder)

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Sets tags of a run."""
        from mlflow.entities import RunTag

        with self.refusals():
            self.client().log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])

    def close_run(self, run_id: str, *, status: str) -> None:
        """Marks a run as FINISHED or FAILED."""
        with self.refusals():
            self.client().set_terminated(run_id, status)

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """What the server or database refuses in the body becomes one line that names it.

        Raises:
            InputError: instead of MLflow's and the database's own errors.
        """
        from alembic.util.exc import CommandError
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except MlflowException as error:
            raise InputError(f"the MLflow server at '{self.uri}' refused: {_first_line(error)}") from error
        except (SQLAlchemyError, CommandError) as error:
            raise _unusable(self.uri, _first_line(getattr(error, "orig", None) or error)) from error

    @contextmanager
    def active(self) -> Iterator[None]:
        """Points MLflow's global state (a module variable and an environment variable) here for the body."""
        import mlflow

        _quiet()
        before = os.environ.get(_URI_VARIABLE)
        mlflow.set_tracking_uri(self.uri)
        try:
            yield
        finally:
            mlflow.set_tracking_uri(before or "")
            os.environ.pop(_URI_VARIABLE, None)
            if before is not None:
                os.environ[_URI_VARIABLE] = before


def dataset_digest(digest: str) -> str:
    """The digest of a dataset as MLflow keeps it, which limits its length; the same for inputs and scores."""
    return digest[:_MAX_DIGEST_CHARS]


def legal_name(name: str) -> str:
    """A name made legal for metrics and tags of MLflow."""
    return "".join(sign if sign.isalnum() or sign in "_-. " else "_" for sign in name)


def _check_sqlite(uri: str) -> None:
    """MLflow answers a damaged file with a traceback, and one it cannot open with minutes of retries."""
    if not uri.startswith(_SQLITE):
        return
    path = Path(uri.removeprefix(_SQLITE))
    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as database:
            database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise _unusable(uri, _first_line(error)) from error
    except sqlite3.DatabaseError as error:
        raise _unusable(uri, _first_line(error)) from error


def _unusable(uri: str, reason: str) -> InputError:
    place = uri.removeprefix(_SQLITE)
    return InputError(
        f"the MLflow database '{place}' cannot be used: {reason}; put a copy back, or move it away to begin "
        "a new one (runs and versions in it are then lost)"
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _quiet() -> None:
    """MLflow's own progress notes do not belong between the lines of ours."""
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
