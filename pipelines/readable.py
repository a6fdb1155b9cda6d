"""Which versions of index and lookup a reader opens: the newest that belong together.

The index is switched before the lookup is ready for it. Until then a reader gets the pair from before, so
that search never stops while an index grows or is built anew. In a file without Ray, as searching needs it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pipelines.collection import finished_manifest
from pipelines.errors import InputError
from pipelines.manifest import Manifest
from pipelines.names import INDEX_FOLDER, LOOKUP_FOLDER
from pipelines.storage import Location
from pipelines.versions import readable_versions

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Readable:
    """Folders of an index and of the lookup for it, with their manifests."""

    index: Location
    index_manifest: Manifest
    lookup: Location
    lookup_manifest: Manifest


def find_readable(workspace: Location) -> Readable:
    """The newest pair that belongs together; of an index without its lookup a warning tells.

    Raises:
        InputError: there is no index or no lookup, or no pair that belongs together.
    """
    finished_manifest(workspace / INDEX_FOLDER, command="index")
    finished_manifest(workspace / LOOKUP_FOLDER, command="lookup")
    lookups = readable_versions(workspace / LOOKUP_FOLDER)
    for age, (index, index_manifest) in enumerate(readable_versions(workspace / INDEX_FOLDER)):
        for lookup, lookup_manifest in lookups:
            if not _belongs(lookup_manifest, index_manifest):
                continue
            if age:
                logger.warning(
                    "the index has a newer version, whose lookup is not finished: reading %s", index
                )
            return Readable(index, index_manifest, lookup, lookup_manifest)
    raise InputError(
        f"'{workspace / LOOKUP_FOLDER}' is of other documents than the index; run `tsdae lookup` first"
    )


def _belongs(lookup: Manifest, index: Manifest) -> bool:
    """Whether texts, words and, if stored, vectors are those that were indexed."""
    names = [name for name in ("documents", "vectors") if name in lookup.inputs]
    return all(lookup.inputs[name] == index.inputs[name] for name in names)
