"""The labels stage: a training's labelled files become clean rows in fixed shards, without duplicates.

Two passes of Ray Data tasks, as in prepare: read and check pieces of files, then gather one shard's rows. The
driver sees names and counts only. Output: `labels/part-*.parquet` (row_id int64; text_0, text_1 ... string;
label float32, null for ranking) and `dropped/` with every row set aside and why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.parquet as pq

from pipelines.config_values import config_to_dict
from pipelines.errors import InputError
from pipelines.exchange import PartMerger, merge_rounds
from pipelines.inputs import InputFile, check_files, find_files, plan_pieces
from pipelines.label_rule import LABEL_REASONS, LabelRule
from pipelines.labels_config import LabelsConfig
from pipelines.labels_read import LabelGatherer, LabelReader, ParallelFiles, exchange_folder, named_columns
from pipelines.manifest import Manifest, ShardRecord, StageFolder, stable_hash
from pipelines.parallel_lines import find_parallel
from pipelines.prepare import numbered_items
from pipelines.progress import Reporter
from pipelines.shards import names, run_shards, sum_drops
from pipelines.storage import Location
from pipelines.train_config import TrainConfig

LABELS_FOLDER = "labels"
_SHARD_BYTES = 64 << 20


def prepare_labels(config: TrainConfig, workspace: Location, *, reporter: Reporter) -> Manifest:
    """Runs the stage for a training with labels unless it is finished; writes `labels/`.

    Raises:
        InputError: no data, an unreadable file, a missing column, or not one usable row.
    """
    labels = config.labels
    assert labels is not None
    if not labels.input and labels.generate is not None:
        raise InputError(
            "labels.generate makes rows in a run only: make them with `tsdae pseudo-label` and set "
            "train.labels.input to the folder pseudo_labels of its workspace"
        )
    if not labels.input:
        raise InputError(
            f"objective {config.objective} needs labelled rows: set train.labels.input to a file, folder, "
            "glob or URL"
        )
    files = label_files(config)
    settings = {
        key: value for key, value in config_to_dict(labels).items() if key not in ("input", "generate")
    }
    rule = LabelRule.of(config)
    settings["rule"] = config_to_dict(rule)
    inputs = {file.relative_name: f"{file.size_bytes} bytes, modified {file.modified_ns}" for file in files}
    stage = StageFolder(
        workspace / LABELS_FOLDER, stage="labels", config=settings, inputs={"files": stable_hash(inputs)}
    )
    if (manifest := stage.finished()) is not None:
        reporter.note(f"labels: up to date, {manifest.counts['rows_kept']:,} rows")
        return manifest
    reporter.note(f"labels: reading {len(files):,} files from {labels.input}")
    with stage.removed_on_user_error():
        stage.begin()
        return _run(stage, config, labels, files, rule, reporter)


def label_files(config: TrainConfig) -> list[InputFile]:
    """The files behind the labels of a training that has some.

    Raises:
        InputError: there are none.
    """
    labels = config.labels
    assert labels is not None
    if labels.layout == "useb":
        texts, label = labels.columns_of(config.objective)
        return find_parallel(labels.input, [*texts, *([label] if label else [])])
    return find_files(labels.input)


def _run(
    stage: StageFolder,
    config: TrainConfig,
    labels: LabelsConfig,
    files: Sequence[InputFile],
    rule: LabelRule,
    reporter: Reporter,
) -> Manifest:
    texts, label = labels.columns_of(config.objective)
    num_shards = _num_shards(sum(file.size_bytes for file in files))
    skip_bad = labels.on_bad_file == "skip"
    work = LabelReader(stage.folder, rule, (texts, label), num_shards=num_shards, skip_bad_files=skip_bad)
    items: Mapping[str, Mapping[str, Any]]
    if labels.layout == "useb":
        items = {"item-000000": {"pieces": (ParallelFiles(tuple(files)),)}}
    else:
        columns = [*texts, *([label] if label else [])]
        try:
            row_groups = check_files(files, columns, skip_bad=skip_bad)
        except InputError as error:
            raise named_columns(error) from error
        pieces = plan_pieces(files, row_groups)
        items = numbered_items(stage, pieces, reporter)
    read = run_shards(stage, "read", items, work, reporter=reporter, label="labels read")
    if sum(record.counts.get("kept", 0) for record in read) == 0:
        raise InputError(_nothing_left(stage, labels, label, read, rule))
    parts = _merged(stage, read, reporter)
    gatherer = LabelGatherer(stage.folder, parts, num_texts=len(texts))
    by_shard = {name: {"shard": number} for number, name in enumerate(names(num_shards))}
    shards = run_shards(stage, "gather", by_shard, gatherer, reporter=reporter, label="labels gather")
    exchange_folder(stage.folder).delete()
    drops = sum_drops([*read, *shards])
    counts = {
        "rows_read": sum(record.num_rows for record in read),
        "rows_kept": sum(shard.num_rows for shard in shards),
        "skipped_files": sum(record.counts.get("skipped_pieces", 0) for record in read),
        "texts_per_row": len(texts),
    } | drops
    manifest = stage.finish(counts=counts, shards=shards)
    told = ", ".join(f"{value:,} {key.removeprefix('dropped_')}" for key, value in drops.items())
    reporter.note(
        f"labels: {counts['rows_kept']:,} of {counts['rows_read']:,} rows kept"
        + (f" (dropped: {told}; see {stage.folder / 'dropped'})" if told else "")
    )
    return manifest


def _merged(stage: StageFolder, read: Sequence[ShardRecord], reporter: Reporter) -> list[Location]:
    """The parts of the exchange, merged until they are few."""
    exchange = exchange_folder(stage.folder)

    def merge(number: str, items: Mapping[str, Mapping[str, Any]]) -> list[str]:
        work = PartMerger(exchange)
        done = run_shards(stage, f"merge-{number}", items, work, reporter=reporter, label="labels merge")
        return [record.name for record in done]

    found = [f"{record.name}-{i}" for record in read for i in range(record.counts["parts"])]
    return [exchange / name for name in merge_rounds(found, merge)]


def _nothing_left(
    stage: StageFolder, labels: LabelsConfig, label: str | None, read: Sequence[ShardRecord], rule: LabelRule
) -> str:
    rows = sum(record.num_rows for record in read)
    drops = sum_drops(read)
    if rows == 0:
        skipped = sum(record.counts.get("skipped_pieces", 0) for record in read)
        return f"'{labels.input}' holds no rows" + (f" ({skipped} bad files were skipped)" if skipped else "")
    first = _first_dropped(stage.folder)
    told = ", ".join(f"{value} {key.removeprefix('dropped_')}" for key, value in drops.items())
    message = (
        f"none of the {rows} rows of '{labels.input}' is usable ({told}; the first: row {first['row']} of "
        f"{first['file']}, column '{first['column']}', '{first['text']}')"
    )
    bad_label = label is not None and any(f"dropped_{reason}" in drops for reason in LABEL_REASONS)
    return f"{message}; {rule.advice()}" if bad_label else message


def _first_dropped(folder: Location) -> dict[str, Any]:
    info = (folder / "dropped").files()[0]
    with folder.filesystem.open_input_file(info.path) as stream:
        row: dict[str, Any] = pq.ParquetFile(stream).read().slice(0, 1).to_pylist()[0]
    return row


def _num_shards(input_bytes: int) -> int:
    return 1 << max(0, math.ceil(math.log2(max(1, input_bytes / _SHARD_BYTES))))
