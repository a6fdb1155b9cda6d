"""Near-duplicates by MinHash and locality-sensitive hashing (Broder 1997; Leskovec et al., MMDS, ch. 3).

A text's character n-grams become a MinHash signature (rensa), the signature is cut into bands, and texts that
agree in a whole band meet in one bucket, where all but the one with the lowest id are set aside. So who stays
is a function of the texts and ids alone, and no task sees more than one bucket. Two texts of similarity s
agree in one of b bands of r rows with probability 1 - (1 - s^r)^b; b and r are chosen for the threshold.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines.collection_config import NearDuplicateConfig
from pipelines.exchange import read_bucket, write_part
from pipelines.manifest import ShardRecord
from pipelines.parquet import ROWS_PER_SHARD_BITS
from pipelines.part_buffer import PartBuffer
from pipelines.row_tables import first_of_equal
from pipelines.shards import ShardFunction
from pipelines.storage import Location
from tsdae_core.hashing import fold_key, keyed_hash

# `band` is the hash of a band, `order` the id (null: there is no id column), `key` the hash of the text.
BAND_SCHEMA = pa.schema(
    [
        ("bucket", pa.int32()),
        ("band", pa.uint64()),
        ("order", pa.string()),
        ("key", pa.uint64()),
        ("row_id", pa.int64()),
    ]
)
VERDICT_SCHEMA = pa.schema([("bucket", pa.int32()), ("row_id", pa.int64())])
_SEED = 1
_TEXTS_AT_ONCE = 5_000
_NO_LETTER = re.compile(r"[\W_]+")


def ngrams(text: str, length: int) -> list[str]:
    """The distinct character n-grams of a text's letters and digits; a shorter text is its own only one."""
    plain = _NO_LETTER.sub(" ", text.lower()).strip()
    if len(plain) <= length:
        return [plain] if plain else []
    return list({plain[i : i + length] for i in range(len(plain) - length + 1)})


def band_shape(threshold: float, num_permutations: int) -> tuple[int, int]:
    """(bands, rows per band) with the least area of errors on both sides of the threshold."""
    similarity = (np.arange(1_000) + 0.5) / 1_000
    best, shape = np.inf, (1, 1)
    for num_bands in range(1, num_permutations + 1):
        for num_rows in range(1, num_permutations // num_bands + 1):
            found = 1 - (1 - similarity**num_rows) ** num_bands
            area = np.where(similarity < threshold, found, 1 - found).sum()
            if area < best:
                best, shape = area, (num_bands, num_rows)
    return shape


def band_hashes(
    texts: Sequence[str], config: NearDuplicateConfig
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """(places int64[n] of the texts that have letters or digits, hashes uint64[n, bands])."""
    from rensa import RMinHash

    num_bands, num_rows = band_shape(config.threshold, config.num_permutations)
    sets = [ngrams(text, config.ngram_chars) for text in texts]
    places = np.asarray([i for i, grams in enumerate(sets) if grams], np.int64)
    if not len(places):
        return places, np.empty((0, num_bands), np.uint64)
    filled = [grams for grams in sets if grams]
    matrix = RMinHash.digest_matrix_from_token_sets(filled, num_perm=config.num_permutations, seed=_SEED)
    signatures = np.asarray(matrix.to_rows(), np.uint64)
    hashes = [
        keyed_hash(fold_key("band", band), *signatures[:, band * num_rows : (band + 1) * num_rows].T)
        for band in range(num_bands)
    ]
    return places, np.stack(hashes, axis=1)


class BandMaker:
    """Sends the bands of a shard's texts to their buckets. Picklable."""

    def __init__(self, output: Location, config: NearDuplicateConfig, *, num_buckets: int, by_id: bool):
        self.output, self.config, self.num_buckets, self.by_id = output, config, num_buckets, by_id

    def write(self, name: str, rows: pa.Table) -> int:
        """Writes the bands of rows (row_id, doc_id, hash, text) as parts `name-0` ...; returns how many."""

        def write(number: int, bands: pa.Table) -> None:
            write_part(self.output / f"{name}-{number}", bands, num_buckets=self.num_buckets)

        buffer = PartBuffer(write, lambda number: (self.output / f"{name}-{number}").delete())
        for start in range(0, rows.num_rows, _TEXTS_AT_ONCE):
            buffer.add(self._bands(rows.slice(start, _TEXTS_AT_ONCE)))
        return buffer.close()

    def _bands(self, rows: pa.Table) -> pa.Table:
        places, hashes = band_hashes(rows.column("text").to_pylist(), self.config)
        num_bands = hashes.shape[1]
        rows = rows.take(pa.array(np.repeat(places, num_bands)))
        bands = hashes.ravel()
        keys = np.asarray(
            [int.from_bytes(key[:8], "big") for key in rows.column("hash").to_pylist()], np.uint64
        )
        order = rows.column("doc_id") if self.by_id else pa.nulls(rows.num_rows, pa.string())
        buckets = (bands % np.uint64(self.num_buckets)).astype(np.int32)
        columns = [pa.array(buckets), pa.array(bands), order, pa.array(keys), rows.column("row_id")]
        return pa.table(columns, schema=BAND_SCHEMA)


class BandMatcher:
    """Makes the task of one bucket of bands, `{"bucket": number}`; num_rows counts the verdicts it wrote."""

    def __init__(self, parts: Sequence[Location], output: Location, *, num_buckets: int):
        self.parts, self.output, self.num_buckets = parts, output, num_buckets

    def __call__(self) -> ShardFunction:
        """The task."""
        return self._match

    def _match(self, name: str, spec: Mapping[str, Any]) -> ShardRecord:
        bands = read_bucket(self.parts, int(spec["bucket"]), BAND_SCHEMA)
        bands = bands.sort_by([(column, "ascending") for column in ("band", "order", "key", "row_id")])
        others = ~first_of_equal(bands, ("band",))
        losers = np.unique(bands.column("row_id").to_numpy()[others])
        if len(losers):
            shards = (losers >> ROWS_PER_SHARD_BITS).astype(np.int32)
            verdicts = pa.table([pa.array(shards), pa.array(losers)], schema=VERDICT_SCHEMA)
            write_part(self.output / name, verdicts, num_buckets=self.num_buckets)
        return ShardRecord(name=name, num_rows=len(losers), digest="")
