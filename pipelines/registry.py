"""The MLflow model registry: versions of an encoder, the aliases that point at them, and their evaluations.

Owns how a version is made and found. Must not know when an alias may move (`promote`).
"""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

import mlflow
import mlflow.artifacts
import mlflow.models
import mlflow.pyfunc
import numpy as np
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException
from mlflow.models.model import ModelInfo
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE, RESOURCE_DOES_NOT_EXIST, ErrorCode
from mlflow.types import Schema, TensorSpec

from pipelines.errors import InputError
from pipelines.tracking import FINGERPRINT_TAG, Tracker, dataset_digest
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.layout import extra_packages

INPUT_EXAMPLE = ["How do I reset a counter?"]
_MODEL_CODE = Path(__file__).with_name("registry_model.py")
_CORE_PACKAGE = Path(__file__).parents[1] / "tsdae_core"
_ABSENT = (ErrorCode.Name(INVALID_PARAMETER_VALUE), ErrorCode.Name(RESOURCE_DOES_NOT_EXIST))
# The logged model that a version was made of; not every server gives it back with the version.
MODEL_ID_TAG = "tsdae.model_id"
_REQUIRED = (
    "mlflow",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "scipy",
    "huggingface-hub",
)


@dataclass(frozen=True)
class Version:
    """One version of a registered encoder: its number, the run that trained it, its tags."""

    number: str
    run_id: str
    tags: Mapping[str, str]


@dataclass(frozen=True)
class Registry:
    """The versions of one registered model on a tracking server."""

    tracker: Tracker
    name: str

    def add_version(
        self,
        encoder: Path,
        *,
        run_id: str,
        fingerprint: str,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
    ) -> str:
        """Logs the encoder as a model of its run and registers it; returns the version number.

        A version with the same fingerprint is used again, with the new tags.
        """
        with self.tracker.refusals():
            found = self._find(fingerprint)
            if found is None:
                model = self._log_model(encoder, run_id=run_id, params=params, tags=tags)
                own_tags = {FINGERPRINT_TAG: fingerprint, MODEL_ID_TAG: model.model_id}
                # MLflow prints that it registered a version; the stage says so itself.
                with self.tracker.active(), contextlib.redirect_stderr(io.StringIO()):
                    made = mlflow.register_model(model.model_uri, self.name, tags=own_tags)
                found = str(made.version)
        self.set_tags(found, tags)
        return found

    def log_scores(self, number: str, scores: Mapping[str, float], *, dataset: str, digest: str) -> None:
        """Ties measured scores to the version's logged model and to the data that they were measured on.

        dataset, digest: as `Tracker.log_input` was given them, so that MLflow sees one and the same.
        """
        digest = dataset_digest(digest)
        with self.tracker.refusals():
            client = self.tracker.client()
            version = client.get_model_version(self.name, number)
            now_ms = Tracker.now_ms()
            metrics = [
                Metric(key, value, now_ms, 0, version.tags.get(MODEL_ID_TAG), dataset, digest)
                for key, value in scores.items()
            ]
            client.log_batch(version.run_id, metrics=metrics)

    def at(self, alias: str) -> Version | None:
        """The version that the alias points at, if there is one."""
        with self.tracker.refusals():
            try:
                found = self.tracker.client().get_model_version_by_alias(self.name, alias)
            except MlflowException as error:
                if error.error_code in _ABSENT:
                    return None
                raise
        return _version(found)

    def version(self, number: str) -> Version:
        """The version with this number.

        Raises:
            InputError: there is none.
        """
        with self.tracker.refusals():
            return _version(self.tracker.client().get_model_version(self.name, number))

    def point(self, alias: str, number: str) -> None:
        """Moves the alias to the version."""
        with self.tracker.refusals():
            self.tracker.client().set_registered_model_alias(self.name, alias, number)

    def set_tags(self, number: str, tags: Mapping[str, str]) -> None:
        """Sets tags of the version."""
        with self.tracker.refusals():
            client = self.tracker.client()
            for key, value in tags.items():
                client.set_model_version_tag(self.name, number, key, value)

    def model_tags(self) -> Mapping[str, str]:
        """The tags of the registered model itself; none where there is no such model."""
        with self.tracker.refusals():
            try:
                return dict(self.tracker.client().get_registered_model(self.name).tags)
            except MlflowException as error:
                if error.error_code in _ABSENT:
                    return {}
                raise

    def set_model_tag(self, key: str, value: str) -> None:
        """Sets a tag of the registered model itself."""
        with self.tracker.refusals():
            self.tracker.client().set_registered_model_tag(self.name, key, value)

    def delete_model_tag(self, key: str) -> None:
        """Removes a tag of the registered model itself."""
        with self.tracker.refusals():
            self.tracker.client().delete_registered_model_tag(self.name, key)

    @contextmanager
    def artifact(self, version: Version, path: str) -> Iterator[Path]:
        """A local copy of a file or folder among the artifacts of the version's run.

        Raises:
            InputError: the run does not have it.
        """
        with tempfile.TemporaryDirectory(prefix="tsdae-artifact-") as folder:
            try:
                local = self.tracker.client().download_artifacts(version.run_id, path, folder)
            except (OSError, MlflowException) as error:
                raise InputError(
                    f"version {version.number} of '{self.name}' has no artifact '{path}' in its run "
                    f"{version.run_id} ({error})"
                ) from error
            yield Path(local)

    def download_encoder(self, version: Version, folder: Path) -> Path:
        """Copies the encoder of a version below a local folder; returns the encoder's folder."""
        uri = f"models:/{self.name}/{version.number}"
        with self.tracker.refusals(), self.tracker.active():
            model = mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=str(folder))
        return Path(model) / "artifacts" / "encoder"

    def _find(self, fingerprint: str) -> str | None:
        for version in self.tracker.client().search_model_versions(f"name = '{self.name}'"):
            if version.tags.get(FINGERPRINT_TAG) == fingerprint:
                return str(version.version)
        return None

    def _log_model(
        self, encoder: Path, *, run_id: str, params: Mapping[str, Any], tags: Mapping[str, str]
    ) -> ModelInfo:
        with _core_code() as code, self.tracker.active(), mlflow.start_run(run_id=run_id):
            model: ModelInfo = mlflow.pyfunc.log_model(
                name="encoder",
                python_model=str(_MODEL_CODE),
                artifacts={"encoder": str(encoder)},
                code_paths=[str(code)],
                input_example=INPUT_EXAMPLE,
                pip_requirements=model_requirements(encoder),
                params=dict(params),
                tags=dict(tags),
                model_type="sentence-encoder",
            )
            _tell_output(model, width=SentenceEncoder.load(encoder).dim)
            return model


