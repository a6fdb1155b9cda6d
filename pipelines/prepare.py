"""The prepare stage: the user's files become a clean, de-duplicated collection in fixed shards.

Passes of Ray Data tasks over files (docs/decisions/004). The first reads, cleans and hashes each piece of
input and sends each text to the shard its hash says; the last gathers one shard's rows, keeps one row of each
text and orders them by hash. So a row's place depends on its text alone, not on the order or sharding of the
input, equal texts always meet in one task, and any run of rows is a random sample of the collection. Between
them, where asked for: equal ids and near-duplicates, each by one more exchange. The driver sees names and
counts only.

Output: `part-*.parquet` (row_id int64; doc_id, text, title and kept columns string) and `dropped/` with
every text set aside and why. `row_id >> 32` is the shard, the low 32 bits the row in it. A file set aside as
a whole has one row in `dropped/`, without a row number: bad_file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.parquet as pq

from pipelines.collection_config import CollectionConfig
from pipelines.config_values import config_to_dict
from pipelines.equal_ids import IdChecker
from pipelines.errors import InputError
from pipelines.exchange import PartMerger, merge_rounds
from pipelines.inputs import InputFile, Piece, check_files, find_files, plan_pieces
from pipelines.manifest import Manifest, ShardRecord, StageFolder, read_manifest, stable_hash
from pipelines.near_duplicates import BandMaker, BandMatcher
from pipelines.parquet import ROWS_PER_SHARD_BITS as ROWS_PER_SHARD_BITS
from pipelines.parquet import write_parquet as write_parquet
from pipelines.prepare_gather import Gatherer, Thinner
from pipelines.prepare_read import IDS, ROWS, Reader, bad_files_place, part_names
from pipelines.progress import Reporter
from pipelines.rows import count_rows
from pipelines.shards import ShardFunction, names, run_shards, sum_drops
from pipelines.storage import Location

# A shard is what one task of any later stage holds in memory, and what a kill loses of it.
_SHARD_BYTES = 64 << 20
_MIN_SHARDS = 8
_DELETE_THREADS = 16
_BANDS, _LOST_IDS, _LOST_ROWS = "bands", "lost-ids", "lost-rows"


def prepare(
    name: str,
    config: CollectionConfig,
    workspace: Location,
    *,
    reporter: Reporter,
    kept_unchanged: bool = True,
) -> Manifest:
    """Runs the stage for one collection (`corpus` or `documents`) unless it is finished already.

    Raises:
        InputError: no data, an unreadable file, a missing or non-text column, an unknown language, or not one
            usable row.
    """
    if config.languages is not None:
        from pipelines.languages import check_languages

        check_languages(config.languages.allowed)
    files = find_files(config.input)
    inputs = {file.relative_name: f"{file.size_bytes} bytes, modified {file.modified_ns}" for file in files}
    settings = {key: value for key, value in config_to_dict(config).items() if key != "input"}
    stage = StageFolder(workspace / name, stage=name, config=settings, inputs={"files": stable_hash(inputs)})
    if kept_unchanged and (manifest := stage.finished()) is not None:
        reporter.note(f"{name}: up to date, {manifest.counts['rows_kept']:,} rows")
        return manifest
    refuse_to_lose_growth(stage.folder)
    row_groups = check_files(files, config.columns, skip_bad=config.on_bad_file == "skip")
    pieces = plan_pieces(files, row_groups)
    reporter.note(f"{name}: reading {len(files):,} files from {config.input}")
    with stage.removed_on_user_error():
        stage.begin()
        return _run(stage, config, files, pieces, reporter)


def refuse_to_lose_growth(folder: Location) -> None:
    """Documents that were added to a collection later are not in its input.

    Raises:
        InputError: the collection would be made anew without them.
    """
    manifest = read_manifest(folder)
    if manifest is not None and manifest.facts.get("grown"):
        raise InputError(
            f"documents were added to or deleted from '{folder}' since it was prepared, and its input or "
            f"settings have changed: bring that input up to date and remove '{folder}', or go back to them"
        )


def _run(
    stage: StageFolder,
    config: CollectionConfig,
    files: Sequence[InputFile],
    pieces: Sequence[Sequence[Piece]],
    reporter: Reporter,
) -> Manifest:
    num_shards = config.num_shards or _num_shards(sum(file.size_bytes for file in files))
    passes = _Passes(stage, config, num_shards, reporter)
    read = passes.read(numbered_items(stage, pieces, reporter))
    rows_read = sum(record.num_rows for record in read)
    skipped = _skipped_files(stage.folder, read)
    if sum(record.counts.get("kept", 0) for record in read) == 0:
        raise InputError(_nothing_left(config, rows_read, read, skipped))
    gathered = passes.gather(read)
    shards = gathered if config.near_duplicates is None else passes.thin(gathered)
    drops = sum_drops([*read, *gathered, *(shards if shards is not gathered else ())])
    counts = {
        "rows_read": rows_read,
        "rows_kept": sum(shard.num_rows for shard in shards),
        "skipped_files": len(skipped),
    } | drops
    texts = counts["rows_kept"] + sum(drops.values())
    if config.sentences is None:
        assert texts == rows_read, counts
    else:
        counts["texts"] = texts
    for name in ("_exchange", "_unique"):
        (stage.folder / name).delete()
    manifest = stage.finish(counts=counts, shards=shards)
    _report(stage.stage, counts, drops, skipped, reporter)
    return manifest


def _report(
    name: str,
    counts: Mapping[str, int],
    drops: Mapping[str, int],
    skipped: Mapping[str, str],
    reporter: Reporter,
) -> None:
    of = f"{counts['texts']:,} texts in {counts['rows_read']:,} rows" if "texts" in counts else ""
    reasons = ", ".join(f"{value:,} {key.removeprefix('dropped_')}" for key, value in drops.items())
    reporter.note(
        f"{name}: {counts['rows_kept']:,} of {of or format(counts['rows_read'], ',') + ' rows'} kept"
        + (f" (dropped: {reasons})" if reasons else "")
    )
    if skipped:
        reporter.note(f"{name}: bad files skipped: {len(skipped):,}, the first: {next(iter(skipped))}")


def numbered_items(
    stage: StageFolder,
    pieces: Sequence[Sequence[Piece]],
    reporter: Reporter,
) -> Mapping[str, Mapping[str, Any]]:
    """The first pass's work; a piece of a file cut at line ends knows how many lines are before it."""
    work = [list(group) for group in pieces]
    cut = [(i, j) for i, group in enumerate(work) for j, piece in enumerate(group) if piece.end is not None]
    if cut:
        items = {f"lines-{n:06d}": {"piece": work[i][j]} for n, (i, j) in enumerate(cut)}
        label = f"{stage.stage} count lines"
        counted = run_shards(stage, "count", items, _line_counter, reporter=reporter, label=label)
        lines: dict[str, int] = {}
        for (i, j), record in zip(cut, counted, strict=True):
            path = work[i][j].file.place.path
            work[i][j] = replace(work[i][j], first_row=lines.get(path, 0))
            lines[path] = lines.get(path, 0) + record.num_rows
    return {f"item-{i:06d}": {"pieces": tuple(group)} for i, group in enumerate(work)}


