"""From docstrings to training sentences, documents to search and queries to ask.

Owns de-duplication, the hold-out of queries and the sampling. Works on values; knows no files or packages.
Nothing depends on the order in which processes finish: order is the entries', samples go by a keyed hash.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from pipelines.docs_sentences import num_words, sentence_key, template_key
from pipelines.docs_sources import DocEntry

MAX_DOCUMENT_CHARS = 400
MIN_DOCUMENT_WORDS = 8
MIN_QUERY_WORDS = 5
MIN_ANSWER_WORDS = 16
MAX_TEMPLATE_COPIES = 2

_PRIVATE = re.compile(r"_(?!_\w+__$)")


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """A training sentence and where it was first seen."""

    id: str
    text: str
    source: str
    package: str


@dataclass(frozen=True, kw_only=True)
class Document:
    """The rest of a docstring; `first` is the sentence it followed, empty when it cannot be a query."""

    id: str
    title: str
    text: str
    first: str
    package: str


@dataclass(frozen=True, kw_only=True)
class Query:
    """A first sentence and the id of the one document that followed it."""

    id: str
    text: str
    document_id: str


def choose_documents(entries: Iterable[DocEntry]) -> list[Document]:
    """The rest of each public docstring, at most 400 characters, at least 8 words, each text once.

    Public: no name inside the module begins with an underscore (`__init__` and its like do not count), and no
    folder below the package's own does, bar `_core`; that is what a reader of documentation would search.
    A text that follows different first sentences belongs to none of them, so its `first` is empty.
    """
    kept: dict[str, Document] = {}
    firsts: defaultdict[str, set[str]] = defaultdict(set)
    for entry in entries:
        text = _cut(entry.rest)
        if num_words(text) < MIN_DOCUMENT_WORDS or not _is_public(entry.source):
            continue
        key = sentence_key(text)
        firsts[key].add(sentence_key(entry.first))
        if key not in kept:
            kept[key] = Document(
                id="d" + _digest(text), title=entry.title, text=text, first=entry.first, package=entry.package
            )
    return [document if len(firsts[key]) == 1 else _without_first(document) for key, document in kept.items()]


def choose_queries(
    documents: Sequence[Document], entries: Iterable[DocEntry], *, num_queries: int, seed: int
) -> list[Query]:
    """Up to `num_queries` first sentences that point at one document only, sampled by a hash of (seed, text).

    A query has at least 5 words and its document at least 16. No other docstring begins with its words, or
    with the same words around other names and numbers; no other document has its document's words in that
    sense; and no docstring, this one included, repeats it later on.
    """
    entries = [entry for entry in entries if entry.first or entry.rest]
    pairs = {(sentence_key(entry.first), sentence_key(_cut(entry.rest))): entry.first for entry in entries}
    beginnings = Counter(template_key(first) for first in pairs.values())
    repeated = {sentence_key(sentence) for entry in entries for sentence in entry.rest}
    bodies = Counter(template_key(document.text) for document in documents)
    candidates = [
        document
        for document in documents
        if num_words(document.first) >= MIN_QUERY_WORDS
        and num_words(document.text) >= MIN_ANSWER_WORDS
        and beginnings[template_key(document.first)] == 1
        and bodies[template_key(document.text)] == 1
        and sentence_key(document.first) not in repeated
    ]
    candidates.sort(key=lambda document: _digest(sentence_key(document.first), seed=seed))
    return [
        Query(id="q" + _digest(document.first), text=document.first, document_id=document.id)
        for document in candidates[:num_queries]
    ]


def keep_some_documents(
    documents: Sequence[Document], queries: Sequence[Query], *, max_documents: int, seed: int
) -> list[Document]:
    """Every query's document and others by a hash of (seed, text), `max_documents` in all, in their order."""
    answers = {query.document_id for query in queries}
    ranked = sorted(
        documents, key=lambda document: (document.id not in answers, _digest(document.text, seed=seed))
    )
    kept = {document.id for document in ranked[:max_documents]}
    return [document for document in documents if document.id in kept]


def choose_sentences(entries: Iterable[DocEntry], *, held_out: Collection[str]) -> list[Sentence]:
    """Every clean sentence once, without those whose `sentence_key` is in `held_out`.

    Of sentences that differ in names and numbers only, the first two stay.
    """
    seen = set(held_out)
    copies: Counter[str] = Counter()
    sentences = []
    for entry in entries:
        for text in (entry.first, *entry.rest):
            key = sentence_key(text)
            if not key or key in seen:
                continue
            seen.add(key)
            copies[template := template_key(text)] += 1
            if copies[template] <= MAX_TEMPLATE_COPIES:
                sentences.append(
                    Sentence(id="s" + _digest(key), text=text, source=entry.source, package=entry.package)
                )
    return sentences


def _cut(sentences: Sequence[str]) -> str:
    """Whole sentences up to the document limit, at least one."""
    text = ""
    for sentence in sentences:
        if text and len(text) + 1 + len(sentence) > MAX_DOCUMENT_CHARS:
            break
        text = f"{text} {sentence}".strip()
    return text


def _is_public(source: str) -> bool:
    module, _, qualname = source.partition(":")
    folders = [folder for folder in module.split(".")[1:-1] if folder != "_core"]
    return not any(_PRIVATE.match(name) for name in (*folders, *qualname.split(".")))


def _without_first(document: Document) -> Document:
    return Document(
        id=document.id, title=document.title, text=document.text, first="", package=document.package
    )


def _digest(text: str, *, seed: int | None = None) -> str:
    key = b"" if seed is None else str(seed).encode()
    return hashlib.blake2b(text.encode(), digest_size=8, key=key).hexdigest()
