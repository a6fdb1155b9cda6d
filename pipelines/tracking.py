"""MLflow: one run per training, metrics by global step, the registry.

The only file of the pipeline that imports mlflow (besides `registry_model`, the code that is logged with a
model and runs wherever MLflow loads it). A run is found again by its fingerprint, so restarts and reruns
go on with it instead of making a second one.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import mlflow.artifacts
import mlflow.pyfunc
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from pipelines.config import RunConfig
from pipelines.errors import InputError
from pipelines.storage import Location

FINGERPRINT_TAG = "tsdae.fingerprint"
_URI_VARIABLE = "MLFLOW_TRACKING_URI"
_MAX_PARAM_CHARS = 5_000
_METRICS_PER_CALL = 1_000
_PARAMS_PER_CALL = 100
_MODEL_CODE = Path(__file__).with_name("registry_model.py")
_CORE_PACKAGE = Path(__file__).parents[1] / "tsdae_core"


@dataclass(frozen=True)
class Tracker:
    """Where runs are logged: a tracking URI and an experiment. Picklable; workers use it with a run id."""

    uri: str
    experiment: str
    artifact_root: str | None

    @staticmethod
    def of(config: RunConfig, workspace: Location) -> Tracker:
        """The configured tracking server, MLFLOW_TRACKING_URI, or a sqlite database in the workspace.

        Raises:
            InputError: the workspace is remote and no server is named.
        """
        uri = config.tracking.uri or os.environ.get(_URI_VARIABLE)
        if uri:
            return Tracker(uri, config.tracking.experiment, None)
        if not workspace.is_local:
            raise InputError(
                "a remote workspace needs an MLflow server: set tracking.uri or MLFLOW_TRACKING_URI"
            )
        folder = workspace.local_path
        folder.mkdir(parents=True, exist_ok=True)
        return Tracker(
            f"sqlite:///{folder / 'mlflow.db'}", config.tracking.experiment, str(folder / "mlartifacts")
        )

    def client(self) -> MlflowClient:
        """An MLflow client of this server."""
        _quiet()
        return MlflowClient(self.uri)

    def find_run(self, fingerprint: str) -> str | None:
        """The id of the run with this fingerprint, if there is one."""
        runs = self.client().search_runs(
            [self.experiment_id()], f"tags.`{FINGERPRINT_TAG}` = '{fingerprint}'", max_results=1
        )
        return str(runs[0].info.run_id) if runs else None

    def open_run(self, name: str, *, fingerprint: str, params: Mapping[str, Any]) -> str:
        """The id of the run with this fingerprint, made now if there is none.

        Raises:
            InputError: the server does not answer or refuses.
        """
        try:
            found = self.find_run(fingerprint)
            client = self.client()
            if found is not None:
                client.update_run(found, status="RUNNING")
                return found
            run = client.create_run(self.experiment_id(), run_name=name, tags={FINGERPRINT_TAG: fingerprint})
            entries = [Param(key, str(value)[:_MAX_PARAM_CHARS]) for key, value in params.items()]
            for i in range(0, len(entries), _PARAMS_PER_CALL):
                client.log_batch(run.info.run_id, params=entries[i : i + _PARAMS_PER_CALL])
        except MlflowException as error:
            raise InputError(
                f"the MLflow server at '{self.uri}' refused: {str(error).splitlines()[0]}"
            ) from error
        return str(run.info.run_id)

    def experiment_id(self) -> str:
        """The id of the experiment, made now if there is none."""
        client = self.client()
        found = client.get_experiment_by_name(self.experiment)
        if found is not None:
            return str(found.experiment_id)
        return str(client.create_experiment(self.experiment, artifact_location=self.artifact_root))

    def log_metrics(self, run_id: str, rows: Sequence[tuple[int, int, Mapping[str, float]]]) -> None:
        """Logs (global step, milliseconds since 1970, values by name) rows."""
        metrics = [
            Metric(key, float(value), time_ms, step)
            for step, time_ms, values in rows
            for key, value in values.items()
        ]
        client = self.client()
        for i in range(0, len(metrics), _METRICS_PER_CALL):
            client.log_batch(run_id, metrics=metrics[i : i + _METRICS_PER_CALL])

    @staticmethod
    def now_ms() -> int:
        """Milliseconds since 1970, the time stamp of metrics."""
        return int(time.time() * 1000)

    def log_file(self, run_id: str, path: Path, *, folder: str | None = None) -> None:
        """Stores a file among the run's artifacts."""
        self.client().log_artifact(run_id, str(path), folder)

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Sets tags of a run."""
        self.client().log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])

    def close_run(self, run_id: str, *, status: str) -> None:
        """Marks a run as FINISHED or FAILED."""
        self.client().set_terminated(run_id, status)

    def register_encoder(
        self,
        name: str,
        encoder: Path,
        *,
        run_id: str,
        fingerprint: str,
        alias: str,
        tags: Mapping[str, str],
    ) -> str:
        """Logs the encoder as a pyfunc model, registers a version and points the alias at it.

        A version with the same fingerprint is used again. Returns the version number.
        """
        client = self.client()
        version = self._find_version(name, fingerprint)
        if version is None:
            model_uri = self._log_model(encoder, run_id=run_id)
            # MLflow prints that it registered a version; the stage says so itself.
            with self._active(), contextlib.redirect_stderr(io.StringIO()):
                made = mlflow.register_model(model_uri, name, tags={FINGERPRINT_TAG: fingerprint, **tags})
            version = str(made.version)
        client.set_registered_model_alias(name, alias, version)
        return version

    def find_alias(self, name: str, alias: str) -> RegisteredVersion:
        """The registered version that an alias points at.

        Raises:
            InputError: the registry has no such model or alias, or does not answer.
        """
        try:
            found = self.client().get_model_version_by_alias(name, alias)
        except MlflowException as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"no models:/{name}@{alias} at '{self.uri}': {reason}") from error
        return RegisteredVersion(self, name, str(found.version), dict(found.tags))

    def download_encoder(self, name: str, version: str, folder: Path) -> Path:
        """Copies the encoder of a registered version below a local folder; returns the encoder's folder."""
        with self._active():
            model = mlflow.artifacts.download_artifacts(
                artifact_uri=f"models:/{name}/{version}", dst_path=str(folder)
            )
        return Path(model) / "artifacts" / "encoder"

    def fetch_encoder(self, model_uri: str, folder: Path) -> Path:
        """Copies the encoder of `models:/NAME@ALIAS` or `models:/NAME/VERSION` below a local folder.

        Raises:
            InputError: the registry has no such model, or the model holds no encoder of ours.
        """
        model, at, alias = model_uri.removeprefix("models:/").partition("@")
        name, _, version = model.rpartition("/")
        if at:
            name, version = model, self.find_alias(model, alias).version
        try:
            encoder = self.download_encoder(name, version, folder)
        except (MlflowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"cannot fetch '{model_uri}' from '{self.uri}': {reason}") from error
        if not encoder.is_dir():
            raise InputError(f"'{model_uri}' holds no encoder: it was not registered by `tsdae register`")
        return encoder

    def _find_version(self, name: str, fingerprint: str) -> str | None:
        for version in self.client().search_model_versions(f"name = '{name}'"):
            if version.tags.get(FINGERPRINT_TAG) == fingerprint:
                return str(version.version)
        return None

    def _log_model(self, encoder: Path, *, run_id: str) -> str:
        with _core_code() as code, self._active(), mlflow.start_run(run_id=run_id):
            info = mlflow.pyfunc.log_model(
                name="encoder",
                python_model=str(_MODEL_CODE),
                artifacts={"encoder": str(encoder)},
                code_paths=[str(code)],
                input_example=["How do I reset a counter?"],
                pip_requirements=_model_requirements(),
            )
        return str(info.model_uri)

    @contextmanager
    def _active(self) -> Iterator[None]:
        """Points MLflow's global state (a module variable and an environment variable) here for the body."""
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