def _line_counter() -> ShardFunction:
    return _count_lines


def _count_lines(name: str, spec: Mapping[str, Any]) -> ShardRecord:
    return ShardRecord(name=name, num_rows=count_rows(spec["piece"]), digest="")


@dataclass(frozen=True)
class _Passes:
    """The passes over one collection, from the driver's side: names of work and of parts."""

    stage: StageFolder
    config: CollectionConfig
    num_shards: int
    reporter: Reporter

    def read(self, items: Mapping[str, Mapping[str, Any]]) -> list[ShardRecord]:
        """Files to texts in the exchange."""
        work = Reader(self.stage.folder, self.config, self.num_shards)
        return self._run("read", items, work, "read")

    def gather(self, read: Sequence[ShardRecord]) -> list[ShardRecord]:
        """The exchange to shards, or to unique texts and their bands where near-duplicates are to go."""
        found = [name for record in read for name in part_names(record.name, record.counts["parts"])]
        parts, bands = self._merged(ROWS, found), None
        losers = self._lost_ids(read) if self.config.checks_ids else []
        if self.config.near_duplicates is not None:
            bands = BandMaker(
                self._place(_BANDS),
                self.config.near_duplicates,
                num_buckets=self.num_shards,
                by_id=self.config.id_column is not None,
            )
        work = Gatherer(
            self.stage.folder,
            parts,
            losers,
            unique=self._unique,
            bands=bands,
            keep_columns=self.config.keep_columns,
        )
        return self._run("gather", self._shards("shard"), work, "de-duplicate")

    def thin(self, gathered: Sequence[ShardRecord]) -> list[ShardRecord]:
        """Unique texts to shards without near-duplicates."""
        found = [name for one in gathered for name in part_names(one.name, one.counts["band_parts"])]
        parts = self._merged(_BANDS, found)
        matcher = BandMatcher(parts, self._place(_LOST_ROWS), num_buckets=self.num_shards)
        matched = self._run("match", self._shards("bucket"), matcher, "near-duplicates")
        losers = self._merged(_LOST_ROWS, [record.name for record in matched if record.num_rows])
        work = Thinner(self.stage.folder, losers, unique=self._unique, keep_columns=self.config.keep_columns)
        return self._run("thin", self._shards("shard"), work, "write")

    def _lost_ids(self, read: Sequence[ShardRecord]) -> list[Location]:
        found = [name for record in read for name in part_names(record.name, record.counts["id_parts"])]
        checker = IdChecker(
            self._merged(IDS, found),
            self._place(_LOST_IDS),
            num_buckets=self.num_shards,
            column=str(self.config.id_column),
            fail=self.config.on_equal_ids == "fail",
        )
        checked = self._run("ids", self._shards("bucket"), checker, "equal ids")
        return self._merged(_LOST_IDS, [record.name for record in checked if record.num_rows])

    def _merged(self, kind: str, found: Sequence[str]) -> list[Location]:
        """The parts of a kind, merged until they are few; what was merged is deleted."""

        def merge(number: str, items: Mapping[str, Mapping[str, Any]]) -> list[str]:
            work = PartMerger(self._place(kind))
            done = self._run(f"merge-{kind}-{number}", items, work, f"merge {kind}")
            merged = [self._place(kind) / name for spec in items.values() for name in spec["parts"]]
            with ThreadPoolExecutor(_DELETE_THREADS) as pool:
                list(pool.map(Location.delete, merged))
            return [record.name for record in done]

        return [self._place(kind) / name for name in merge_rounds(found, merge)]

    def _place(self, kind: str) -> Location:
        return self.stage.folder / "_exchange" / kind

    @property
    def _unique(self) -> Location:
        return self.stage.folder / "_unique"

    def _shards(self, key: str) -> dict[str, dict[str, int]]:
        return {name: {key: number} for number, name in enumerate(names(self.num_shards))}

    def _run(
        self, group: str, items: Mapping[str, Mapping[str, Any]], work: Any, label: str
    ) -> list[ShardRecord]:
        return run_shards(
            self.stage, group, items, work, reporter=self.reporter, label=f"{self.stage.stage} {label}"
        )


