"""From a row to its texts: mark-up, cleaning, language, sentences, length; or the reason why there is none.

Knows nothing of files, shards or what other rows hold.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipelines.cleaning import clean, drop_reason, normalise, strip_html, unescape_entities
from pipelines.collection_config import CollectionConfig

HASH_BYTES = 16
# A line of white space is a blank one, and parts paragraphs.
_LINE_END = re.compile(r"[^\S\n]*\n")
_MARK_UP: dict[str, Callable[[str], str]] = {"entities": unescape_entities, "strip": strip_html}


@dataclass(frozen=True, slots=True)
class Text:
    """A text of a row and its id; `reason` says why it is set aside ("" for a good one, with its hash)."""

    text: str
    doc_id: str | None
    reason: str = ""
    hash: bytes = b""


def text_hash(text: str) -> bytes:
    """BLAKE2b of a cleaned text, 128 bits: its identity in a collection."""
    return hashlib.blake2b(text.encode(), digest_size=HASH_BYTES).digest()


def texts_of(raw: str | None, doc_id: str | None, config: CollectionConfig) -> Iterator[Text]:
    """The texts of a row, in order, at least one.

    A sentence's id is its document's with `#` and its number in it from 0; without an id column the
    document's id is its hash. So neither depends on other rows.
    """
    mark_up = _MARK_UP.get(config.html)
    source = raw if raw is None or mark_up is None else mark_up(raw)
    cleaned = None if source is None else clean(source)
    reason = _reason(cleaned, doc_id, config)
    if reason or cleaned is None or source is None:
        yield Text(raw or "", doc_id, reason)
        return
    if config.sentences is None:
        key = text_hash(cleaned)
        yield Text(cleaned, doc_id or key.hex(), "", key)
        return
    document = doc_id or text_hash(cleaned).hex()
    for number, sentence in enumerate(_sentences(source, config.sentences.language)):
        text = clean(sentence)
        short = drop_reason(text, min_chars=config.min_chars, max_chars=config.max_chars) or ""
        yield Text(text, f"{document}#{number}", short, b"" if short else text_hash(text))


def _reason(cleaned: str | None, doc_id: str | None, config: CollectionConfig) -> str:
    """Why a row is set aside as a whole, or ""."""
    if config.sentences is None:
        reason = drop_reason(cleaned, min_chars=config.min_chars, max_chars=config.max_chars)
    else:
        reason = drop_reason(cleaned, min_chars=1, max_chars=config.sentences.max_document_chars)
    if reason is not None:
        return reason
    assert cleaned is not None
    if config.id_column and not doc_id:
        return "null_id"
    if config.languages is not None:
        from pipelines.languages import probability_of

        if probability_of(cleaned, config.languages.allowed) < config.languages.min_probability:
            return "language"
    return ""


def _sentences(source: str, language: str) -> list[str]:
    """Sentences by the rules of a language, paragraphs kept apart; white space alone is none."""
    from sentencex import segment

    text = _LINE_END.sub("\n", normalise(source))
    return [sentence for sentence in segment(language, text) if sentence.strip()]
