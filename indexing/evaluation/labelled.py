"""Pairs and candidates to re-rank from tables: STS, SICK, and a user's own labelled data.

Owns which columns are understood and what makes a query usable. Must not know the formats of files
(`tables`) or statistics.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow.fs

from indexing.evaluation.tables import TABLE_ENDINGS, TableRow, read_table_rows
from indexing.evaluation.task_files import find_file, has_file, is_table
from indexing.evaluation.text_files import read_text, text_lines
from indexing.evaluation.text_tasks import Pair, PairTask, RerankQuery, RerankTask

LEFT = ("sentence1", "sentence_A", "text1", "s1", "left")
RIGHT = ("sentence2", "sentence_B", "text2", "s2", "right")
LABEL = ("label", "score", "relatedness_score", "relatedness", "grade", "relevance")
PAIR_ID = ("pair_id", "pair_ID", "id")
QUERY_ID = ("query_id", "query-id", "qid")
DOC_ID = ("doc_id", "corpus-id", "docid", "candidate_id")
CANDIDATE = ("text", "document", "candidate")
RERANK_MEASURES = ("map", "mrr", "ndcg_at_10", "precision_at_1")
POSITIVE_ABOVE = 0.5
_STSB_COLUMNS = 7


def read_pairs(
    filesystem: pyarrow.fs.FileSystem, path: str, *, name: str | None = None, binary: bool = True
) -> PairTask:
    """Pairs from one table: two text columns, a label, an optional id.

    binary: labels say yes or no (positive above 0.5), scored by average precision; otherwise they are a
        similarity, scored by Spearman's and Pearson's correlation.

    Raises:
        ValueError: a malformed file or row.
    """
    pairs = []
    for number, row in enumerate(read_table_rows(filesystem, path)):
        label = row.number(LABEL)
        pairs.append(
            Pair(
                pair_id=str(row.value(PAIR_ID) or number),
                left=row.text(LEFT).strip(),
                right=row.text(RIGHT).strip(),
                label=label,
                is_positive=label > POSITIVE_ABOVE if binary else None,
            )
        )
    return PairTask(name=name or _stem(path), protocol="pairs" if binary else "sts", pairs=tuple(pairs))


def read_sts(
    filesystem: pyarrow.fs.FileSystem, path: str, *, split: str = "test", name: str | None = None
) -> PairTask:
    """Semantic textual similarity in the layouts that the data come in.

    path: a folder with `sts-<split>.csv` (STS benchmark), `SICK_<split>_annotated.txt` or `SICK.txt` (SICK;
        `dev` is its trial set), or `STS.input.*.txt` and `STS.gs.*.txt` (STS 2012 to 2016, one year, all its
        files taken together, lines without a score left out and counted); or one of these files, or a table
        as in `read_pairs`.

    Raises:
        FileNotFoundError, ValueError: nothing of the kind there, or a malformed file.
    """
    info = filesystem.get_file_info(path)
    if info.type != pyarrow.fs.FileType.Directory or is_table(path):
        return _sts_file(filesystem, path, split, name or _stem(path))
    title = name or path.rstrip("/").rsplit("/", 1)[-1]
    if inputs := sts_inputs(filesystem, path):
        return _semeval(filesystem, inputs, title)
    sick = {"dev": "trial", "valid": "trial"}.get(split, split)
    names = [f"sts-{split}.csv", f"SICK_{sick}_annotated.txt", "SICK.txt"]
    names += [f"{split}{ending}" for ending in TABLE_ENDINGS]
    return _sts_file(filesystem, find_file(filesystem, path, names), split, title)


def sts_inputs(filesystem: pyarrow.fs.FileSystem, folder: str) -> list[str]:
    """The sentence files of one year of SemEval's STS in a folder, sorted."""
    found = filesystem.get_file_info(pyarrow.fs.FileSelector(folder))
    return sorted(str(info.path) for info in found if info.base_name.startswith("STS.input."))


def _semeval(filesystem: pyarrow.fs.FileSystem, inputs: Sequence[str], name: str) -> PairTask:
    pairs: list[Pair] = []
    num_unscored = 0
    for path in inputs:
        folder, _, base = path.rpartition("/")
        gold = find_file(filesystem, folder, [base.removesuffix(".gz").replace("STS.input.", "STS.gs.")])
        sentences = _all_lines(filesystem, path)
        scores = _all_lines(filesystem, gold)
        if len(sentences) != len(scores):
            raise ValueError(f"{gold}: {len(scores)} scores for the {len(sentences)} pairs of {base}")
        for number, (line, score) in enumerate(zip(sentences, scores, strict=True), 1):
            if not score.strip():
                num_unscored += 1
                continue
            columns = line.split("\t")
            if len(columns) < 2:
                raise ValueError(f"{path}: line {number}: expected two sentences separated by a tab")
            row = TableRow(f"{gold}: line {number}", {"score": score.strip()})
            left, right = columns[0].strip(), columns[1].strip()
            pairs.append(Pair(pair_id=f"{base}:{number}", left=left, right=right, label=row.number(LABEL)))
    return PairTask(name=name, protocol="sts", pairs=tuple(pairs), counts={"unscored_pairs": num_unscored})


