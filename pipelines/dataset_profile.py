"""What MLflow is told of a dataset beside its name and digest: columns with their types, and sizes.

Knows manifests and shards, not MLflow.
"""

from __future__ import annotations

import pyarrow.parquet as pq

from pipelines.manifest import Manifest
from pipelines.storage import Location

# Whatever else a shard of texts or labels holds is text.
_MLFLOW_TYPES = {"int64": "long", "int32": "integer", "float": "float", "double": "double"}


def columns_of(folder: Location, rows: Manifest) -> dict[str, str]:
    """The columns of a stage's shards with MLflow's names of their types."""
    if not rows.shards:
        return {}
    place = folder / f"{rows.shards[0].name}.parquet"
    with place.filesystem.open_input_file(place.path) as file:
        schema = pq.read_schema(file)
    return {field.name: _MLFLOW_TYPES.get(str(field.type), "string") for field in schema}


def rows_and_shards(rows: Manifest) -> dict[str, int]:
    """The size of a stage's output, for the profile of a dataset."""
    return {"num_rows": sum(shard.num_rows for shard in rows.shards), "num_shards": len(rows.shards)}
