r"""Strings that no encoder, file or answer can hold: those with half of a surrogate pair.

JSON can write them (`"\ud800"`), and a command line with bytes that are not UTF-8 becomes such a string.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


def lone_surrogate_in(value: Any) -> str | None:
    """Where JSON-like content of any depth holds a string that cannot be written as UTF-8, and why not."""
    todo: list[Iterator[tuple[str, Any]]] = [iter([("", value)])]
    while todo:
        place, part = next(todo[-1], (None, None))
        if place is None:
            todo.pop()
        elif isinstance(part, str) and has_lone_surrogate(part):
            return f"{place or 'the body'} holds {_REASON}"
        elif isinstance(part, dict):
            if any(has_lone_surrogate(str(name)) for name in part):
                return f"a name in {place or 'the body'} holds {_REASON}"
            todo.append(_fields(place, part))
        elif isinstance(part, list):
            todo.append(_items(place, part))
    return None


def _fields(place: str, parts: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    for name, part in parts.items():
        yield f"{place}.{name}".lstrip("."), part


def _items(place: str, parts: list[Any]) -> Iterator[tuple[str, Any]]:
    for number, part in enumerate(parts):
        yield f"{place}[{number}]", part
