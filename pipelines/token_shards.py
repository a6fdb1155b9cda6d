"""The tokenize stage: token ids of every row, made once, the validation rows kept apart.

Rows are those of the corpus or, for a supervised objective, of `labels/`. Noise then works on ids; tokenising
again in every epoch would cost far more than the noise itself. Output: `part-*.parquet` with the columns of
`token_tables`, and `validation/` alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipelines.collection import read_shard
from pipelines.config import RunConfig
from pipelines.errors import InputError
from pipelines.labels_read import text_column
from pipelines.manifest import Manifest, ShardRecord, StageFolder, stable_hash
from pipelines.prepare import write_parquet
from pipelines.progress import Reporter
from pipelines.shards import ShardFunction, ShardRunner, run_shards
from pipelines.start import START_FOLDER
from pipelines.storage import Location
from pipelines.texts import text_hash
from pipelines.token_tables import from_table, labelled_texts, no_rows, to_table
from tsdae_core.examples import Examples, row_tokens
from tsdae_core.hashing import fold_key, keyed_uniform
from tsdae_core.tokens import tokenize_texts

TOKENS_FOLDER = "tokens"
_VALIDATION_KEY = "validation"


def tokenize(
    config: RunConfig,
    workspace: Location,
    rows: Manifest,
    start: Manifest,
    rows_folder: Location,
    *,
    reporter: Reporter,
    runner: ShardRunner = run_shards,
) -> Manifest:
    """Runs the stage unless it is finished. `rows` is the manifest of `rows_folder`: a corpus or labels.

    Raises:
        InputError: the held-out rows leave nothing to train on.
    """
    settings = {
        "max_tokens": config.model.max_tokens,
        "word_unit": config.model.word_unit,
        "validation_rows": config.train.validation_rows,
        "seed": config.seed,
    }
    inputs = {rows.stage: rows.digest, "start": start.digest}
    stage = StageFolder(workspace / TOKENS_FOLDER, stage="tokens", config=settings, inputs=inputs)
    if (manifest := stage.finished()) is not None:
        return manifest
    stage.begin()
    num_rows = rows.counts["rows_kept"]
    share = min(0.5, config.train.validation_rows / num_rows)
    num_texts = rows.counts.get("texts_per_row", 0)
    worker = _TokenizerTask(workspace, rows_folder, num_texts, share=share, config=config)
    items: dict[str, dict[str, Any]] = {shard.name: {} for shard in rows.shards}
    shards = runner(
        stage,
        "tokenize",
        items,
        worker,
        reporter=reporter,
        label="tokenize",
        total_units=num_rows,
        num_actors=1,
    )
    counts = {key: sum(shard.counts[key] for shard in shards) for key in ("train", "validation", "tokens")}
    if counts["train"] == 0:
        raise InputError(f"all {num_rows} rows are held out for validation; lower train.validation_rows")
    return stage.finish(counts=counts, shards=shards)


class _TokenizerTask:
    """num_texts: of labelled rows; 0 for those of a corpus."""

    def __init__(
        self, workspace: Location, folder: Location, num_texts: int, *, share: float, config: RunConfig
    ):
        self.workspace, self.folder, self.share = workspace, folder, share
        self.columns = [text_column(i) for i in range(num_texts)] or ["text"]
        self.is_labelled = num_texts > 0
        self.seed = config.seed
        self.word_unit = config.model.word_unit

    def __call__(self) -> ShardFunction:
        from tsdae_core.encoder import SentenceEncoder

        with (self.workspace / START_FOLDER).as_local_folder() as folder:
            encoder = SentenceEncoder.load(str(folder))
        tokenizer, max_tokens = encoder.tokenizer, encoder.max_tokens
        output = self.workspace / TOKENS_FOLDER

        def work(name: str, _spec: Mapping[str, Any]) -> ShardRecord:
            others = ["row_id", "label"] if self.is_labelled else ["row_id"]
            table = read_shard(self.folder, name, [*others, *self.columns])
            row_ids = table.column("row_id").to_numpy()
            texts = [table.column(column).to_pylist() for column in self.columns]
            tokens = [
                tokenize_texts(part, tokenizer, max_tokens=max_tokens, word_unit=self.word_unit)
                for part in texts
            ]
            examples = labelled_texts(tokens, table.column("label")) if self.is_labelled else tokens[0]
            # By the first text alone: rows that share a premise or an anchor are held out together.
            held_out = _uniform(texts[0], self.seed) < self.share
            train, validation = np.flatnonzero(~held_out), np.flatnonzero(held_out)
            digests = [
                write_parquet(place / f"{name}.parquet", to_table(row_ids[rows], examples.take(rows)))
                for place, rows in ((output, train), (output / "validation", validation))
            ]
            counts = {
                "train": len(train),
                "validation": len(validation),
                "tokens": int(row_tokens(examples).sum()),
            }
            return ShardRecord(name=name, num_rows=len(row_ids), digest=stable_hash(digests), counts=counts)

        return work


def _uniform(texts: Sequence[str], seed: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each text, by its hash: other texts of the corpus do not move it."""
    hashes = np.fromiter(
        (int.from_bytes(text_hash(text)[8:], "big") for text in texts), np.uint64, len(texts)
    )
    return keyed_uniform(fold_key(seed, _VALIDATION_KEY), hashes)


