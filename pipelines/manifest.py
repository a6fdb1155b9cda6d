"""Manifests: what a finished stage wrote, and whether it still answers the question asked of it.

A stage's folder is trusted when, and only when, its `manifest.json` is there; it is written last. The
fingerprint says what was asked (config and inputs), the digest says what came out (bytes), and neither
holds a time or a path, so that two undisturbed runs, or a killed and a repeated one, give equal manifests.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from pipelines.storage import Location

MANIFEST_NAME = "manifest.json"
_SCHEMA_VERSION = 1
_RECEIPTS = "_receipts"
_STARTED = "_started.json"
_PACKAGES = (
    "ray",
    "torch",
    "transformers",
    "tokenizers",
    "faiss-cpu",
    "pyarrow",
    "mlflow",
    "numpy",
    "tsdae-ray",
)


def stable_hash(value: Any) -> str:
    """sha256 of canonical JSON; equal values give equal hashes in every process."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """One finished output file: its name, number of rows, sha256 and counts by name."""

    name: str
    num_rows: int
    digest: str
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The record of a finished stage."""

    stage: str
    fingerprint: str
    config: Mapping[str, Any]
    inputs: Mapping[str, str]
    counts: Mapping[str, int]
    shards: Sequence[ShardRecord] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    schema_version: int = _SCHEMA_VERSION

    @property
    def digest(self) -> str:
        """Hash of what the stage produced (counts, shards, files); independent of config and versions."""
        shards = [asdict(shard) for shard in self.shards]
        return stable_hash([self.stage, dict(self.counts), shards, dict(self.files)])


def package_versions() -> dict[str, str]:
    """Versions of the packages that shape the output; packages that are absent are left out."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def read_manifest(folder: Location) -> Manifest | None:
    """The manifest of a finished stage, or None."""
    place = folder / MANIFEST_NAME
    if not place.exists():
        return None
    raw = place.read_json()
    raw.pop("digest")
    shards = tuple(ShardRecord(**shard) for shard in raw.pop("shards"))
    return Manifest(shards=shards, **raw)


class StageFolder:
    """A stage's output folder while the stage is at work: receipts per shard, manifest at the end."""

    def __init__(self, folder: Location, *, stage: str, config: Mapping[str, Any], inputs: Mapping[str, str]):
        self.folder = folder
        self.stage = stage
        self.config = config
        self.inputs = inputs
        self.fingerprint = stable_hash([_SCHEMA_VERSION, stage, dict(config), dict(inputs)])

    def finished(self) -> Manifest | None:
        """The manifest when this very question has been answered already.

        Tidies what a kill between writing the manifest and tidying has left.
        """
        manifest = read_manifest(self.folder)
        if manifest is None or manifest.fingerprint != self.fingerprint:
            return None
        self._tidy()
        return manifest

    def begin(self) -> None:
        """Makes the folder ready: keeps the shards of an interrupted same run, removes anything else."""
        started = self.folder / _STARTED
        if self.is_started():
            self.folder.delete_temporary_files()
        else:
            (self.folder / MANIFEST_NAME).delete()
            self.folder.delete()
            self.folder.make_dir()
            started.write_json({"fingerprint": self.fingerprint})

    def is_started(self) -> bool:
        """Whether an interrupted run of this very question left the folder."""
        started = self.folder / _STARTED
        return started.exists() and started.read_json().get("fingerprint") == self.fingerprint

    def receipts(self, group: str) -> dict[str, ShardRecord]:
        """Finished shards of a group ("map", "reduce" ...) by work item name."""
        found = {}
        for info in (self.folder / _RECEIPTS / group).files():
            if info.path.endswith(".json"):
                place = Location(self.folder.filesystem, info.path)
                found[info.base_name.removesuffix(".json")] = ShardRecord(**place.read_json())
        return found

    def receipt_place(self, group: str, item: str) -> Location:
        """Where the task that finished `item` puts its receipt."""
        return self.folder / _RECEIPTS / group / f"{item}.json"

    def finish(
        self,
        *,
        counts: Mapping[str, int],
        shards: Sequence[ShardRecord] = (),
        files: Mapping[str, str] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """Writes the manifest, the last act of a stage, and tidies the working files."""
        manifest = self.manifest(counts=counts, shards=shards, files=files, facts=facts)
        (self.folder / MANIFEST_NAME).write_json({**asdict(manifest), "digest": manifest.digest})
        self._tidy()
        return manifest

    def manifest(
        self,
        *,
        counts: Mapping[str, int],
        shards: Sequence[ShardRecord] = (),
        files: Mapping[str, str] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """The record of what the stage wrote, not written yet."""
        return Manifest(
            stage=self.stage,
            fingerprint=self.fingerprint,
            config=self.config,
            inputs=self.inputs,
            counts=counts,
            shards=tuple(sorted(shards, key=lambda shard: shard.name)),
            files=files or {},
            facts=facts or {},
            versions=package_versions(),
        )

    def _tidy(self) -> None:
        (self.folder / _RECEIPTS).delete()
        (self.folder / _STARTED).delete()

    @contextmanager
    def removed_on_user_error(self) -> Iterator[None]:
        """Bad input leaves no partial output: the folder vanishes when the body raises ValueError."""
        try:
            yield
        except ValueError:
            self.folder.delete()
            raise


def write_receipt(place: Location, record: ShardRecord) -> None:
    """Marks a shard as finished; called by the task that wrote it, after the shard itself."""
    place.write_json(asdict(record))
