"""What the tests of prepare share: a run without Ray, what it left, and rows to run on."""

import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pipeline_builders import quiet_reporter

from pipelines.collection import read_shard
from pipelines.collection_config import CollectionConfig
from pipelines.prepare import prepare
from pipelines.storage import Location

TEXTS = [f"text {i} " + "word " * (i % 7) for i in range(60)]
ROWS = [(f"id-{i}", TEXTS[i % len(TEXTS)]) for i in range(90)]


def run(source, workspace, **settings):
    reporter, written = quiet_reporter()
    config = CollectionConfig(input=str(source), **settings)
    manifest = prepare("corpus", config, Location.parse(workspace), reporter=reporter)
    return manifest, written.getvalue()


def table_of(workspace, manifest):
    folder = Location.parse(workspace) / "corpus"
    columns = ["row_id", "doc_id", "text", "title"]
    return pa.concat_tables(
        [read_shard(folder, shard.name, columns) for shard in manifest.shards]
    ).to_pylist()


def texts_of(workspace, manifest):
    return sorted(row["text"] for row in table_of(workspace, manifest))


def dropped_of(workspace):
    files = sorted((Path(workspace) / "corpus" / "dropped").glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def files_below(folder):
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in Path(folder).rglob("*")
        if path.is_file()
    }


def counts_add_up(workspace, manifest):
    dropped = [row for row in dropped_of(workspace) if row["reason"] != "bad_file"]
    by_reason = {}
    for row in dropped:
        by_reason[f"dropped_{row['reason']}"] = by_reason.get(f"dropped_{row['reason']}", 0) + 1
    counts = dict(manifest.counts)
    assert {key: value for key, value in counts.items() if key.startswith("dropped_")} == by_reason
    assert counts["rows_read"] == counts["rows_kept"] + len(dropped)
    assert counts["rows_kept"] == sum(shard.num_rows for shard in manifest.shards)
    assert counts["rows_kept"] == len(table_of(workspace, manifest))
    return counts
