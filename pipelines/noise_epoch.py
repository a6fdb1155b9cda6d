"""The noise of a run, shown or written down: what the training sees as damaged and what it has to rebuild.

Noise is keyed by (seed, epoch, row), so what is written here equals, byte for byte, what the stream into the
train workers makes on the fly, for any number of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pydantic
from numpy.typing import NDArray

from pipelines.collection import finished_manifest, read_shard
from pipelines.config import RunConfig
from pipelines.config_values import config_to_dict
from pipelines.errors import InputError
from pipelines.lanes import LanePlan
from pipelines.manifest import Manifest, ShardRecord, StageFolder, read_manifest
from pipelines.parquet import write_parquet
from pipelines.phases import one_phase
from pipelines.progress import Reporter
from pipelines.shards import ShardFunction, names, run_shards
from pipelines.start import START_FOLDER, load_start, resolve_start
from pipelines.storage import Location
from pipelines.stream import StepBatch, epoch_work, steps_of
from pipelines.token_shards import TokenRows, tokenize
from pipelines.train_config import TrainConfig
from pipelines.train_job import ENCODER_FOLDER
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.tokens import tokenize_texts
from tsdae_core.tsdae import TsdaeObjective

# Rows are written one by one, so that how they are cut into micro-batches shows nowhere.
_MAX_BATCH_TOKENS = 1 << 20


@dataclass(frozen=True)
class Example:
    """A text as the decoder has to rebuild it, and as the encoder sees it."""

    row_id: int
    original: str
    damaged: str


def recorded_config(workspace: str) -> RunConfig:
    """The settings that the workspace's encoder was trained with; before a training, the defaults.

    Raises:
        InputError: there is no such workspace.
    """
    place = Location.parse(workspace)
    if not place.exists():
        raise InputError(f"there is no workspace '{workspace}'; name one with --workspace, or give a CONFIG")
    manifest = read_manifest(place / ENCODER_FOLDER)
    if manifest is None:
        return RunConfig(workspace=workspace)
    # What stops a training names places that are not recorded, and noise does not ask for it.
    left_out = ("seed", "early_stopping", "keep")
    settings = {key: value for key, value in manifest.config.items() if key not in left_out}
    train = pydantic.TypeAdapter(TrainConfig).validate_python(settings)
    return replace(RunConfig(workspace=workspace), train=train, seed=int(manifest.config["seed"]))


def noise_examples(config: RunConfig, *, num: int, epoch: int, phase: str | None = None) -> list[Example]:
    """The first texts of the prepared corpus, a random sample of it, with their noise in an epoch.

    phase: which one, of a recipe with phases.

    Raises:
        InputError: the corpus is not prepared, the objective has no noise, there is no tokenizer yet, or the
            phase cannot be told (`phases.one_phase`).
    """
    workspace = Location.parse(config.workspace)
    config, place = one_phase(config, workspace, phase)
    _check(config, epoch)
    corpus = finished_manifest(workspace / "corpus", command="prepare")
    encoder = _encoder(config, place)
    objective = TsdaeObjective(encoder.tokenizer, config.train.tsdae)
    tables: list[pa.Table] = []
    for shard in corpus.shards:
        if sum(table.num_rows for table in tables) >= num:
            break
        tables.append(read_shard(workspace / "corpus", shard.name, ["row_id", "text"]).slice(0, num))
    rows = pa.concat_tables(tables).slice(0, num)
    row_ids = rows.column("row_id").to_numpy()
    tokens = tokenize_texts(rows.column("text").to_pylist(), encoder.tokenizer, max_tokens=encoder.max_tokens)
    batch = objective.make_batch(tokens, row_ids, seed=config.seed, epoch=epoch)
    texts = {}
    for end in ("source", "target"):
        framed = np.split(batch[f"{end}_ids"], np.cumsum(batch[f"{end}_lengths"])[:-1])
        start, stop = len(objective.frame.prefix), len(objective.frame.suffix)
        texts[end] = [encoder.tokenizer.decode(ids[start : len(ids) - stop].tolist()) for ids in framed]
    found = zip(row_ids.tolist(), texts["target"], texts["source"], strict=True)
    return [Example(row_id, str(original), str(damaged)) for row_id, original, damaged in found]


def write_epoch(
    config: RunConfig, output: Location, *, epoch: int, reporter: Reporter, phase: str | None = None
) -> Manifest:
    """Writes an epoch as `part-*.parquet`, a row per sentence in the training's order, unless it is there.

    Columns: `step` int64 (counted over all epochs), `row_id` int64, `source_ids` and `target_ids`
    list<int32>, special tokens included; `decoder_ids` alike where `decoder_mask_ratio` is set. Runs the
    tokens stage.

    Raises:
        InputError: as for `noise_examples`.
    """
    workspace = Location.parse(config.workspace)
    config, place = one_phase(config, workspace, phase)
    _check(config, epoch)
    corpus = finished_manifest(workspace / "corpus", command="prepare")
    start = resolve_start(config, place, corpus, workspace / "corpus", reporter=reporter)
    tokens = tokenize(config, place, corpus, start, workspace / "corpus", reporter=reporter)
    rows = TokenRows.open(place, tokens)
    plan = LanePlan(
        num_rows=rows.num_rows,
        batch_size=config.train.batch_size,
        num_lanes=config.train.lanes,
        seed=config.seed,
    )
    with (place / START_FOLDER).as_local_folder() as folder:
        tokenizer = SentenceEncoder.load(str(folder)).tokenizer
    objective = TsdaeObjective(tokenizer, config.train.tsdae)
    return write_plan(
        *(plan, rows, objective, output),
        epoch=epoch,
        inputs={"tokens": tokens.digest, "start": start.digest},
        settings={"tsdae": config_to_dict(config.train.tsdae)},
        reporter=reporter,
    )


def write_plan(
    plan: LanePlan,
    rows: TokenRows,
    objective: TsdaeObjective,
    output: Location,
    *,
    epoch: int,
    inputs: Mapping[str, str],
    settings: Mapping[str, Any],
    reporter: Reporter,
) -> Manifest:
    """`write_epoch` for a plan and rows that are there."""
    config = {"epoch": epoch, "plan": asdict(plan), **settings}
    stage = StageFolder(output, stage="noise", config=config, inputs=inputs)
    if (manifest := stage.finished()) is not None:
        reporter.note(f"noise: up to date, {manifest.counts['sentences']:,} sentences")
        return manifest
    _refuse_other_files(stage)
    stage.begin()
    work = epoch_work(plan, epoch)
    items = {name: {"chunks": tuple(group)} for name, group in zip(names(len(work)), work, strict=True)}
    writer = _EpochWriter(plan, rows, objective, output)
    shards = run_shards(
        stage, "noise", items, writer, reporter=reporter, label="noise", total_units=plan.num_rows
    )
    counts = {"sentences": sum(shard.num_rows for shard in shards), "steps": plan.steps_per_epoch}
    return stage.finish(counts=counts, shards=shards)


def _refuse_other_files(stage: StageFolder) -> None:
    """A folder that holds anything but an epoch is somebody's; the stage would empty it."""
    selector = pafs.FileSelector(stage.folder.path, allow_not_found=True)
    if not stage.folder.filesystem.get_file_info(selector) or stage.is_started():
        return
    manifest = read_manifest(stage.folder)
    if manifest is None or manifest.stage != stage.stage:
        raise InputError(f"'{stage.folder}' holds something else; name a new folder for the epoch")


