"""The prepare stage: the user's files become a clean, de-duplicated collection in fixed shards.

Two passes of Ray Data tasks. The first reads, cleans and hashes each piece of input and sorts the rows by
the shard their text hashes to; the second gathers one shard's rows from all pieces, keeps one row of each
text and orders them by hash. So a row's place depends on its text alone, not on the order or sharding of
the input, equal texts always meet in one task, and any run of rows is a random sample of the collection.
The driver sees file names and counts only.

Output: `part-*.parquet` (row_id int64, doc_id, text, title string) and `dropped/` with every row set aside
and why: null, empty, too_short, too_long, null_id, duplicate. `row_id >> 32` is the shard, the low 32 bits
the row in it. A file set aside as a whole has one row in `dropped/`, without a row number: bad_file.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.cleaning import clean, drop_reason
from pipelines.collection_config import CollectionConfig
from pipelines.config_values import config_to_dict
from pipelines.errors import InputError
from pipelines.inputs import InputFile, Piece, check_files, find_files, read_piece
from pipelines.manifest import Manifest, ShardRecord, StageFolder, stable_hash
from pipelines.progress import Reporter
from pipelines.shards import ShardFunction, names, run_shards
from pipelines.storage import Location

ROWS_PER_SHARD_BITS = 32
_PIECE_BYTES = 64 << 20
_SHARD_BYTES = 64 << 20
_MIN_SHARDS = 8
# Small enough that a training task reads little more than it needs, large enough to compress well.
_ROW_GROUP_ROWS = 4_096
_EXCERPT_CHARS = 200
_MESSAGE_CHARS = 1_000
_BAD_FILE = "bad_file"
_HASH_BYTES = 16
_ROW_SCHEMA = pa.schema(
    [
        ("bucket", pa.int32()),
        ("hash", pa.binary(_HASH_BYTES)),
        ("doc_id", pa.string()),
        ("title", pa.string()),
        ("text", pa.string()),
        ("file", pa.string()),
        ("row", pa.int64()),
    ]
)
_DROPPED_SCHEMA = pa.schema(
    [
        ("file", pa.string()),
        ("row", pa.int64()),
        ("doc_id", pa.string()),
        ("reason", pa.string()),
        ("text", pa.string()),
    ]
)


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
        InputError: no data, an unreadable file, a missing or non-text column, or not one usable row.
    """
    files = find_files(config.input)
    inputs = {file.relative_name: f"{file.size_bytes} bytes, modified {file.modified_ns}" for file in files}
    settings = {key: value for key, value in config_to_dict(config).items() if key != "input"}
    stage = StageFolder(workspace / name, stage=name, config=settings, inputs={"files": stable_hash(inputs)})
    if kept_unchanged and (manifest := stage.finished()) is not None:
        reporter.note(f"{name}: up to date, {manifest.counts['rows_kept']:,} rows")
        return manifest
    row_groups = check_files(files, config.columns, skip_bad=config.on_bad_file == "skip")
    pieces = _plan_pieces(files, row_groups)
    reporter.note(f"{name}: reading {len(files):,} files from {config.input}")
    with stage.removed_on_user_error():
        stage.begin()
        return _run(stage, config, files, pieces, reporter)


def _run(
    stage: StageFolder,
    config: CollectionConfig,
    files: Sequence[InputFile],
    pieces: Sequence[Sequence[Piece]],
    reporter: Reporter,
) -> Manifest:
    num_shards = config.num_shards or _num_shards(sum(file.size_bytes for file in files))
    items = {f"item-{i:06d}": {"pieces": tuple(group)} for i, group in enumerate(pieces)}
    mapped = run_shards(
        stage,
        "read",
        items,
        _Reader(stage.folder, config, num_shards),
        reporter=reporter,
        label=f"{stage.stage} read",
    )
    rows_read = sum(record.num_rows for record in mapped)
    skipped = _skipped_files(stage.folder, mapped)
    if sum(record.counts["kept"] for record in mapped) == 0:
        raise InputError(_nothing_left(config, rows_read, mapped, skipped))
    shard_items = {name: {"shard": i} for i, name in enumerate(names(num_shards))}
    gather = _Gatherer(stage.folder, sorted(items))
    shards = run_shards(
        stage, "gather", shard_items, gather, reporter=reporter, label=f"{stage.stage} de-duplicate"
    )
    counts = {
        "rows_read": rows_read,
        "rows_kept": sum(shard.num_rows for shard in shards),
        "skipped_files": len(skipped),
    }
    counts |= _sum_drops([*mapped, *shards])
    dropped = sum(value for key, value in counts.items() if key.startswith("dropped_"))
    assert counts["rows_read"] == counts["rows_kept"] + dropped, counts
    (stage.folder / "_exchange").delete()
    manifest = stage.finish(counts=counts, shards=shards)
    drops = ", ".join(
        f"{value:,} {key.removeprefix('dropped_')}" for key, value in counts.items() if "dropped_" in key
    )
    reporter.note(
        f"{stage.stage}: {counts['rows_kept']:,} of {rows_read:,} rows kept"
        + (f" (dropped: {drops})" if drops else "")
    )
    if skipped:
        reporter.note(f"{stage.stage}: bad files skipped: {len(skipped):,}, the first: {next(iter(skipped))}")
    return manifest