class RowSource(Protocol):
    """Training rows by global row number."""

    def read(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], Examples]:
        """Row ids int64[n] and rows of global row numbers int64[n], in the given order."""


@dataclass(frozen=True)
class RowsInMemory:
    """Training rows held as they are (a `RowSource`)."""

    row_ids: NDArray[np.int64]
    examples: Examples

    def read(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], Examples]:
        """As `RowSource`."""
        return self.row_ids[rows], self.examples.take(rows)


@dataclass(frozen=True)
class TokenRows:
    """Random access to the training rows of the finished stage: global row number -> row id and tokens."""

    folder: Location
    shard_names: Sequence[str]
    shard_rows: Sequence[int]

    @staticmethod
    def open(workspace: Location, manifest: Manifest) -> TokenRows:
        """The training rows behind a manifest of this stage, in shard order."""
        shards = [shard for shard in manifest.shards if shard.counts["train"]]
        return TokenRows(
            workspace / TOKENS_FOLDER, [s.name for s in shards], [s.counts["train"] for s in shards]
        )

    @property
    def num_rows(self) -> int:
        """Number of training rows."""
        return sum(self.shard_rows)

    def in_memory(self) -> RowsInMemory:
        """The same rows, read now."""
        return RowsInMemory(*self.read(np.arange(self.num_rows)))

    def read(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], Examples]:
        """Row ids int64[n] and rows of global row numbers int64[n], in the given order.

        Reads only the row groups that hold them.
        """
        ends = np.cumsum(self.shard_rows)
        shard_of = np.searchsorted(ends, rows, side="right")
        tables, position = [], np.empty(len(rows), np.int64)
        filled = 0
        for shard in np.unique(shard_of):
            where = np.flatnonzero(shard_of == shard)
            offsets = rows[where] - (ends[shard] - self.shard_rows[shard])
            tables.append(self._read_shard(self.shard_names[shard], offsets))
            position[where] = np.arange(filled, filled + len(where))
            filled += len(where)
        if not tables:
            return no_rows()
        row_ids, tokens = from_table(pa.concat_tables(tables))
        return row_ids[position], tokens.take(position)

    def _read_shard(self, name: str, offsets: NDArray[np.int64]) -> pa.Table:
        place = self.folder / f"{name}.parquet"
        with place.filesystem.open_input_file(place.path) as stream:
            reader = pq.ParquetFile(stream)
            sizes = [reader.metadata.row_group(i).num_rows for i in range(reader.metadata.num_row_groups)]
            ends = np.cumsum(sizes)
            group_of = np.searchsorted(ends, offsets, side="right")
            groups = np.unique(group_of)
            table = reader.read_row_groups(groups.tolist())
        first = np.cumsum([0, *(sizes[group] for group in groups)])[:-1]
        within = offsets - (ends[group_of] - np.asarray(sizes)[group_of])
        return table.take(pa.array(first[np.searchsorted(groups, group_of)] + within))


def read_validation(workspace: Location, manifest: Manifest) -> tuple[NDArray[np.int64], Examples]:
    """All held-out rows; a bounded number by construction (train.validation_rows)."""
    folder = workspace / TOKENS_FOLDER / "validation"
    names = [shard.name for shard in manifest.shards if shard.counts["validation"]]
    if not names:
        return no_rows()
    return from_table(pa.concat_tables([read_shard(folder, name) for name in names]))
