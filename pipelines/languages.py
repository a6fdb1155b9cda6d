"""Which language a text is in: py3langid, a naive Bayes classifier over byte n-grams for 97 languages.

Its answer on a handful of words is a guess; on a paragraph it is good.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from pipelines.errors import InputError, nearest

# Enough to know a language by; what a text costs is then bounded.
_MAX_CHARS = 2_000


def probability_of(text: str, languages: Sequence[str]) -> float:
    """The probability that the text is in one of the languages (ISO 639-1 codes), by its beginning."""
    ranks = _identifier().rank(text[:_MAX_CHARS])
    return float(sum(probability for code, probability in ranks if code in languages))


def check_languages(languages: Sequence[str]) -> None:
    """Refuses a code that the classifier does not know.

    Raises:
        InputError: names the code and the nearest known one.
    """
    known = sorted(_identifier().labels)
    for code in languages:
        if code not in known:
            raise InputError(
                f"language '{code}' is not known; choose from {', '.join(known)}.{nearest(code, known)}"
            )


@cache
def _identifier() -> Any:
    """The classifier, loaded once per process (a second or two)."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