def _skipped_files(folder: Location, records: Sequence[ShardRecord]) -> dict[str, str]:
    """Why each bad file was set aside, by name; a file cut into several pieces counts once."""
    found: dict[str, str] = {}
    for record in records:
        if record.counts["skipped_pieces"]:
            dropped = _read_parquet(folder / "dropped" / f"{record.name}.parquet")
            for row in dropped.filter(pc.field("reason") == _BAD_FILE).to_pylist():
                found.setdefault(row["file"], row["text"])
    return dict(sorted(found.items()))


def _read_parquet(place: Location) -> pa.Table:
    with place.filesystem.open_input_file(place.path) as stream:
        return pq.ParquetFile(stream).read()


def _sum_drops(records: Sequence[ShardRecord]) -> dict[str, int]:
    total: dict[str, int] = {}
    for record in records:
        for key, value in record.counts.items():
            if key.startswith("dropped_"):
                total[key] = total.get(key, 0) + value
    return dict(sorted(total.items()))


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
    drops = ", ".join(f"{value} {key.removeprefix('dropped_')}" for key, value in _sum_drops(records).items())
    return (
        f"none of the {rows_read} rows of '{config.input}' is usable (column '{config.text_column}': {drops})"
    )


def _num_shards(input_bytes: int) -> int:
    exponent = math.ceil(math.log2(max(1, input_bytes / _SHARD_BYTES)))
    return max(_MIN_SHARDS, 1 << exponent)


def _plan_pieces(files: Sequence[InputFile], row_groups: Mapping[str, Sequence[int]]) -> list[list[Piece]]:
    """Work of about 64 MiB each: huge Parquet files cut at row groups, tiny files taken together."""
    pieces: list[tuple[int, Piece]] = []
    for file in files:
        groups = row_groups.get(file.place.path)
        if groups is None or sum(groups) <= _PIECE_BYTES:
            pieces.append((file.size_bytes if groups is None else sum(groups), Piece(file)))
        else:
            pieces += [(size, Piece(file, (group,))) for group, size in enumerate(groups)]
    work: list[list[Piece]] = []
    filled = 0
    for size, piece in pieces:
        if not work or filled + size > _PIECE_BYTES:
            work.append([])
            filled = 0
        work[-1].append(piece)
        filled += size
    return work


class _Reader:
    """Makes the first pass's task: read pieces, clean, hash, write rows sorted by their shard."""

    def __init__(self, folder: Location, config: CollectionConfig, num_shards: int):
        self.folder, self.config, self.num_shards = folder, config, num_shards

    def __call__(self) -> ShardFunction:
        return self._read

    def _read(self, item: str, spec: Mapping[str, Any]) -> ShardRecord:
        kept, dropped = [_ROW_SCHEMA.empty_table()], [_DROPPED_SCHEMA.empty_table()]
        skipped: list[tuple[Any, ...]] = []
        for piece in spec["pieces"]:
            file = piece.file.relative_name
            try:
                parts = [
                    self._split(table, file, first_row)
                    for first_row, table in read_piece(piece, self.config.columns)
                ]
            except InputError as error:
                if self.config.on_bad_file == "fail":
                    raise
                skipped.append((file, None, None, _BAD_FILE, str(error)[:_MESSAGE_CHARS]))
                continue
            kept += [good for good, _ in parts]
            dropped += [bad for _, bad in parts]
        rows, bad_rows = pa.concat_tables(kept), pa.concat_tables(dropped)
        digest = _write_exchange(self.folder / "_exchange" / f"{item}.parquet", rows.sort_by("bucket"))
        set_aside = pa.concat_tables([bad_rows, _rows(skipped, _DROPPED_SCHEMA)])
        if set_aside.num_rows:
            write_parquet(self.folder / "dropped" / f"{item}.parquet", set_aside)
        counts = {"kept": rows.num_rows, "skipped_pieces": len(skipped)}
        for reason in bad_rows.column("reason").to_pylist():
            counts[f"dropped_{reason}"] = counts.get(f"dropped_{reason}", 0) + 1
        num_rows = rows.num_rows + bad_rows.num_rows
        return ShardRecord(name=item, num_rows=num_rows, digest=digest, counts=counts)

    def _split(self, table: pa.Table, file: str, first_row: int) -> tuple[pa.Table, pa.Table]:
        """Kept rows in _ROW_SCHEMA and dropped rows in _DROPPED_SCHEMA."""
        config = self.config
        texts = table.column(config.text_column).to_pylist()
        ids = _optional_column(table, config.id_column)
        titles = _optional_column(table, config.title_column)
        kept: list[tuple[Any, ...]] = []
        dropped: list[tuple[Any, ...]] = []
        for i, (raw, doc_id, title) in enumerate(zip(texts, ids, titles, strict=True)):
            cleaned = None if raw is None else clean(raw)
            reason = drop_reason(cleaned, min_chars=config.min_chars, max_chars=config.max_chars)
            if reason is None and config.id_column and not doc_id:
                reason = "null_id"
            if reason is not None:
                dropped.append((file, first_row + i, doc_id, reason, (raw or "")[:_EXCERPT_CHARS]))
                continue
            assert cleaned is not None
            key = hashlib.blake2b(cleaned.encode(), digest_size=_HASH_BYTES).digest()
            bucket = int.from_bytes(key[:8], "big") % self.num_shards
            kept.append((bucket, key, doc_id or key.hex(), title, cleaned, file, first_row + i))
        return _rows(kept, _ROW_SCHEMA), _rows(dropped, _DROPPED_SCHEMA)


