"""The four tasks of the TSDAE paper in the file layout of its toolkit USEB (Wang et al., 2021).

Owns the layout and USEB's rules of what is scored; docs/evaluation.md states them task by task. Must not know
encoders or statistics.
"""

import ast
from collections.abc import Mapping
from typing import Any

import pyarrow.fs

from indexing.evaluation.task_files import find_file
from indexing.evaluation.text_files import read_json_object, text_lines
from indexing.evaluation.text_tasks import (
    CorpusPart,
    CorpusTask,
    Pair,
    PairTask,
    RerankQuery,
    RerankTask,
)

USEB_PROTOCOLS = ("askubuntu", "cqadupstack", "twitterpara", "scidocs")
_DEBATABLE = 3  # TwitterPara's middle label: neither a paraphrase nor none


def read_askubuntu(
    filesystem: pyarrow.fs.FileSystem, folder: str, *, split: str = "test", name: str | None = None
) -> RerankTask:
    """AskUbuntu (Lei et al. 2016): 20 candidates per query, titles only, ties in BM25's order.

    split: `test` or `dev` (`valid` is the same).

    Raises:
        FileNotFoundError, ValueError: a missing or malformed file; a query or candidate without text.
    """
    titles = {}
    path = find_file(filesystem, folder, ["text_tokenized.txt"])
    for number, line in text_lines(filesystem, path):
        question_id, title, _ = _columns(line, 3, f"{path}: line {number}")
        titles[question_id.strip()] = title.strip()
    queries = []
    num_skipped = num_unreachable = 0
    for query_id, relevant, ranked in askubuntu_labels(filesystem, folder, split=split):
        judged = {doc_id: int(doc_id in relevant) for doc_id in ranked}
        if not relevant:
            num_skipped += 1
            continue
        if not any(judged.values()):  # USEB's own code stops here; no line of its files is like this
            num_unreachable += 1
            continue
        unknown = [doc_id for doc_id in (query_id, *ranked) if doc_id not in titles]
        if unknown:
            raise ValueError(f"{path}: no text for question {unknown[0]!r}, which {split} needs")
        texts = tuple(titles[doc_id] for doc_id in ranked)
        queries.append(
            RerankQuery(
                query_id=query_id, query=titles[query_id], doc_ids=tuple(ranked), texts=texts, judged=judged
            )
        )
    return RerankTask(
        name=name or "AskUbuntu",
        protocol="askubuntu",
        queries=tuple(queries),
        measures=("map", "mrr", "precision_at_1", "precision_at_5"),
        counts={"skipped_queries": num_skipped, "unreachable_queries": num_unreachable},
    )


def askubuntu_labels(
    filesystem: pyarrow.fs.FileSystem, folder: str, *, split: str
) -> list[tuple[str, set[str], list[str]]]:
    """Query id, relevant ids, and candidate ids by falling BM25 score (equal scores in the file's order)."""
    path = find_file(filesystem, folder, [f"{'dev' if split == 'valid' else split}.txt"])
    labels = []
    for number, line in text_lines(filesystem, path):
        where = f"{path}: line {number}"
        query_id, relevant, candidates, scores = _columns(line, 4, where)
        doc_ids, values = candidates.split(), [float(score) for score in scores.split()]
        if len(doc_ids) != len(values):
            raise ValueError(f"{where}: {len(doc_ids)} candidates and {len(values)} BM25 scores")
        order = sorted(range(len(doc_ids)), key=lambda place: -values[place])
        labels.append((query_id.strip(), set(relevant.split()), [doc_ids[place] for place in order]))
    return labels


def read_cqadupstack(
    filesystem: pyarrow.fs.FileSystem, folder: str, *, split: str = "test", name: str | None = None
) -> CorpusTask:
    """CQADupStack (Hoogeveen et al. 2015): duplicates among the questions of a forum that are no queries.

    split: `test` or `valid` (`dev` is the same).

    Raises:
        FileNotFoundError, ValueError: a missing or malformed file, or a query without text.
    """
    corpus = read_json_object(filesystem, find_file(filesystem, folder, ["corpus.json"]))
    path = find_file(filesystem, folder, ["retrieval_split.json"])
    splits = read_json_object(filesystem, path)
    chosen = _mapping(splits, "valid" if split == "dev" else split, path)
    parts = []
    for forum in corpus:
        texts, golds = _mapping(corpus, forum, path), _mapping(chosen, forum, path)
        unknown = [query_id for query_id in golds if query_id not in texts]
        if unknown:
            raise ValueError(f"{path}: query {unknown[0]!r} of {forum} is not in corpus.json")
        pool = {doc_id: str(text) for doc_id, text in texts.items() if doc_id not in golds}
        parts.append(
            CorpusPart(
                group=forum,
                query_ids=tuple(golds),
                queries=tuple(str(texts[query_id]).strip() for query_id in golds),
                doc_ids=tuple(pool),
                documents=tuple(text.strip() for text in pool.values()),
                qrels={
                    query_id: dict.fromkeys(map(str, duplicates), 1) for query_id, duplicates in golds.items()
                },
            )
        )
    return CorpusTask(
        name=name or "CQADupStack",
        protocol="cqadupstack",
        parts=tuple(parts),
        measures=("useb_map_at_100", "ndcg_at_10"),
    )


