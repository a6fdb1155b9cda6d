"""Names of folders and shards that both those who write and those who read need.

In a file of its own so that searching does not load Ray, which only writing needs.
"""

INDEX_FOLDER = "index"
LOOKUP_FOLDER = "lookup"
# Inside lookup/.
VECTORS_FOLDER = "vectors"
BM25_FOLDER = "bm25"


def shard_name(number: int) -> str:
    """part-00007: the name of a shard everywhere, without its suffix."""
    return f"part-{number:05d}"
