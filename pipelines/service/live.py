"""The searcher that is live, and switching to a new one while requests run.

What should be live is a key: digests of index, lookup and encoder, and the registry's version if one is
followed. When the key changes, the new searcher is opened and warmed beside the old one and put in its place;
requests that hold the old one finish with it. A version that cannot be opened leaves the old one live.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.collection import finished_manifest
from pipelines.config import RunConfig
from pipelines.errors import InputError
from pipelines.manifest import stable_hash
from pipelines.readable import find_readable
from pipelines.search import Searcher
from pipelines.storage import Location

if TYPE_CHECKING:
    from pipelines.registry import Registry, Version

logger = logging.getLogger(__name__)

_VERSION_CHARS = 12


@dataclass(frozen=True)
class Target:
    """What should be live: a workspace and, if a registry is followed, the encoder's version in it."""

    workspace: str
    model_version: str | None
    key: str


@dataclass(frozen=True)
class Live:
    """A searcher and the version it answers as."""

    searcher: Searcher
    version: str
    model_version: str | None

    @property
    def labels(self) -> dict[str, str]:
        """What is live, in words: version, encoder, and the index's version and recipe."""
        info = self.searcher.info
        return {
            "version": self.version,
            "encoder": str(info["encoder"]),
            "model_version": self.model_version or "",
            "index_version": str(info["index_version"] or ""),
            "index": str(info["factory"]),
        }


class LiveSearcher:
    """Holds the live searcher; `check` switches. Safe to read from any thread."""

    def __init__(self, config: RunConfig) -> None:
        """Opens what should be live now.

        Raises:
            InputError, ValueError: there is nothing that can be opened.
        """
        self._config = config
        self._checking = threading.Lock()
        self._target = find_target(config)
        self._live = _open(config, self._target)
        self.last_error: str | None = None

    @property
    def current(self) -> Live:
        """The live searcher; keep it for the whole of a request."""
        return self._live

    def check(self) -> bool:
        """Looks for a new version and switches to it; returns whether it did.

        Never raises for a version that is unfinished or broken: `last_error` tells, the old one stays.
        """
        with self._checking:
            try:
                target = find_target(self._config)
                if target.key == self._target.key:
                    self.last_error = None
                    return False
                live = _open(self._config, target)
            except (OSError, ValueError) as error:
                reason = str(error)
                if reason != self.last_error:
                    logger.warning("staying with version %s: %s", self._live.version, reason)
                self.last_error = reason
                return False
            self._live, self._target, self.last_error = live, target, None
            logger.warning("switched to version %s", live.version)
            return True

    def watch(self, stop: threading.Event, switched: Callable[[], None]) -> None:
        """Checks every `serve.poll_s` seconds until `stop` is set; for a thread of its own."""
        while not stop.wait(self._config.serve.poll_s):
            if self.check():
                switched()


def find_target(config: RunConfig) -> Target:
    """What the configuration says should be live; reads manifests and, if asked, the registry.

    Raises:
        InputError: an unfinished workspace, or a model that the registry does not have.
    """
    workspace, version, parts = config.workspace, None, []
    if config.serve.model is not None:
        _, found = _registered(config)
        version = found.number
        workspace = found.tags.get("tsdae.workspace") or workspace
        parts.append(version)
    place = Location.parse(workspace)
    if place.is_local:
        # A link that is moved to another workspace switches at once, never between two files.
        place = Location.parse(place.local_path.resolve())
        workspace = place.path
    readable = find_readable(place)
    parts += [readable.index_manifest.digest, readable.lookup_manifest.digest]
    parts.append(finished_manifest(place / "encoder", command="train").digest)
    return Target(workspace, version, stable_hash([workspace, *parts]))


def _registered(config: RunConfig) -> tuple[Registry, Version]:
    from pipelines.registry import Registry
    from pipelines.tracking import Tracker

    assert config.serve.model is not None
    name, _, alias = config.serve.model.removeprefix("models:/").partition("@")
    registry = Registry(Tracker.of(config, Location.parse(config.workspace)), name)
    found = registry.at(alias)
    if found is None:
        raise InputError(f"there is no models:/{name}@{alias} at '{registry.tracker.uri}'")
    return registry, found


def _open(config: RunConfig, target: Target) -> Live:
    if target.model_version is None:
        searcher = Searcher.open(target.workspace, device=config.serve.device)
    else:
        registry, found = _registered(config)
        if found.number != target.model_version:
            raise InputError("the alias moved while its version was looked up; trying again")
        fingerprint = found.tags.get("tsdae.encoder")
        if fingerprint is None:
            raise InputError(
                f"{registry.name} version {found.number} does not name its encoder's fingerprint"
            )
        with tempfile.TemporaryDirectory(prefix="tsdae-model-") as folder:
            encoder = registry.download_encoder(found, Path(folder)), fingerprint
            searcher = Searcher.open(target.workspace, encoder=encoder, device=config.serve.device)
    searcher.search(["warm up"], 1)
    return Live(searcher, target.key[:_VERSION_CHARS], target.model_version)