def _tell_output(model: ModelInfo, *, width: int) -> None:
    """Sets the output of the signature, which MLflow cannot read from a type hint that is an array."""
    signature = model.signature
    signature.outputs = Schema([TensorSpec(np.dtype(np.float32), (-1, width))])
    mlflow.models.set_signature(model.model_uri, signature)


def fetch_encoder(tracker: Tracker, model_uri: str, folder: Path) -> Path:
    """Copies the encoder of `models:/NAME@ALIAS` or `models:/NAME/VERSION` below a local folder.

    Raises:
        InputError: the registry has no such model, or the model holds no encoder of ours.
    """
    model, at, alias = model_uri.removeprefix("models:/").partition("@")
    name, _, number = model.rpartition("/")
    registry = Registry(tracker, model if at else name)
    found = registry.at(alias) if at else registry.version(number)
    if found is None:
        raise InputError(f"there is no '{model_uri}' at '{tracker.uri}'")
    encoder = registry.download_encoder(found, folder)
    if not encoder.is_dir():
        raise InputError(f"'{model_uri}' holds no encoder: it was not registered by `tsdae register`")
    return encoder


def model_requirements(encoder: Path) -> Sequence[str]:
    """What loading the encoder in this folder needs, at the versions that are installed here."""
    names = [*_REQUIRED, *extra_packages(encoder)]
    return [f"{name}=={package_version(name).partition('+')[0]}" for name in names]


@contextmanager
def _core_code() -> Iterator[Path]:
    """A copy of the learning core's code, without the encoder that ships with it."""
    with tempfile.TemporaryDirectory(prefix="tsdae-code-") as folder:
        copy = Path(folder) / _CORE_PACKAGE.name
        ignored = shutil.ignore_patterns("__pycache__", "*.safetensors")
        shutil.copytree(_CORE_PACKAGE, copy, ignore=ignored)
        yield copy


def _version(found: Any) -> Version:
    return Version(str(found.version), str(found.run_id), dict(found.tags))
