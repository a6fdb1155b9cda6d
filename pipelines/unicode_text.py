r"""Strings that no encoder, file or answer can hold: those with half of a surrogate pair.

JSON can write them (`"\ud800"`), and a command line with bytes that are not UTF-8 becomes such a string.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pipelines.errors import InputError

_REASON = "half of a surrogate pair, which is no character"


def has_lone_surrogate(text: str) -> bool:
    """Whether the text cannot be written as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def refuse_lone_surrogates(texts: Iterable[str], *, what: str) -> None:
    """Refuses texts that cannot be written as UTF-8.

    Raises:
        InputError: names `what` and the text, escaped.
    """
    for text in texts:
        if has_lone_surrogate(text):
            raise InputError(f"{what} holds {_REASON}: {text[:80]!a}")


def lone_surrogate_in(value: Any, place: str = "") -> str | None:
    """Where JSON-like content holds a string that cannot be written as UTF-8, and why that is refused."""
    if isinstance(value, str):
        return f"{place or 'the body'} holds {_REASON}" if has_lone_surrogate(value) else None
    if isinstance(value, dict):
        names = (lone_surrogate_in(str(name), f"a name in {place or 'the body'}") for name in value)
        parts = (lone_surrogate_in(part, f"{place}.{name}".lstrip(".")) for name, part in value.items())
        return next(filter(None, names), None) or next(filter(None, parts), None)
    if isinstance(value, list):
        parts = (lone_surrogate_in(part, f"{place}[{number}]") for number, part in enumerate(value))
        return next(filter(None, parts), None)
    return None