def _sts_file(filesystem: pyarrow.fs.FileSystem, path: str, split: str, name: str) -> PairTask:
    base = path.rsplit("/", 1)[-1]
    if base.startswith("sts-"):
        return _sts_benchmark(filesystem, path, name)
    task = read_pairs(filesystem, path, name=name, binary=False)
    if base.removesuffix(".gz") != "SICK.txt":
        return task
    wanted = {"dev": "TRIAL", "valid": "TRIAL"}.get(split, split.upper())
    rows = read_table_rows(filesystem, path)
    kept = [row.fields.get("SemEval_set") == wanted for row in rows]
    pairs = tuple(pair for pair, keep in zip(task.pairs, kept, strict=True) if keep)
    return PairTask(name=name, protocol="sts", pairs=pairs)


def _sts_benchmark(filesystem: pyarrow.fs.FileSystem, path: str, name: str) -> PairTask:
    """Genre, file, year, number, score, two sentences; later columns are sources; quotes are plain signs."""
    pairs = []
    for number, line in text_lines(filesystem, path):
        columns = line.split("\t")
        where = f"{path}: line {number}"
        if len(columns) < _STSB_COLUMNS:
            raise ValueError(f"{where}: expected {_STSB_COLUMNS} columns or more, got {len(columns)}")
        label = TableRow(where, {"score": columns[4]}).number(LABEL)
        left, right = columns[5].strip(), columns[6].strip()
        pairs.append(Pair(pair_id=str(number), left=left, right=right, label=label))
    return PairTask(name=name, protocol="sts", pairs=tuple(pairs))


def read_rerank(filesystem: pyarrow.fs.FileSystem, path: str, *, name: str | None = None) -> RerankTask:
    """Queries with candidates from one table.

    A row is a candidate (`query`, `text`, `label`, optionally `query_id` and `doc_id`), or, in JSONL and
    Parquet, a query with `positive` and `negative` lists of texts, or with `candidates`, a list of such rows.
    Candidates keep the file's order, which breaks ties. Queries without a relevant candidate are left out and
    counted.

    Raises:
        ValueError: a malformed file or row, or an id with two texts.
    """
    gathered: dict[str, tuple[str, list[tuple[str, str, int]]]] = {}
    for row in read_table_rows(filesystem, path):
        query = row.text(("query",)).strip()
        query_id = str(row.value(QUERY_ID) or query)
        known, candidates = gathered.setdefault(query_id, (query, []))
        if known != query:
            raise ValueError(f"{row.where}: query {query_id!r} has two texts: {known!r} and {query!r}")
        for candidate in _candidates(row):
            text = candidate.text(CANDIDATE).strip()
            doc_id = str(candidate.value(DOC_ID) or f"{query_id}/{len(candidates)}")
            candidates.append((doc_id, text, int(candidate.number(LABEL))))
    queries = [
        RerankQuery(
            query_id=query_id,
            query=query,
            doc_ids=tuple(doc_id for doc_id, _, _ in candidates),
            texts=tuple(text for _, text, _ in candidates),
            judged={doc_id: grade for doc_id, _, grade in candidates},
        )
        for query_id, (query, candidates) in gathered.items()
        if any(grade > 0 for _, _, grade in candidates)
    ]
    return RerankTask(
        name=name or _stem(path),
        protocol="rerank",
        queries=tuple(queries),
        measures=RERANK_MEASURES,
        counts={"skipped_queries": len(gathered) - len(queries)},
    )


def is_rerank_table(rows: Sequence[TableRow]) -> bool:
    """Whether a table has the columns of candidates to re-rank."""
    return bool(rows) and "query" in rows[0].fields


def has_sts(filesystem: pyarrow.fs.FileSystem, folder: str) -> bool:
    """Whether a folder has one of the layouts that `read_sts` knows."""
    names = ("sts-test.csv", "sts-dev.csv", "SICK.txt", "SICK_test_annotated.txt")
    return bool(sts_inputs(filesystem, folder)) or any(has_file(filesystem, folder, name) for name in names)


def _candidates(row: TableRow) -> list[TableRow]:
    nested: Any = row.fields.get("candidates")
    if nested is not None:
        return [TableRow(f"{row.where}, candidate {i}", fields) for i, fields in enumerate(nested)]
    if row.fields.get("positive") is None and row.fields.get("negative") is None:
        return [row]
    lists = ((1, row.fields.get("positive")), (0, row.fields.get("negative")))
    return [
        TableRow(row.where, {"text": text, "label": label})
        for label, texts in lists
        for text in ([texts] if isinstance(texts, str) else texts or [])
    ]


def _all_lines(filesystem: pyarrow.fs.FileSystem, path: str) -> list[str]:
    """Every line, also the empty ones: there the pair has no score."""
    lines = read_text(filesystem, path).removesuffix("\n").split("\n")
    return [line.removesuffix("\r") for line in lines]


def _stem(path: str) -> str:
    base = path.rstrip("/").rsplit("/", 1)[-1].removesuffix(".gz")
    return base.rpartition(".")[0] or base
