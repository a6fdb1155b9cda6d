"""Prose out of a docstring or README: paragraphs of running text, everything else left out.

Understands reStructuredText, Google, NumPy, Sphinx field and Markdown layouts. Owns what counts as prose in
the layout; knows nothing of sentences, packages or files.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Sequence

_KEPT_SECTIONS_TEXT = "note notes warning warnings tip important hint caution description summary"
_KEPT_SECTIONS = frozenset(_KEPT_SECTIONS_TEXT.split())
_DROPPED_SECTIONS_TEXT = (
    "args arg arguments parameters parameter params kwargs keywords returns return yields yield receives "
    "raises raise exceptions except warns attributes attribute members methods method properties "
    "variables fields inputs input outputs output shape examples example usage references reference "
    "seealso todo todos authors author license copyright options signature constraints other_parameters "
    "keyword_args keyword_arguments see_also example_usage usage_example sample_usage input_shape "
    "output_shape optional_arguments call_arguments required_arguments class_attributes "
    "instance_attributes type_parameters return_value return_values"
)
_DROPPED_SECTIONS = frozenset(name.replace("_", " ") for name in _DROPPED_SECTIONS_TEXT.split())
_ADORNMENT = re.compile(r"([=\-~^\"'*+#`.:_<>])\1{2,}\s*$")
_TABLE_RULE = re.compile(r"(=|-){2,}(\s+(=|-){2,})+\s*$|\+[-=+]+\+\s*$|\|")
_SECTION = re.compile(r"(?:\*\*|#+\s*)?([A-Za-z][A-Za-z ]{2,24}?)(?:\*\*)?\s*::?(?:\*\*)?\s*$")
_FIELD = re.compile(r"[:@](?:\w+)(?:\s+[^:]*)?:(?:\s|$)|@\w+\s|:\w+:\s*$")
_DIRECTIVE = re.compile(r"\.\.(?:\s+(?P<name>[\w:-]+)::\s*(?P<rest>.*)|\s.*|$)")
_ADMONITIONS_TEXT = "note warning tip important hint caution attention danger topic admonition"
_ADMONITIONS = frozenset(_ADMONITIONS_TEXT.split())
_LIST_ITEM = re.compile(r"(?:[-*+\u2022]|\(?(?:\d{1,2}|[a-z])[.)])\s+")
_CODE_LINE = re.compile(
    r">>>|\.\.\.(?:\s|$)|In \[\d+\]|Out\[\d+\]|\$ |%\w+ |#!|import \w+$|from \w[\w.]* import "
)
_SIGNATURE = re.compile(r"[\w.]+\(.*\)?(?:\s*->.*|\s*[:=].*)?$")
_CONTINUED_FROM = 45


def prose_paragraphs(text: str) -> list[str]:
    """The paragraphs of running text of a cleaned docstring, in order, inline markup removed.

    Leaves out section headers, parameter lists, field lists, code, doctests, tables, directives, definition
    lists and leading call signatures. Text that cannot be turned into plain words (formulas, substitutions)
    keeps its special characters or gets U+FFFD, so that a later filter can see it.
    """
    lines = _without_fences(unicodedata.normalize("NFKC", text).expandtabs().splitlines())
    paragraphs = [plain for raw in _collect(lines) if (plain := plain_text(raw))]
    while paragraphs and _SIGNATURE.match(paragraphs[0]):
        paragraphs = paragraphs[1:]
    return paragraphs


def plain_text(text: str) -> str:
    """Inline reStructuredText, Markdown and HTML markup replaced by the words it shows; single spaces."""
    if _MAYBE_MARKUP.search(text):
        for pattern, replacement in _INLINE:
            text = pattern.sub(replacement, text)
    return " ".join(html.unescape(text).translate(_QUOTES).split())


_QUOTES = str.maketrans(
    {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "-"}
)
_CITATION_AS_WORD = (
    r"(?:^|(?<=\w[.,(] )|\b(?:in|see|by|of|from|and|to|also|cf\.|or|on|with|at|per|than|e\.g\.|refs?\.?)\s+)"
)
# U+FFFD marks what has no words (formulas, citations used as nouns), so that the prose filter sees it.
_MAYBE_MARKUP = re.compile(r"[`*\[\\<]|\b_|_\b|\s[.,;:!?)]")
_INLINE: Sequence[tuple[re.Pattern[str], str]] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"!\[[^\]]*\]\([^)]*\)", ""),  # Markdown image
        (r"\[`?~?!?(?:[\w.]+\.)?([\w.()]+)`\]", r"\1"),  # Hugging Face reference [`~a.B`]
        (r"\[([^\]\[]+)\]\((?:[^()\s]|\([^)]*\))*\)", r"\1"),  # Markdown link
        (r"\[([^\]\[]+)\]\[[^\]\[]*\]", r"\1"),  # Markdown reference link
        (r"(?<![\w\])])\[([A-Za-z]{3}[A-Za-z ]*)\](?![\[(\w])", r"\1"),  # Markdown short reference link
        (_CITATION_AS_WORD + r"\[[#*\w-]+\]_", "\ufffd"),  # "as shown in [1]_": no words can stand for it
        (r"\s*\[[#*\w-]+\]_", ""),  # any other citation or footnote
        (r":math:`([\w\s,.()]+)`", r"\1"),
        (r":math:`[^`]*`", "\ufffd"),  # a formula
        (r":[\w:+-]+:`~(?:[^`<]*\.)?([^`.<]+)`", r"\1"),
        (r":[\w:+-]+:`!?([^`<]+?)\s*<[^`>]*>`", r"\1"),
        (r":[\w:+-]+:`!?\.?([^`]+)`", r"\1"),
        (r"`([^`<]+?)\s*<[^`>]+>`_{0,2}", r"\1"),  # reST link with target
        (r"``\s?(.+?)\s?``", r"\1"),
        (r"`~?([^`]+)`_{0,2}", r"\1"),
        (r"</?(?:p|br|b|i|em|strong|code|tt|a|div|span|img|ul|ol|li|sub|sup|h[1-6]|pre|kbd)\b[^<>]*>", ""),
        (r"(?<![\w*])\*\*(?=\S)([^*]+?)(?<=\S)\*\*(?![\w*])", r"\1"),
        (r"(?<![\w*])\*(?=\S)([^*]+?)(?<=\S)\*(?![\w*])", r"\1"),
        (r"(?<![\w_])_(?=[A-Za-z])([A-Za-z ]+?)_(?![\w_])", r"\1"),  # Markdown emphasis
        (r"\\([\s*_`|<>.:'\"()\[\]-])", r"\1"),  # escaped character
        (r"\s+([.,;:!?)])(?=\s|$)", r"\1"),
    )
)


def _collect(lines: Sequence[str]) -> list[str]:
    """Raw paragraphs of one block; nested blocks that hold prose are collected in place."""
    lines = _dedent(lines)
    paragraphs: list[str] = []
    open_lines: list[str] = []

    def close() -> None:
        if open_lines:
            paragraphs.append(" ".join(open_lines))
            open_lines.clear()

    index = 0
    while index < len(lines):
        line = lines[index]
        if not line.strip():
            close()
            index += 1
        elif line[0] == " ":
            if open_lines and _continues(open_lines[-1]):
                open_lines.append(line.strip())
                index += 1
            else:
                open_lines.clear()  # the term of a definition list, with its body
                index = _after_body(lines, index)
        elif (end := _after_non_prose(lines, index)) is not None:
            if not _TABLE_RULE.match(line):
                close()
            open_lines.clear()
            paragraphs += _collect(_kept_body(lines, index, end))
            index = end
        else:
            open_lines.append(line.strip().removesuffix("::") + ":" if line.endswith("::") else line.strip())
            index += 1
            if line.endswith(":"):
                close()
    close()
    return paragraphs


def _after_non_prose(lines: Sequence[str], index: int) -> int | None:
    """Index after the construct that starts at `index`, or None when the line is running text."""
    line = lines[index]
    following = lines[index + 1] if index + 1 < len(lines) else ""
    if _ADORNMENT.match(line):
        return index + 1
    if _ADORNMENT.match(following) and len(following.strip()) + 2 >= len(line.strip()):
        return _after_section(lines, index) if _section_name(line) in _DROPPED_SECTIONS else index + 2
    if _SECTION.match(line) and _section_name(line) in _DROPPED_SECTIONS | _KEPT_SECTIONS:
        return _after_section_body(lines, index + 1)
    if line.startswith("#"):
        return index + 1
    if _CODE_LINE.match(line) or _TABLE_RULE.match(line):
        return _next_blank(lines, index)
    if _DIRECTIVE.match(line) or _FIELD.match(line) or _LIST_ITEM.match(line):
        return _after_body(lines, index + 1)
    return None


def _kept_body(lines: Sequence[str], index: int, end: int) -> Sequence[str]:
    """The lines of a construct that hold prose: admonitions, note sections, list items."""
    line = lines[index]
    if (directive := _DIRECTIVE.match(line)) is not None:
        if directive["name"] not in _ADMONITIONS:
            return ()
        body = _dedent(lines[index + 1 : end])
        return [directive["rest"], *(part for part in body if not part.startswith(":"))]
    if _SECTION.match(line) and _section_name(line) in _KEPT_SECTIONS:
        return lines[index + 1 : end]
    if (item := _LIST_ITEM.match(line)) is not None and not _ADORNMENT.match(line):
        return [line[item.end() :], *_dedent(lines[index + 1 : end])]
    return ()


def _section_name(line: str) -> str:
    return line.strip().strip("#*: ").lower()


def _after_section(lines: Sequence[str], index: int) -> int:
    """End of a NumPy section: the next underlined header."""
    for later in range(index + 2, len(lines) - 1):
        header, rule = lines[later], lines[later + 1]
        if header.strip() and header[0] != " " and re.match(r"[-=~]{3,}\s*$", rule):
            return later
    return len(lines)


def _after_section_body(lines: Sequence[str], index: int) -> int:
    """End of a Google section: its indented body, or its paragraph when nothing is indented."""
    if index < len(lines) and lines[index].strip() and lines[index][0] != " ":
        return _next_blank(lines, index)
    return _after_body(lines, index)


def _after_body(lines: Sequence[str], index: int) -> int:
    """Index of the first later line that is neither blank nor indented."""
    while index < len(lines) and (not lines[index].strip() or lines[index][0] == " "):
        index += 1
    return index


def _next_blank(lines: Sequence[str], index: int) -> int:
    while index < len(lines) and lines[index].strip():
        index += 1
    return index


def _continues(line: str) -> bool:
    """Whether a more indented line goes on with this one: a long line that breaks off in mid-sentence."""
    return len(line) >= _CONTINUED_FROM and line[-1] not in ".:" and " : " not in line


def _dedent(lines: Sequence[str]) -> list[str]:
    margins = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    margin = min(margins, default=0)
    return [line[margin:].rstrip() for line in lines]


def _without_fences(lines: Sequence[str]) -> list[str]:
    """Lines outside Markdown code fences; an unclosed fence swallows the rest."""
    kept: list[str] = []
    fence = ""
    for line in lines:
        marker = re.match(r"\s*(`{3,}|~{3,})", line)
        if marker and (not fence or line.strip().startswith(fence)):
            fence = "" if fence else marker[1]
            kept.append("")
        elif not fence:
            kept.append(line)
    return kept