@dataclass(frozen=True)
class RegisteredVersion:
    """A version of a model in the registry."""

    tracker: Tracker
    name: str
    version: str
    tags: Mapping[str, str]

    def download(self, folder: Path) -> Path:
        """Copies its encoder below a local folder; returns the encoder's folder."""
        return self.tracker.download_encoder(self.name, self.version, folder)


@contextmanager
def _core_code() -> Iterator[Path]:
    """A copy of the learning core's code, without the encoder that ships with it."""
    with tempfile.TemporaryDirectory(prefix="tsdae-code-") as folder:
        copy = Path(folder) / _CORE_PACKAGE.name
        ignored = shutil.ignore_patterns("__pycache__", "*.safetensors")
        shutil.copytree(_CORE_PACKAGE, copy, ignore=ignored)
        yield copy


def _model_requirements() -> list[str]:
    """What loading the logged encoder needs, at the versions that made it."""
    from importlib.metadata import version

    packages = (
        "mlflow",
        "torch",
        "transformers",
        "tokenizers",
        "safetensors",
        "numpy",
        "scipy",
        "huggingface-hub",
    )
    return [f"{name}=={version(name).partition('+')[0]}" for name in packages]


def _quiet() -> None:
    """MLflow's own progress notes do not belong between the lines of ours."""
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
