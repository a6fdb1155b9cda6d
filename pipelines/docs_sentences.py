"""English sentences in technical prose: where one ends, whether it reads as prose, when two are the same.

Works on one paragraph of plain text at a time, without files, packages or models.

The splitter is our own because no packaged one fits both the text and the install. Tried on eleven hard
docstring lines: sentencex cuts `torch.nn.Linear` at the dot and "Eq. 3" after "Eq.", syntok misses the
boundary in "is 0.5. Values" and cuts "Eq. 3", blingfire splits nearly all of them well but is 99 MB installed
and long without a release; pysbd is unmaintained, and wtpsplit needs a model.
"""

from __future__ import annotations

import re

MIN_WORDS = 4
MAX_WORDS = 64

_BOUNDARY = re.compile(r"""(?P<stop>[.!?]+)(?P<close>["')\]]*)\s+(?=(?P<next>["'(\[]*\S+))""")
_NEVER_LAST_TEXT = (
    "e.g i.e eg ie cf vs eq eqs eqn fig figs sec sect ref refs vol pp ch approx resp al dr mr mrs ms prof "
    "st viz ca incl esp dept eds assoc univ proc conf trans intl jan feb mar apr jun jul aug sep sept oct "
    "nov dec"
)
_NEVER_LAST = frozenset(_NEVER_LAST_TEXT.split())
_BEFORE_NUMBER_TEXT = "no nos p art chap ed fig number v ver rev ex"
_BEFORE_NUMBER = frozenset(_BEFORE_NUMBER_TEXT.split())
_STARTERS_TEXT = (
    "the this that these those if it its in a an for when while we you they there use used note see by to "
    "with and but or so however otherwise also as at on each any all both only instead must should can "
    "may returns return defaults default raises setting given"
)
_STARTERS = frozenset(_STARTERS_TEXT.split())
_INITIALS = re.compile(r"(?:[A-Za-z]\.)*[A-Z]|(?:[a-z]\.)+[a-z]")
_IDENTIFIER = re.compile(r"[a-z][\w.]*(?:_\w|\(\)|\.\w)[\w.()]*")

_WORD = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*[.,;:!?)\]\"']*")
_MARKUP = re.compile(
    r"[`\\{}|$^<>~@#\ufffd]|\*\*|\w\*\*?\w|__\w+__\s*$|::|->|:\w+:|https?:|www\.|%[(sdrf]|[=\-_.+*]{3,}|"
    r">>>|\]\(|\[\s*\]|\(\s*[,.)]|\w/\w+/\w|\bTODO\b|\bFIXME\b|\bXXX\b|"
    r"^(?:Args|Returns?|Raises|Examples?|Parameters|Usage|Inputs?|Outputs?|Default|Type)\s*:|"
    r"^\S+ --? |^\w[\w.]*_\w*: "
)
_NAME = re.compile(r"\d|_|[a-z][A-Z]|\w\.\w")
_ENGLISH_TEXT = (
    "the a an of to is in for and this that with be by on or not if as it from are will can which when "
    "has have was were than then used use should may only all any at into its their your you we do does "
    "but no each same other such these those between after before over under there more one two out up so "
    "must also"
)
_ENGLISH = frozenset(_ENGLISH_TEXT.split())
_FUNCTION_WORDS_NEEDED_FROM = 7


def split_sentences(paragraph: str) -> list[str]:
    """Splits one paragraph (whitespace already single) into stripped sentences; concatenation loses nothing.

    Abbreviations, initials, decimals, file names and dotted names stay whole. "etc." ends a sentence when a
    capital follows.
    """
    sentences = []
    start = 0
    for match in _BOUNDARY.finditer(paragraph):
        if _is_boundary(paragraph[start : match.start("stop")], match):
            sentences.append(paragraph[start : match.end("close")].strip())
            start = match.end()
    if tail := paragraph[start:].strip():
        sentences.append(tail)
    return sentences


def is_prose(sentence: str) -> bool:
    """Whether a sentence is natural English: 4 to 64 words, mostly lower-case words, no markup left over."""
    tokens = sentence.split()
    if not MIN_WORDS <= len(tokens) <= MAX_WORDS or _MARKUP.search(sentence) or not _balanced(sentence):
        return False
    if not (sentence[0].isalnum() or sentence[0] in "\"'("):
        return False
    if not sentence.isascii() and sum(char > "\x7f" for char in sentence) > len(sentence) // 20:
        return False
    words = [word for token in tokens if _WORD.fullmatch(word := token.lstrip("(['\""))]
    num_lower = sum(word[0].islower() for word in words)
    if len(words) < 0.65 * len(tokens) or num_lower < max(2, 0.4 * len(tokens)):
        return False
    if sum(map(str.isalpha, sentence)) < 0.72 * len(sentence.replace(" ", "")):
        return False
    return len(tokens) < _FUNCTION_WORDS_NEEDED_FROM or _has_english(tokens)


def is_complete(sentence: str) -> bool:
    """Whether a sentence begins as one (not with a plain lower-case word) and ends with its own stop."""
    word = sentence.split(maxsplit=1)[0].rstrip(",;:")
    if word.islower() and word.isalpha() and len(word) > 1:
        return False
    return sentence.rstrip("\"')]").endswith((".", "!", "?")) and not sentence.endswith(
        ("e.g.", "i.e.", "..")
    )


def num_words(text: str) -> int:
    """Number of whitespace-separated tokens."""
    return len(text.split())


def sentence_key(text: str) -> str:
    """Equal for sentences that differ only in case, spacing, quotes or end punctuation."""
    return " ".join(text.casefold().replace('"', "").replace("'", "").split()).rstrip(" .!?:;")


def template_key(text: str) -> str:
    """Equal for sentences that differ only in numbers and identifiers (`fooBar`, `foo_bar`, `foo.bar`)."""
    if not _NAME.search(text):
        return sentence_key(text)
    return sentence_key(" ".join("0" if _NAME.search(token) else token for token in text.split()))


def _is_boundary(before: str, match: re.Match[str]) -> bool:
    following = match["next"].lstrip("\"'([")
    if match["stop"] != ".":
        return match["stop"] != ".." and (following[:1].isupper() or match["stop"][0] in "!?")
    last = re.split(r"[\s(\[\"'/]", before)[-1]
    word = last.lower()
    starts_upper = following[:1].isupper()
    starts_sentence = following.rstrip(",:").lower() in _STARTERS and starts_upper
    if word in _NEVER_LAST:
        return False
    if word in _BEFORE_NUMBER and following[:1].isdigit():
        return False
    if _INITIALS.fullmatch(last) and not match["close"]:
        return starts_sentence
    if word == "etc":
        return starts_upper
    if re.fullmatch(r"\(?\d{1,2}", before.strip()):
        return False
    return starts_upper or following[:1].isdigit() or _IDENTIFIER.match(following) is not None


def _balanced(sentence: str) -> bool:
    pairs_match = sentence.count("(") == sentence.count(")") and sentence.count("[") == sentence.count("]")
    return pairs_match and sentence.count('"') % 2 == 0


def _has_english(tokens: list[str]) -> bool:
    return any(token.strip("(),.;:\"'").lower() in _ENGLISH for token in tokens)
