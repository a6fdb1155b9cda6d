"""A place for files: any local path or URL that pyarrow.fs understands, with atomic writes.

Owns how a name becomes visible. Knows nothing of stages or of what the files mean.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from pipelines.errors import InputError

_ATOMIC_ON_CLOSE = ("s3", "gcs", "abfs")
_TEMPORARY = ".tmp-"
_URL = re.compile(r"^[a-z][a-z0-9+.-]*://")
# As in s3://key:secret@bucket and ?secret_key=...
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+(?=@)|(?<=secret_key=)[^&\s]+|(?<=access_key=)[^&\s]+")


def is_url(text: str) -> bool:
    """Whether a place is given as a URL and not as a local path."""
    return bool(_URL.match(text))


def url_below(url: str, name: str) -> str:
    """The URL of what lies below a folder: of `s3://b/a?region=x` and `c` it is `s3://b/a/c?region=x`."""
    path, mark, options = url.partition("?")
    return f"{path.rstrip('/')}/{name}{mark}{options}"


def address_below(place: Location, home: Location, url: str) -> str:
    """What reads a place in another process: its path, or below the remote `home` that `url` names a URL."""
    return place.path if place.is_local else url_below(url, place.path.removeprefix(f"{home.path}/"))


def without_credentials(text: str) -> str:
    """The text with the credentials inside its URLs replaced by ***."""
    return _CREDENTIALS.sub("***", text)


@dataclass(frozen=True)
class Location:
    """One path on one file system. Picklable, so tasks on other nodes can use it."""

    filesystem: pafs.FileSystem
    path: str

    @staticmethod
    def parse(text: str | os.PathLike[str]) -> Location:
        """A local path (made absolute) or a URL such as s3://bucket/key.

        Raises InputError when the URL's scheme is unknown.
        """
        text = os.fspath(text)
        if not is_url(text):
            return Location(pafs.LocalFileSystem(), str(Path(text).expanduser().absolute()))
        try:
            filesystem, path = pafs.FileSystem.from_uri(text)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
            raise InputError(f"cannot use '{text}' as a location: {error}") from error
        return Location(filesystem, path.rstrip("/"))

    def __truediv__(self, name: str) -> Location:
        return Location(self.filesystem, f"{self.path}/{name}")

    def __str__(self) -> str:
        return self.path if self.is_local else f"{self.filesystem.type_name}://{self.path}"

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rsplit("/", 1)[-1]

    @property
    def is_local(self) -> bool:
        """Whether the path can be opened with the operating system's own calls."""
        return isinstance(self.filesystem, pafs.LocalFileSystem)

    @property
    def local_path(self) -> Path:
        """The local path; only for local locations."""
        assert self.is_local, f"{self} is not local"
        return Path(self.path)

    def exists(self) -> bool:
        """Whether a file or folder is there."""
        return bool(self.filesystem.get_file_info(self.path).type != pafs.FileType.NotFound)

    def is_dir(self) -> bool:
        """Whether a folder is there."""
        return bool(self.filesystem.get_file_info(self.path).type == pafs.FileType.Directory)

    def make_dir(self) -> Location:
        """Creates the folder with its parents; returns self."""
        self.filesystem.create_dir(self.path, recursive=True)
        return self

    def files(self, *, recursive: bool = False) -> list[pafs.FileInfo]:
        """Files below a folder, sorted by path; an absent folder has none."""
        selector = pafs.FileSelector(self.path, recursive=recursive, allow_not_found=True)
        found = [info for info in self.filesystem.get_file_info(selector) if info.is_file]
        return sorted(found, key=lambda info: str(info.path))

    def read_bytes(self) -> bytes:
        """The whole file."""
        with self.filesystem.open_input_stream(self.path, compression=None) as stream:
            return bytes(stream.read())

    def open_output(self) -> pa.NativeFile:
        """A stream that writes bytes as they are (no compression by file name); a context manager."""
        return self.filesystem.open_output_stream(self.path, compression=None)

    def read_json(self) -> Any:
        """The file parsed as JSON."""
        return json.loads(self.read_bytes())

    def write_bytes(self, data: bytes) -> None:
        """Writes atomically: a reader sees the old file or the whole new one."""
        with self.write_atomically() as target, target.open_output() as stream:
            stream.write(data)

    def write_json(self, value: Any) -> None:
        """Writes canonical JSON (sorted keys, two-space indent) atomically."""
        self.write_bytes((json.dumps(value, indent=2, sort_keys=True) + "\n").encode())

    @contextmanager
    def write_atomically(self) -> Iterator[Location]:
        """Yields the location to write to; on success it becomes this one, on error it vanishes.

        Object stores show an object only once its upload is closed, so there the target is final.
        """
        self.filesystem.create_dir(self.path.rsplit("/", 1)[0], recursive=True)
        final = self.filesystem.type_name in _ATOMIC_ON_CLOSE
        target = (
            self if final else Location(self.filesystem, f"{self.path}{_TEMPORARY}{uuid.uuid4().hex[:12]}")
        )
        try:
            yield target
            if not final:
                self.filesystem.move(target.path, self.path)
        except BaseException:
            # Leaving a stream's `with` block closes it, and so finishes the upload of half an object.
            target.delete()
            raise

    def delete(self) -> None:
        """Removes the file or the folder with all below it; nothing there is fine."""
        kind = self.filesystem.get_file_info(self.path).type
        if kind == pafs.FileType.Directory:
            self.filesystem.delete_dir(self.path)
        elif kind != pafs.FileType.NotFound:
            self.filesystem.delete_file(self.path)

    def delete_temporary_files(self) -> None:
        """Removes what a killed process left of atomic writes anywhere below this folder."""
        for info in self.files(recursive=True):
            if _TEMPORARY in info.base_name:
                self.filesystem.delete_file(info.path)

    def sha256(self) -> str:
        """Hex digest of the file's bytes, read in pieces."""
        digest = hashlib.sha256()
        with self.filesystem.open_input_stream(self.path, compression=None) as stream:
            while piece := stream.read(1 << 20):
                digest.update(piece)
        return digest.hexdigest()

    def upload_folder(self, folder: Path) -> dict[str, str]:
        """Copies every file below a local folder here; returns sha256 by relative name."""
        digests: dict[str, str] = {}
        for source in sorted(path for path in folder.rglob("*") if path.is_file()):
            name = source.relative_to(folder).as_posix()
            target = self / name
            with (
                target.write_atomically() as place,
                source.open("rb") as reader,
                place.open_output() as writer,
            ):
                shutil.copyfileobj(reader, writer, 1 << 20)
            digests[name] = target.sha256()
        return digests

    @contextmanager
    def as_local_folder(self) -> Iterator[Path]:
        """Yields a local folder with this folder's files: itself when local, else a temporary copy."""
        if self.is_local:
            yield self.local_path
            return
        with tempfile.TemporaryDirectory(prefix="tsdae-") as folder:
            pafs.copy_files(self.path, folder, self.filesystem, pafs.LocalFileSystem())
            yield Path(folder)
