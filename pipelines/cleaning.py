"""What makes a text usable: normal form, control characters, white space, length; and why it is not."""

from __future__ import annotations

import re
import unicodedata

# C0 and C1 controls except white space, lone surrogates, the byte-order mark and non-characters.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")
_SPACE = re.compile(r"\s+")


def clean(text: str) -> str:
    """Control characters removed, NFC, every run of white space one space, ends stripped.

    Controls go first: one between a letter and its accent would keep them apart, and a second cleaning would
    give another text.
    """
    return _SPACE.sub(" ", unicodedata.normalize("NFC", _CONTROL.sub("", text))).strip()


def drop_reason(cleaned: str | None, *, min_chars: int, max_chars: int) -> str | None:
    """Why a cleaned text is set aside: null, empty, too_short or too_long; None when it is kept."""
    if cleaned is None:
        return "null"
    if not cleaned:
        return "empty"
    if len(cleaned) < min_chars:
        return "too_short"
    return "too_long" if len(cleaned) > max_chars else None
