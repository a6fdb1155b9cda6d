"""`tsdae search` and `tsdae rerank`: one query, a dialogue, or a file of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pipelines.cli.options import DEFAULT_WORKSPACE, Workspace
from pipelines.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from indexing.fusion import FusionConfig
    from pipelines.ranking_files import Query
    from pipelines.rerank import Reranker
    from pipelines.search import Hit, Searcher

_HELP = """\
Type a query, or: :mode dense|bm25|hybrid   :k NUMBER   :filter CONDITION (empty: none)   :quit"""


class FusionKind(StrEnum):
    """How the two rankings of hybrid mode become one."""

    RRF = "rrf"
    WEIGHTED = "weighted"


class SearchMode(StrEnum):
    """What ranks the documents."""

    DENSE = "dense"
    BM25 = "bm25"
    HYBRID = "hybrid"


Filter = Annotated[
    str | None,
    typer.Option(
        "--filter",
        metavar="CONDITION",
        help="Only documents whose columns fit, e.g. 'title contains \"path\" and year >= 2020'.",
    ),
]
Fusion = Annotated[
    FusionKind | None,
    typer.Option(
        help="Of --mode hybrid: by reciprocal rank (rrf, the default), or by the weighted sum of scores.",
        show_default=False,
    ),
]
RrfK = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Of rrf: a hit counts share / (k + rank); without it 60, as in the paper.",
        show_default=False,
    ),
]
DenseWeight = Annotated[
    float | None,
    typer.Option(
        help="Of --mode hybrid: share of the dense ranking, between 0 and 1; without it one half.",
        show_default=False,
    ),
]
CrossEncoder = Annotated[
    str | None,
    typer.Option("--cross-encoder", help="Folder or hub name of a sentence-transformers CrossEncoder."),
]


def search(
    query: Annotated[
        str | None,
        typer.Argument(help="What to look for; without it, queries are asked for one by one."),
    ] = None,
    workspace: Workspace = DEFAULT_WORKSPACE,
    k: Annotated[int, typer.Option("-k", min=1, max=1000, help="Number of documents.")] = 5,
    mode: Annotated[
        SearchMode, typer.Option(help="By vectors, by words, or both rankings fused.")
    ] = SearchMode.DENSE,
    condition: Filter = None,
    fusion: Fusion = None,
    rrf_k: RrfK = None,
    dense_weight: DenseWeight = None,
    queries: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Queries to answer: .txt, .tsv (id, text), .jsonl or .parquet."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where --queries go: .jsonl, .parquet or .trec."),
    ] = None,
    cross_encoder: CrossEncoder = None,
    rerank_depth: Annotated[
        int, typer.Option(min=1, max=10_000, help="Candidates that the cross-encoder scores.")
    ] = 100,
    json_output: Annotated[
        bool, typer.Option("--json", help="One JSON object per hit, for programs.")
    ] = False,
) -> None:
    """Search the index of a finished run: one query, a dialogue, or a file of queries."""
    from pipelines.ranking_files import read_queries

    _check_files(query, queries, output, json_output=json_output)
    is_dialogue = query is None and output is None
    fused = _fusion(fusion, rrf_k, dense_weight, is_used=is_dialogue or mode == SearchMode.HYBRID)
    asked = read_queries(queries) if queries is not None else []
    searcher, reranker = _open(workspace, cross_encoder)

    def find(texts: Sequence[str], k: int, mode: SearchMode, condition: str | None) -> list[list[Hit]]:
        return searcher.search(
            texts,
            k,
            mode=mode.value,
            filter=condition,
            fusion=fused,
            reranker=reranker,
            rerank_depth=rerank_depth,
        )

    if output is not None:
        columns = searcher.documents.other_columns
        _answer_file(asked, output, lambda texts: find(texts, k, mode, condition), columns)
    elif query is not None:
        _show(query, find([query], k, mode, condition)[0], json_output=json_output)
    else:
        _Dialogue(find, k=k, mode=mode, condition=condition, json_output=json_output).run()


def _check_files(query: str | None, queries: str | None, output: str | None, *, json_output: bool) -> None:
    """Refuses what does not go together, before anything is opened."""
    from pipelines.ranking_files import check_output

    if (queries is None) != (output is None):
        raise InputError("--queries and --output belong together")
    if output is None:
        return
    if query is not None:
        raise InputError("give a QUERY or a file of --queries, not both")
    if json_output:
        raise InputError("--json is for the terminal; a file is JSON if its name ends in .jsonl")
    check_output(output)


def rerank(
    candidates: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help=".jsonl or .parquet: per row a query and `candidates`, a list of texts or of {id, text}.",
            show_default=False,
        ),
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Result: .jsonl, .parquet or .trec.")
    ],
    workspace: Workspace = DEFAULT_WORKSPACE,
    encoder: Annotated[
        str | None,
        typer.Option(help="Folder or URL of an encoder; without it, the workspace's.", show_default=False),
    ] = None,
    cross_encoder: CrossEncoder = None,
) -> None:
    """Put given candidates in order, as the AskUbuntu task does: by cosine, equal ones as they came."""
    from pipelines.ranking_files import check_output, read_candidates, write_rankings
    from pipelines.rerank import CrossEncoderReranker, rerank_order
    from pipelines.search import Hit

    check_output(output)
    lists = read_candidates(candidates)
    first = next(lists, None)
    if first is None:
        raise InputError(f"{candidates} holds no queries")
    reranker: Reranker = (
        _encoder_reranker(encoder, workspace)
        if cross_encoder is None
        else CrossEncoderReranker.load(cross_encoder)
    )

    def ranked() -> Iterator[tuple[Query, list[Hit]]]:
        for item in (first, *lists):
            scores = reranker.score(item.query.text, item.texts)
            yield (
                item.query,
                [
                    Hit(rank, item.doc_ids[place], float(scores[place]), None, item.texts[place])
                    for rank, place in enumerate(rerank_order(scores).tolist(), 1)
                ],
            )

    count = write_rankings(output, ranked())
    Console(stderr=True, highlight=False).print(
        f"rerank: {count:,} queries in {output}", markup=False, soft_wrap=True
    )


def _encoder_reranker(encoder: str | None, workspace: str) -> Reranker:
    from pipelines.rerank import EncoderReranker
    from pipelines.storage import Location, is_url

    if encoder is not None and not is_url(encoder):
        with _without_bars():
            return EncoderReranker.load(encoder)
    place = Location.parse(workspace) / "encoder" if encoder is None else Location.parse(encoder)
    if not place.exists():
        raise InputError(
            f"there is no encoder at '{place}'; name a finished run with --workspace, or one with --encoder"
        )
    with place.as_local_folder() as folder, _without_bars():
        return EncoderReranker.load(folder)


def _fusion(
    kind: FusionKind | None, rrf_k: int | None, dense_weight: float | None, *, is_used: bool
) -> FusionConfig:
    from indexing.fusion import fusion_with

    given = (kind, rrf_k, dense_weight)
    if not is_used and any(one is not None for one in given):
        raise InputError("--fusion, --rrf-k and --dense-weight go with --mode hybrid")
    try:
        return fusion_with(kind=None if kind is None else kind.value, rrf_k=rrf_k, dense_weight=dense_weight)
    except ValueError as error:
        raise InputError(str(error)) from error


def _open(workspace: str, cross_encoder: str | None) -> tuple[Searcher, Reranker | None]:
    from pipelines.rerank import CrossEncoderReranker
    from pipelines.search import Searcher

    with _without_bars():
        searcher = Searcher.open(workspace)
    return searcher, None if cross_encoder is None else CrossEncoderReranker.load(cross_encoder)


@contextmanager
def _without_bars() -> Iterator[None]:
    """No bar of transformers between a query and its answer, for a model on disk that loads in a moment."""
    from transformers.utils import logging

    is_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if is_shown:
            logging.enable_progress_bar()


def _answer_file(
    queries: Sequence[Query],
    output: str,
    find: Callable[[Sequence[str]], list[list[Hit]]],
    columns: pa.Schema,
) -> None:
    from pipelines.ranking_files import write_rankings

    block = 256

    def answers() -> Iterator[tuple[Query, list[Hit]]]:
        for start in range(0, len(queries), block):
            part = queries[start : start + block]
            yield from zip(part, find([query.text for query in part]), strict=True)

    count = write_rankings(output, answers(), columns=columns)
    Console(stderr=True, highlight=False).print(
        f"search: {count:,} queries in {output}", markup=False, soft_wrap=True
    )


def _show(query: str, hits: Sequence[Hit], *, json_output: bool) -> None:
    from pipelines.cli.summary import print_hits

    console = Console(highlight=False, soft_wrap=json_output)
    print_hits(hits, console, json_output=json_output, query=query)


class _Dialogue:
    """Queries and settings from standard input, one per line, until its end."""

    def __init__(
        self,
        find: Callable[[Sequence[str], int, SearchMode, str | None], list[list[Hit]]],
        *,
        k: int,
        mode: SearchMode,
        condition: str | None,
        json_output: bool,
    ) -> None:
        self._find, self._k, self._mode, self._condition = find, k, mode, condition
        self._json = json_output

    def run(self) -> None:
        """Reads and answers. A mistake is told and the dialogue goes on."""
        to_person = sys.stdin.isatty() and not self._json
        if to_person:
            self._say(_HELP)
        while True:
            try:
                line = input(f"{self._mode.value}> " if to_person else "").strip()
            except (EOFError, KeyboardInterrupt):
                return
            if line in (":q", ":quit", ":exit"):
                return
            if not line:
                continue
            try:
                if line.startswith(":"):
                    self._set(line)
                else:
                    hits = self._find([line], self._k, self._mode, self._condition)[0]
                    _show(line, hits, json_output=self._json)
            except ValueError as error:
                self._say(f"error: {error}")

    def _set(self, line: str) -> None:
        name, _, value = line[1:].partition(" ")
        value = value.strip()
        if name == "mode" and value in list(SearchMode):
            self._mode = SearchMode(value)
        elif name == "k" and value.isdigit() and int(value) > 0:
            self._k = int(value)
        elif name == "filter":
            self._condition = value or None
        else:
            raise InputError(f"cannot do '{line}'. {_HELP}")

    @staticmethod
    def _say(text: str) -> None:
        Console(stderr=True, highlight=False, soft_wrap=True).print(text, markup=False)
