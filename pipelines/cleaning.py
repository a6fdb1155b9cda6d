"""What makes a text usable: mark-up, normal form, controls, white space, length; and why it is not."""

from __future__ import annotations

import html
import re
import unicodedata
from html.parser import HTMLParser

# C0 and C1 controls except white space, lone surrogates, the byte-order mark and non-characters.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")
# Elements whose content is no text, and those that stand within a line, where no space belongs.
_NO_TEXT = frozenset({"script", "style", "template"})
_INLINE = frozenset(
    [
        *(
            "a",
            "abbr",
            "acronym",
            "b",
            "bdi",
            "bdo",
            "big",
            "cite",
            "code",
            "data",
            "del",
            "dfn",
            "em",
            "font",
        ),
        *("i", "ins", "kbd", "mark", "q", "s", "samp", "small", "span", "strike", "strong", "sub", "sup"),
        *("time", "tt", "u", "var", "wbr"),
    ]
)


def clean(text: str) -> str:
    """Control characters removed, NFC, every run of white space one space, ends stripped.

    Controls go first: one between a letter and its accent would keep them apart, and a second cleaning would
    give another text.
    """
    return " ".join(normalise(text).split())


def normalise(text: str) -> str:
    """Control characters removed and NFC; white space stays, for whoever looks for paragraphs."""
    if not text.isprintable():  # what is printable holds no control, and most texts are
        text = _CONTROL.sub("", text)
    return unicodedata.normalize("NFC", text)


def unescape_entities(text: str) -> str:
    """HTML character references as the characters they stand for, once: `&amp;lt;` is `&lt;`."""
    return html.unescape(text)


def strip_html(text: str) -> str:
    """The text of HTML: no tags, comments, scripts and styles; blocks on lines of their own, no entities."""
    parser = _TextOfHtml()
    parser.feed(text)
    parser.close()
    return "".join(parser.parts)


class _TextOfHtml(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        if tag in _NO_TEXT:
            self._hidden.append(tag)
        self._break_at(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self._break_at(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._hidden:
            del self._hidden[self._hidden.index(tag) :]
        self._break_at(tag)

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data)

    def _break_at(self, tag: str) -> None:
        if tag not in _INLINE:
            self.parts.append("\n" if tag == "br" else "\n\n")


def drop_reason(cleaned: str | None, *, min_chars: int, max_chars: int) -> str | None:
    """Why a cleaned text is set aside: null, empty, too_short or too_long; None when it is kept."""
    if cleaned is None:
        return "null"
    if not cleaned:
        return "empty"
    if len(cleaned) < min_chars:
        return "too_short"
    return "too_long" if len(cleaned) > max_chars else None