def _skipped_files(folder: Location, records: Sequence[ShardRecord]) -> dict[str, str]:
    """Why each bad file was set aside, by name; a file cut into several pieces counts once."""
    found: dict[str, str] = {}
    for record in records:
        if record.counts["skipped_pieces"]:
            place = bad_files_place(folder, record.name)
            with place.filesystem.open_input_file(place.path) as stream:
                for row in pq.ParquetFile(stream).read().to_pylist():
                    found.setdefault(row["file"], row["text"])
    return dict(sorted(found.items()))


def _nothing_left(
    config: CollectionConfig,
    rows_read: int,
    records: Sequence[ShardRecord],
    skipped: Mapping[str, str],
) -> str:
    if rows_read == 0 and skipped:
        return f"all data files of '{config.input}' were skipped; the first: {next(iter(skipped.values()))}"
    if rows_read == 0:
        return f"'{config.input}' holds no rows"
    drops = ", ".join(f"{value} {key.removeprefix('dropped_')}" for key, value in sum_drops(records).items())
    return (
        f"none of the {rows_read} rows of '{config.input}' is usable (column '{config.text_column}': {drops})"
    )


def _num_shards(input_bytes: int) -> int:
    exponent = math.ceil(math.log2(max(1, input_bytes / _SHARD_BYTES)))
    return max(_MIN_SHARDS, 1 << exponent)