def read_twitterpara(
    filesystem: pyarrow.fs.FileSystem, folder: str, *, split: str = "test", name: str | None = None
) -> PairTask:
    """TwitterPara: Twitter URL corpus (Lan et al. 2017) and PIT-2015 (Xu et al. 2015), test sets.

    Raises:
        FileNotFoundError, ValueError: a missing or malformed file.
    """
    del split  # there is one only; USEB, too, scores the test set when asked for another
    pairs = []
    path = find_file(filesystem, folder, ["Twitter_URL_Corpus_test.txt"])
    for number, line in text_lines(filesystem, path):
        where = f"{path}: line {number}"
        columns = line.strip().split("\t")
        if len(columns) < 3:
            raise ValueError(f"{where}: expected two sentences and a label, got {len(columns)} columns")
        votes = _votes(columns[2], where)
        pairs.append(twitter_pair("twitterurl", str(number), columns[0], columns[1], votes))
    path = find_file(filesystem, folder, ["test.data"])
    for number, line in text_lines(filesystem, path):
        where = f"{path}: line {number}"
        columns = line.strip().split("\t")
        if len(columns) < 5 or not columns[4].isdecimal():
            raise ValueError(f"{where}: expected topic id, topic, two sentences and a label 0 to 5")
        pairs.append(twitter_pair("pit", str(number), columns[2], columns[3], int(columns[4])))
    return PairTask(name=name or "TwitterPara", protocol="twitterpara", pairs=tuple(pairs))


def twitter_pair(group: str, pair_id: str, left: str, right: str, votes: int) -> Pair:
    """A pair of one of the two sets: over 3 a paraphrase, under 3 none, 3 left out of average precision."""
    return Pair(
        pair_id=pair_id,
        group=group,
        left=left.strip(),
        right=right.strip(),
        label=float(votes),
        is_positive=None if votes == _DEBATABLE else votes > _DEBATABLE,
    )


def read_scidocs(
    filesystem: pyarrow.fs.FileSystem, folder: str, *, split: str = "test", name: str | None = None
) -> RerankTask:
    """SciDocs (Cohan et al. 2020): about 30 candidates per query in four relations, titles only.

    split: `test` or `valid` (`dev` is the same). Candidates without a title cannot be ranked; where they are
    relevant they count as not found, as in USEB. Ties fall as trec_eval breaks them: the larger id first.

    Raises:
        FileNotFoundError, ValueError: a missing or malformed file.
    """
    path = find_file(filesystem, folder, ["data.json"])
    data = read_json_object(filesystem, path)
    corpus = _mapping(data, "corpus", path)
    titles = {doc_id: str(entry.get("title") or "").strip() for doc_id, entry in corpus.items()}
    queries = []
    num_skipped = num_untitled = 0
    for relation, by_query in _mapping(data, "valid" if split == "dev" else split, path).items():
        for query_id, judged in by_query.items():
            if not titles.get(query_id):
                num_skipped += 1
                continue
            doc_ids = tuple(sorted((doc_id for doc_id in judged if titles.get(doc_id)), reverse=True))
            num_untitled += len(judged) - len(doc_ids)
            queries.append(
                RerankQuery(
                    query_id=query_id,
                    group=relation,
                    query=titles[query_id],
                    doc_ids=doc_ids,
                    texts=tuple(titles[doc_id] for doc_id in doc_ids),
                    judged={doc_id: int(grade) for doc_id, grade in judged.items()},
                )
            )
    return RerankTask(
        name=name or "SciDocs",
        protocol="scidocs",
        queries=tuple(queries),
        measures=("map", "ndcg"),
        counts={"queries_without_title": num_skipped, "candidates_without_title": num_untitled},
    )


def _columns(line: str, count: int, where: str) -> list[str]:
    columns = line.split("\t")
    if len(columns) != count:
        raise ValueError(f"{where}: expected {count} columns separated by tabs, got {len(columns)}")
    return columns


def _votes(text: str, where: str) -> int:
    """The first number of `(4, 6)`: four of six said that it is a paraphrase."""
    try:
        value = ast.literal_eval(text)
        return int(value[0] if isinstance(value, tuple) else value)
    except (ValueError, SyntaxError, IndexError, TypeError) as error:
        raise ValueError(f"{where}: expected votes such as (4, 6), got {text!r}") from error


def _mapping(tree: Mapping[str, Any], key: str, path: str) -> dict[str, Any]:
    value = tree.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected an object {key!r}; there is {', '.join(tree) or 'nothing'}")
    return value
