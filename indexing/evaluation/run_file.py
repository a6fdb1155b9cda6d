"""Rankings made elsewhere: run files in TREC's format.

A line is `query-id Q0 document-id rank score tag`, separated by white space. Must not know tasks or measures.
"""

import pyarrow.fs

from indexing.arrays import shorten
from indexing.evaluation.run import Run
from indexing.evaluation.text_files import text_lines


def read_run(filesystem: pyarrow.fs.FileSystem, path: str) -> Run:
    """Query id -> documents by falling score; equal scores keep the order of the file.

    Raises:
        ValueError: a malformed line (file, line number), a score that is not finite, a document twice for a
            query, or an empty file.
    """
    run: Run = {}
    for number, line in text_lines(filesystem, path):
        parts = line.split()
        try:
            query_id, _, doc_id, _, score_text, _ = parts
            score = float(score_text)
        except ValueError as error:
            raise ValueError(
                f"{path}: line {number}: expected query-id Q0 document-id rank score tag, got {line!r}"
            ) from error
        if not abs(score) < float("inf"):
            raise ValueError(f"{path}: line {number}: the score must be a finite number, got {score_text}")
        run.setdefault(query_id, []).append((doc_id, score))
    if not run:
        raise ValueError(f"{path}: the run is empty")
    for query_id, ranking in run.items():
        doc_ids = [doc_id for doc_id, _ in ranking]
        if len(set(doc_ids)) != len(doc_ids):
            twice = sorted({doc_id for doc_id in doc_ids if doc_ids.count(doc_id) > 1})
            raise ValueError(f"{path}: query {query_id!r} has documents twice: {shorten(twice)}")
        ranking.sort(key=lambda entry: -entry[1])
    return run
