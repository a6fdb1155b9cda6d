"""The tests over queries that a study's report rests on, from its small files, each computed once.

They take a while on large tasks, so they are kept beside the files, by all that they are computed from:
cells, contents of the tasks, seeds. Must not know tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from indexing.evaluation.seeds import BySeed, Comparison, compare
from pipelines.manifest import stable_hash
from pipelines.storage import Location
from pipelines.study.raw import RAW_FOLDER
from pipelines.study.raw_rows import items_place, read_raw_rows, scores_file

KEPT_NAME = "comparisons.json"
# Raise it when the statistics change.
_VERSION = 1

# Keys of the cells by (setting, domain) and seed.
CellKeys = Mapping[tuple[str, str], Mapping[int, str]]


class Comparisons:
    """Comparisons of settings of one study.

    Attributes:
        num_missing: how many were asked for and cannot be made: rows are absent, or of other contents.
    """

    def __init__(self, folder: Location, keys: CellKeys, raw: Mapping[str, Any]):
        self._folder, self._keys, self._raw = folder, keys, raw
        place = folder / KEPT_NAME
        self._before: dict[str, Any] = place.read_json() if place.exists() else {}
        self._now: dict[str, Any] = {}
        self.num_missing = 0

    def of(self, left: str, right: str, columns: Sequence[Mapping[str, Any]]) -> Comparison | None:
        """Two settings in the mean of columns (`domain` and `task` of each); None if it cannot be made."""
        sides = [[self._files(side, column) for column in columns] for side in (left, right)]
        if not columns or not all(files for side in sides for files in side):
            return None
        name = stable_hash([_VERSION, *([sorted(files.items()) for files in side] for side in sides)])[:20]
        if name not in self._now:
            kept = self._before.get(name) or self._compute(sides)
            if kept is None:
                self.num_missing += 1
                return None
            self._now[name] = kept
        found = self._now[name]
        return Comparison(**found | {"seeds": tuple((one, other) for one, other in found["seeds"])})

    def keep(self) -> None:
        """Writes those that were asked for."""
        if self._now:
            (self._folder / KEPT_NAME).write_json(self._now)

    def _files(self, setting: str, column: Mapping[str, Any]) -> dict[int, tuple[str, str]]:
        """By seed the cell's key and the fingerprint of the task that it was scored on."""
        found = self._keys.get((setting, column["domain"]), {})
        return {
            seed: (key, self._raw[key]["tasks"][column["task"]]["fingerprint"]) for seed, key in found.items()
        }

    def _compute(self, sides: Sequence[Sequence[Mapping[int, tuple[str, str]]]]) -> dict[str, Any] | None:
        raw = self._folder / RAW_FOLDER
        tasks: list[tuple[BySeed, BySeed]] = []
        for both in zip(*sides, strict=True):
            files = [pair for side in both for pair in side.values()]
            if len({task for _, task in files}) > 1:
                return None
            if not all(items_place(raw, t).exists() and scores_file(raw, c, t).exists() for c, t in files):
                return None
            left, right = (
                {seed: found for seed, (c, t) in side.items() if (found := read_raw_rows(raw, c, t))}
                for side in both
            )
            tasks.append((left, right))
        compared = compare(tasks)
        return None if compared is None else asdict(compared)
