"""Versions of what a stage wrote: each built aside, then switched to at once. For the index and the lookup.

`versions/NNNN/` are builds, each with its own `manifest.json`; `CURRENT` names the one that counts, and
`manifest.json` beside it is the stage's record. A new question, an addition or a deletion makes a new
version; readers keep the old one until the pointer is replaced, and an opened one as long as they hold it.
The version before stays on disk. In a file without Ray, as readers need it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow.fs as pafs

from indexing.store import CURRENT_FILE, VERSIONS_FOLDER
from pipelines.manifest import MANIFEST_NAME, Manifest, ShardRecord, StageFolder, read_manifest
from pipelines.storage import Location

WORK_FOLDER = "_work"
_RECEIPTS = "_receipts"
_STARTED = "_started.json"
_NUM_KEPT = 2


class VersionedStage(StageFolder):
    """A stage's folder like any other, but begun anew it keeps the versions that are there."""

    @property
    def work(self) -> Location:
        """Where parts of a build lie until it is finished."""
        return self.folder / WORK_FOLDER

    @property
    def version(self) -> Location:
        """The folder of the version that is being built."""
        return self.folder / VERSIONS_FOLDER / str((self.folder / _STARTED).read_json()["version"])

    def finished(self) -> Manifest | None:
        """The manifest when this very question has been answered already.

        Sets the pointer again where a copy of the workspace lost it; removes what a kill or a build of
        another question has left.
        """
        manifest = super().finished()
        if manifest is not None and "version" in manifest.facts:
            if not (self.folder / CURRENT_FILE).exists():
                switch(self.folder, str(manifest.facts["version"]))
            self.work.delete()
            remove_other_versions(self.folder)
        return manifest

    def begin(self) -> None:
        """Makes the folder ready: keeps what an interrupted same build has done, and every version."""
        started = self.folder / _STARTED
        if started.exists() and started.read_json().get("fingerprint") == self.fingerprint:
            self.folder.delete_temporary_files()
            return
        for name in (WORK_FOLDER, _RECEIPTS, _STARTED):
            (self.folder / name).delete()
        self.work.make_dir()
        started.write_json({"fingerprint": self.fingerprint, "version": next_version(self.folder)})
        self.version.delete()

    def finish_version(
        self,
        *,
        counts: Mapping[str, int],
        shards: Sequence[ShardRecord] = (),
        files: Mapping[str, str] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """Switches readers to the version, writes the stage's record, removes what is not needed now."""
        version = self.version
        manifest = self.manifest(
            counts=counts, shards=shards, files=files, facts={**(facts or {}), "version": version.name}
        )
        record(version, manifest)
        switch(self.folder, version.name)
        record(self.folder, manifest)
        self._tidy()
        self.work.delete()
        remove_other_versions(self.folder)
        return manifest


def next_version(folder: Location) -> str:
    """A name that no version has had here: the number after the largest."""
    numbers = [int(name) for name in _version_names(folder)]
    current = folder / CURRENT_FILE
    if current.exists():
        numbers.append(int(current.read_bytes()))
    return f"{max(numbers, default=0) + 1:04d}"


def current_version(folder: Location) -> Location:
    """The folder of the version that counts; the folder itself where there are no versions."""
    pointer = folder / CURRENT_FILE
    if not pointer.exists():
        return folder
    return folder / VERSIONS_FOLDER / pointer.read_bytes().decode().strip()


def readable_versions(folder: Location) -> list[tuple[Location, Manifest]]:
    """What a reader may open, with its manifest: the current version, then the one before it.

    Empty for a folder whose stage has never finished.
    """
    record_of_stage, current = read_manifest(folder), current_version(folder)
    if record_of_stage is None or current == folder:
        return [] if record_of_stage is None else [(folder, record_of_stage)]
    found = [(current, read_manifest(current) or record_of_stage)]
    for name in sorted(_version_names(folder), reverse=True):
        place = folder / VERSIONS_FOLDER / name
        if name < current.name and (manifest := read_manifest(place)) is not None:
            found.append((place, manifest))
    return found


def switch(folder: Location, name: str) -> None:
    """Makes readers open this version from now on: one file, replaced as a whole."""
    (folder / CURRENT_FILE).write_bytes(f"{name}\n".encode())


def record(folder: Location, manifest: Manifest) -> None:
    """Writes the manifest of a stage or of a version, in place of an older one."""
    (folder / MANIFEST_NAME).write_json({**asdict(manifest), "digest": manifest.digest})


def remove_other_versions(folder: Location) -> None:
    """Keeps the current version and the one before it; an opened file on Linux outlives its name.

    What is newer than the current one was never finished.
    """
    if current_version(folder) == folder:
        return
    current, names = current_version(folder).name, _version_names(folder)
    kept = sorted(name for name in names if name <= current)[-_NUM_KEPT:]
    for name in set(names) - set(kept):
        (folder / VERSIONS_FOLDER / name).delete()


def copy_into(files: Location, names: list[str], target: Location) -> None:
    """The same files in another folder: hard links on a local disk, copies elsewhere."""
    target.make_dir()
    for name in names:
        if files.is_local:
            os.link(files.local_path / name, target.local_path / name)
        else:
            pafs.copy_files(
                (files / name).path,
                (target / name).path,
                source_filesystem=files.filesystem,
                destination_filesystem=target.filesystem,
            )


def _version_names(folder: Location) -> list[str]:
    selector = pafs.FileSelector((folder / VERSIONS_FOLDER).path, allow_not_found=True)
    infos = folder.filesystem.get_file_info(selector)
    return sorted(info.base_name for info in infos if info.base_name.isdigit())
