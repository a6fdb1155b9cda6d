"""The tokenize stage: token ids and word starts of every row, made once, the validation rows kept apart.

Noise then works on ids; tokenising again in every epoch would cost far more than the noise itself.
Output: `part-*.parquet` with row_id int64, ids list<int32>, word_starts list<bool>, and `validation/` alike.
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
from pipelines.manifest import Manifest, ShardRecord, StageFolder, stable_hash
from pipelines.prepare import write_parquet
from pipelines.progress import Reporter
from pipelines.shards import ShardFunction, ShardRunner, run_shards
from pipelines.start import START_FOLDER
from pipelines.storage import Location
from pipelines.texts import text_hash
from tsdae_core.hashing import fold_key, keyed_uniform
from tsdae_core.ragged import Ragged
from tsdae_core.tokens import TokenizedTexts, tokenize_texts

TOKENS_FOLDER = "tokens"
_VALIDATION_KEY = "validation"


def tokenize(
    config: RunConfig,
    workspace: Location,
    corpus: Manifest,
    start: Manifest,
    corpus_folder: Location,
    *,
    reporter: Reporter,
    runner: ShardRunner = run_shards,
) -> Manifest:
    """Runs the stage unless it is finished. `corpus` is the manifest of `corpus_folder`.

    Raises:
        InputError: the held-out rows leave nothing to train on.
    """
    settings = {
        "max_tokens": config.model.max_tokens,
        "word_unit": config.model.word_unit,
        "validation_rows": config.train.validation_rows,
        "seed": config.seed,
    }
    inputs = {"corpus": corpus.digest, "start": start.digest}
    stage = StageFolder(workspace / TOKENS_FOLDER, stage="tokens", config=settings, inputs=inputs)
    if (manifest := stage.finished()) is not None:
        return manifest
    stage.begin()
    num_rows = corpus.counts["rows_kept"]
    share = min(0.5, config.train.validation_rows / num_rows)
    worker = _TokenizerTask(workspace, corpus_folder, share=share, config=config)
    items: dict[str, dict[str, Any]] = {shard.name: {} for shard in corpus.shards}
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
    def __init__(self, workspace: Location, corpus: Location, *, share: float, config: RunConfig):
        self.workspace, self.corpus, self.share = workspace, corpus, share
        self.seed = config.seed
        self.word_unit = config.model.word_unit

    def __call__(self) -> ShardFunction:
        from tsdae_core.encoder import SentenceEncoder

        with (self.workspace / START_FOLDER).as_local_folder() as folder:
            encoder = SentenceEncoder.load(str(folder))
        tokenizer, max_tokens = encoder.tokenizer, encoder.max_tokens
        output, corpus = self.workspace / TOKENS_FOLDER, self.corpus

        def work(name: str, _spec: Mapping[str, Any]) -> ShardRecord:
            table = read_shard(corpus, name, ["row_id", "text"])
            row_ids = table.column("row_id").to_numpy()
            texts = table.column("text").to_pylist()
            tokens = tokenize_texts(texts, tokenizer, max_tokens=max_tokens, word_unit=self.word_unit)
            held_out = _uniform(texts, self.seed) < self.share
            train, validation = np.flatnonzero(~held_out), np.flatnonzero(held_out)
            digests = [
                write_parquet(place / f"{name}.parquet", _to_table(row_ids[rows], tokens.take(rows)))
                for place, rows in ((output, train), (output / "validation", validation))
            ]
            counts = {
                "train": len(train),
                "validation": len(validation),
                "tokens": int(tokens.ids.lengths.sum()),
            }
            return ShardRecord(name=name, num_rows=len(row_ids), digest=stable_hash(digests), counts=counts)

        return work


def _uniform(texts: Sequence[str], seed: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each text, by its hash: other texts of the corpus do not move it."""
    hashes = np.fromiter(
        (int.from_bytes(text_hash(text)[8:], "big") for text in texts), np.uint64, len(texts)
    )
    return keyed_uniform(fold_key(seed, _VALIDATION_KEY), hashes)


def _to_table(row_ids: NDArray[np.int64], tokens: TokenizedTexts) -> pa.Table:
    offsets = pa.array(tokens.ids.offsets.astype(np.int32))
    return pa.table(
        {
            "row_id": pa.array(row_ids),
            "ids": pa.ListArray.from_arrays(offsets, pa.array(tokens.ids.values)),
            "word_starts": pa.ListArray.from_arrays(offsets, pa.array(tokens.word_starts)),
        }
    )


def from_table(table: pa.Table) -> tuple[NDArray[np.int64], TokenizedTexts]:
    """Row ids int64[n] and tokens of a table with the stage's columns."""
    table = table.combine_chunks()
    lists = table.column("ids").combine_chunks()
    lengths = np.diff(lists.offsets.to_numpy())
    starts = table.column("word_starts").combine_chunks().flatten().to_numpy(zero_copy_only=False)
    tokens = TokenizedTexts(Ragged(lists.flatten().to_numpy(), lengths.astype(np.int64)), starts)
    return table.column("row_id").to_numpy(), tokens


class RowSource(Protocol):
    """Training rows by global row number."""

    def read(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], TokenizedTexts]:
        """Row ids int64[n] and tokens of global row numbers int64[n], in the given order."""


@dataclass(frozen=True)
class RowsInMemory:
    """Training rows held as they are (a `RowSource`)."""

    row_ids: NDArray[np.int64]
    tokens: TokenizedTexts

    def read(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], TokenizedTexts]:
        """As `RowSource`."""
        return self.row_ids[rows], self.tokens.take(rows)


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

    def read(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], TokenizedTexts]:
        """Row ids int64[n] and tokens of global row numbers int64[n], in the given order.

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
            return np.empty(0, np.int64), TokenizedTexts(Ragged.from_rows([]), np.empty(0, np.bool_))
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


def read_validation(workspace: Location, manifest: Manifest) -> tuple[NDArray[np.int64], TokenizedTexts]:
    """All held-out rows; a bounded number by construction (train.validation_rows)."""
    folder = workspace / TOKENS_FOLDER / "validation"
    names = [shard.name for shard in manifest.shards if shard.counts["validation"]]
    columns = ["row_id", "ids", "word_starts"]
    if not names:
        return np.empty(0, np.int64), TokenizedTexts(Ragged.from_rows([]), np.empty(0, np.bool_))
    return from_table(pa.concat_tables([read_shard(folder, name, columns) for name in names]))
