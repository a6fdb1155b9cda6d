"""Cleaning: one spelling per text, nothing invisible left, a reason for every text set aside."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.cleaning import clean, drop_reason

# Any code points, lone surrogates too, with a weight on those that cleaning is about.
CODE_POINTS = st.integers(0, 0x10FFFF).map(chr)
CONTROLS = "\x00\x07\x1c\x7f\x9f\ud83d\udc4d\ufeff\ufffe"
SPACES = " \t\n\x85\u00a0\u2000\u2028"
TRICKY = st.sampled_from(CONTROLS + SPACES + "e\u0301A\u030aé가")
TEXTS = st.text(CODE_POINTS | TRICKY, max_size=30)


@given(TEXTS)
def test_cleaning_twice_changes_nothing(text):
    assert clean(clean(text)) == clean(text)


@given(TEXTS)
def test_a_clean_text_is_in_normal_form_encodable_and_free_of_controls_and_white_space(text):
    cleaned = clean(text)
    assert unicodedata.is_normalized("NFC", cleaned)
    assert not [sign for sign in cleaned if unicodedata.category(sign) in ("Cc", "Cs")]
    assert " ".join(cleaned.split()) == cleaned
    assert cleaned.encode("utf-8").decode("utf-8") == cleaned


@given(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z", "M"]), min_size=1))
def test_what_is_visible_stays(text):
    assert clean(text) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize(
    ("spelt", "cleaned"),
    [
        ("e\u0301cole", "école"),
        ("e\x00\u0301cole", "école"),
        ("\u212bngstro\u0308m", "Ångström"),
        ("\u1112\u1161\u11ab", "한"),
        ("a\x00b\x1fc\x7fd\x9fe", "abcde"),
        ("\ufeffmark", "mark"),
        ("lone \ud83d surrogate \udc4d", "lone surrogate"),
        ("  many \t\n\r\u00a0\u2003\u2028 spaces \x85", "many spaces"),
        ("\x00\x01\u0000", ""),
        ("👍🏽 ok", "👍🏽 ok"),
        ("ﬁne", "ﬁne"),
    ],
)
def test_spellings_of_one_text_become_one(spelt, cleaned):
    assert clean(spelt) == cleaned


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "null"),
        ("", "empty"),
        ("a", "too_short"),
        ("ab", None),
        ("abcd", None),
        ("abcde", "too_long"),
        ("👍👍👍👍", None),
    ],
)
def test_the_reason_tells_the_first_rule_that_a_text_breaks(text, reason):
    assert drop_reason(text, min_chars=2, max_chars=4) == reason