class _EpochWriter:
    """Makes the task that writes the steps of some chunks, `{"chunks": [Chunk, ...]}`."""

    def __init__(self, plan: LanePlan, rows: TokenRows, objective: TsdaeObjective, output: Location):
        self.plan, self.rows, self.objective, self.output = plan, rows, objective, output

    def __call__(self) -> ShardFunction:
        return self._write

    def _write(self, name: str, spec: Mapping[str, Any]) -> ShardRecord:
        steps = steps_of(
            spec["chunks"], self.plan, self.rows, self.objective, max_batch_tokens=_MAX_BATCH_TOKENS
        )
        table = _sentences(steps)
        digest = write_parquet(self.output / f"{name}.parquet", table)
        return ShardRecord(name=name, num_rows=table.num_rows, digest=digest)


def _sentences(steps: Sequence[StepBatch]) -> pa.Table:
    """A row per sentence; steps without rows leave nothing."""
    batches = [(step.step, batch) for step in steps for batch in step.micro_batches]
    columns = {
        "step": np.repeat([step for step, _ in batches], [len(batch["row_ids"]) for _, batch in batches]),
        "row_id": np.concatenate([batch["row_ids"] for _, batch in batches]),
    }
    table = {name: pa.array(values.astype(np.int64)) for name, values in columns.items()}
    for name, lengths in (("source", "source"), ("target", "target"), ("decoder", "target")):
        if f"{name}_ids" in batches[0][1]:
            ids = np.concatenate([batch[f"{name}_ids"] for _, batch in batches])
            table[f"{name}_ids"] = _lists(ids, [batch[f"{lengths}_lengths"] for _, batch in batches])
    return pa.table(table)


def _lists(values: NDArray[np.int32], lengths: Sequence[NDArray[np.int64]]) -> pa.ListArray:
    offsets = np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths])).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, pa.int32()))


def _check(config: RunConfig, epoch: int) -> None:
    if config.train.objective != "tsdae":
        raise InputError(f"objective '{config.train.objective}' has no noise; set train.objective=tsdae")
    if epoch < 0:
        raise InputError(f"epoch {epoch}: epochs count from 0")


def _encoder(config: RunConfig, workspace: Location) -> SentenceEncoder:
    """The run's starting encoder: the resolved one, or before that the one that the configuration names."""
    if read_manifest(workspace / START_FOLDER) is not None:
        with (workspace / START_FOLDER).as_local_folder() as folder:
            return SentenceEncoder.load(str(folder))
    model = config.model
    if model.start == "scratch":
        raise InputError(
            "a scratch encoder has no tokenizer yet; run `tsdae train` first, a moment is enough"
        )
    return load_start(model)