def _optional_column(table: pa.Table, name: str | None) -> list[str | None]:
    return [None] * table.num_rows if name is None else table.column(name).to_pylist()


def _rows(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def _write_exchange(place: Location, rows: pa.Table) -> str:
    """One row group per shard, so that the second pass reads only its own."""
    buckets = rows.column("bucket").to_numpy()
    ends = [*(np.flatnonzero(np.diff(buckets)) + 1).tolist(), len(buckets)]
    with (
        place.write_atomically() as target,
        target.open_output() as stream,
        pq.ParquetWriter(stream, _ROW_SCHEMA, compression="lz4") as writer,
    ):
        start = 0
        for end in ends:
            writer.write_table(rows.slice(start, end - start), row_group_size=max(1, end - start))
            start = end
    return place.sha256()


class _Gatherer:
    """Makes the second pass's task: one shard's rows from every piece, one row per text, ordered by hash."""

    def __init__(self, folder: Location, items: Sequence[str]):
        self.folder, self.items = folder, items

    def __call__(self) -> ShardFunction:
        return self._gather

    def _gather(self, name: str, spec: Mapping[str, Any]) -> ShardRecord:
        shard = int(spec["shard"])
        tables = [self._rows_of(item, shard) for item in self.items]
        # File and row come last: which of two equal rows stays shows in `dropped/` alone.
        order = ("hash", "doc_id", "title", "file", "row")
        rows = pa.concat_tables(tables).sort_by([(column, "ascending") for column in order])
        hashes = rows.column("hash").combine_chunks()
        differs = pc.not_equal(hashes[1:], hashes[:-1]) if len(hashes) else pa.array([], pa.bool_())
        keep = pa.concat_arrays([pa.array([True] * min(1, len(hashes)), pa.bool_()), differs])
        kept, again = rows.filter(keep), rows.filter(pc.invert(keep))
        if again.num_rows:
            reason = pa.array(["duplicate"] * again.num_rows, pa.string())
            excerpt = pc.utf8_slice_codeunits(again.column("text"), 0, _EXCERPT_CHARS)
            columns = [again.column("file"), again.column("row"), again.column("doc_id"), reason, excerpt]
            write_parquet(
                self.folder / "dropped" / f"{name}.parquet", pa.table(columns, schema=_DROPPED_SCHEMA)
            )
        first_id = shard << ROWS_PER_SHARD_BITS
        row_ids = pa.array(np.arange(first_id, first_id + kept.num_rows, dtype=np.int64))
        output = pa.table(
            {"row_id": row_ids, **{key: kept.column(key) for key in ("doc_id", "text", "title")}},
        )
        digest = write_parquet(self.folder / f"{name}.parquet", output)
        counts = {"dropped_duplicate": again.num_rows} if again.num_rows else {}
        return ShardRecord(name=name, num_rows=kept.num_rows, digest=digest, counts=counts)

    def _rows_of(self, item: str, shard: int) -> pa.Table:
        place = self.folder / "_exchange" / f"{item}.parquet"
        with place.filesystem.open_input_file(place.path) as stream:
            reader = pq.ParquetFile(stream)
            for group in range(reader.metadata.num_row_groups):
                statistics = reader.metadata.row_group(group).column(0).statistics
                if statistics is not None and statistics.min == shard:
                    return reader.read_row_group(group)
        return _ROW_SCHEMA.empty_table()


def write_parquet(place: Location, table: pa.Table) -> str:
    """Writes a shard atomically with the project's settings (zstd, small row groups); returns its sha256."""
    with place.write_atomically() as target, target.open_output() as stream:
        pq.write_table(table, stream, compression="zstd", row_group_size=_ROW_GROUP_ROWS)
    return place.sha256()
