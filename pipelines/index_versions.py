"""The versions of an index: each built aside, then switched to at once.

`index/versions/NNNN/` are builds, `index/CURRENT` names the one that counts, `index/manifest.json` is the
stage's record of it. A new question, an addition or a deletion makes a new version; readers keep the old one
until the pointer is replaced, and an opened one as long as they hold it. The version before stays on disk.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pyarrow.fs as pafs

from indexing.store import CURRENT_FILE, VERSIONS_FOLDER
from pipelines.manifest import MANIFEST_NAME, Manifest, StageFolder
from pipelines.storage import Location

WORK_FOLDER = "_work"
_RECEIPTS = "_receipts"
_STARTED = "_started.json"
_NUM_KEPT = 2


class VersionedStage(StageFolder):
    """The index stage's folder: like any stage's, but begun anew it keeps the versions that are there."""

    @property
    def work(self) -> Location:
        """Where parts of a build lie until it is finished."""
        return self.folder / WORK_FOLDER

    @property
    def version(self) -> Location:
        """The folder of the version that is being built."""
        return self.folder / VERSIONS_FOLDER / str((self.folder / _STARTED).read_json()["version"])

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
        self, *, counts: Mapping[str, int], files: Mapping[str, str], facts: Mapping[str, Any]
    ) -> Manifest:
        """Switches readers to the version, then writes the manifest and removes what is no longer needed."""
        name = self.version.name
        switch(self.folder, name)
        manifest = self.finish(counts=counts, files=files, facts={**facts, "version": name})
        self.work.delete()
        remove_old_versions(self.folder)
        return manifest


def next_version(index: Location) -> str:
    """A name that no version has had here: the number after the largest."""
    numbers = [int(name) for name in _version_names(index)]
    current = index / CURRENT_FILE
    if current.exists():
        numbers.append(int(current.read_bytes()))
    return f"{max(numbers, default=0) + 1:04d}"


def current_version(index: Location) -> Location:
    """The folder of the version that counts."""
    return index / VERSIONS_FOLDER / (index / CURRENT_FILE).read_bytes().decode().strip()


def switch(index: Location, name: str) -> None:
    """Makes readers open this version from now on: one file, replaced as a whole."""
    (index / CURRENT_FILE).write_bytes(f"{name}\n".encode())


def record(index: Location, manifest: Manifest) -> None:
    """Replaces the stage's record, for a version that answers the same question (rows added or deleted)."""
    (index / MANIFEST_NAME).write_json({**asdict(manifest), "digest": manifest.digest})


def remove_old_versions(index: Location) -> None:
    """Keeps the current version and the one before it; an opened file on Linux outlives its name."""
    names = [name for name in _version_names(index) if name <= current_version(index).name]
    for name in sorted(names)[:-_NUM_KEPT]:
        (index / VERSIONS_FOLDER / name).delete()


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


def _version_names(index: Location) -> list[str]:
    selector = pafs.FileSelector((index / VERSIONS_FOLDER).path, allow_not_found=True)
    infos = index.filesystem.get_file_info(selector)
    return sorted(info.base_name for info in infos if info.base_name.isdigit())
