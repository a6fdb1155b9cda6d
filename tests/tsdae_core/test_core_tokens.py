import copy

import core_builders
import numpy as np
import pytest
from transformers import BertTokenizerLegacy

from tsdae_core.ragged import Ragged
from tsdae_core.scratch import train_tokenizer
from tsdae_core.tokens import SpecialFrame, TokenizedTexts, special_frame, tokenize_texts


def words_of(tokens, row, tokenizer):
    begin, end = tokens.ids.offsets[row], tokens.ids.offsets[row + 1]
    groups = np.split(tokens.ids.values[begin:end], np.flatnonzero(tokens.word_starts[begin:end])[1:])
    return [tokenizer.decode(group).strip() for group in groups]


def test_ids_equal_the_tokenizers_own_without_and_with_special_tokens(texts, tokenizer):
    tokens = tokenize_texts(texts, tokenizer, max_tokens=1000)
    framed = special_frame(tokenizer).wrap(tokens.ids)
    for index, text in enumerate(texts):
        assert tokens.ids.row(index).tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]
        assert framed.row(index).tolist() == tokenizer(text)["input_ids"]


def test_max_tokens_counts_the_special_tokens(texts, tokenizer):
    tokens = tokenize_texts(texts, tokenizer, max_tokens=9)
    assert tokens.ids.lengths.max() == 7
    with pytest.raises(ValueError, match="no room"):
        tokenize_texts(texts, tokenizer, max_tokens=2)


def test_padding_and_truncation_of_the_tokenizer_file_are_ignored_and_left_alone(texts, tokenizer):
    changed = copy.deepcopy(tokenizer)
    changed.backend_tokenizer.enable_padding(length=50)
    changed.backend_tokenizer.enable_truncation(4)
    before = (changed.backend_tokenizer.padding, changed.backend_tokenizer.truncation)
    got, want = (tokenize_texts(texts, each, max_tokens=64) for each in (changed, tokenizer))
    assert np.array_equal(got.ids.values, want.ids.values)
    assert special_frame(changed) == special_frame(tokenizer)
    assert (changed.backend_tokenizer.padding, changed.backend_tokenizer.truncation) == before


@pytest.mark.parametrize("kind", ["wordpiece", "byte_level", "unigram"])
def test_special_tokens_in_a_text_are_its_characters_and_added_words_stay_words(texts, kind):
    make = {
        "wordpiece": lambda t: train_tokenizer(t, vocab_size=300),
        "byte_level": core_builders.byte_level_tokenizer,
        "unigram": core_builders.unigram_tokenizer,
    }
    tokenizer = make[kind]([*texts, " ".join("<>[]/"), "mask cls sep unk pad"])
    tokenizer.add_tokens(["pneumothorax"])
    names = [name for name in tokenizer.all_special_tokens if name != tokenizer.unk_token]
    given = [f"a {name} b{name}c pneumothorax" for name in names]
    tokens = tokenize_texts(given, tokenizer, max_tokens=100)
    specials = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    assert not specials & set(tokens.ids.values.tolist())
    (added,) = tokenizer("pneumothorax", add_special_tokens=False)["input_ids"]
    for row, text in enumerate(given):
        ids = tokens.ids.row(row)
        assert ids[-1] == added
        decoded = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        if kind == "byte_level":
            assert decoded == text
        assert names[row].strip("<>[]").lower() in decoded.replace(" ", "")
    # The user's own tokenizer is as it was.
    assert tokenizer.mask_token_id in tokenizer(f"a {tokenizer.mask_token}")["input_ids"]


def test_frames_of_both_tokenizer_kinds_are_found(texts, tokenizer):
    assert special_frame(tokenizer) == SpecialFrame((tokenizer.cls_token_id,), (tokenizer.sep_token_id,))
    assert special_frame(core_builders.byte_level_tokenizer(texts)) == SpecialFrame((0,), (2,))


def test_words_are_the_tokenizers_words():
    tokenizer = train_tokenizer(
        ["the unbelievable cat"] * 5 + ["abcdefghijklmnopqrstuvwxyz !?"], vocab_size=60
    )
    tokens = tokenize_texts(["The unbelievable cat!", "", "cat"], tokenizer, max_tokens=64)
    assert words_of(tokens, 0, tokenizer) == ["the", "unbelievable", "cat", "!"]
    assert tokens.ids.lengths[1] == 0
    assert words_of(tokens, 2, tokenizer) == ["cat"]


@pytest.mark.parametrize("text", ["สวัสดีชาวโลก", "こんにちは", "ສະບາຍດີ", "សួស្តី", "你好世界"])
@pytest.mark.parametrize("kind", ["wordpiece", "byte_level", "unigram"])
@pytest.mark.parametrize("unit", ["word", "whitespace"])
def test_scripts_without_spaces_fall_back_to_pieces(text, kind, unit):
    make = {
        "wordpiece": lambda t: train_tokenizer(t, vocab_size=300),
        "byte_level": core_builders.byte_level_tokenizer,
        "unigram": core_builders.unigram_tokenizer,
    }
    pairs = [first + second for first in text for second in text]
    tokenizer = make[kind]([*pairs, "helloworld"])
    mixed_text = f"helloworld {text} helloworld"
    tokens = tokenize_texts([text, mixed_text], tokenizer, max_tokens=200, word_unit=unit)
    assert tokens.word_starts[: tokens.ids.lengths[0]].sum() >= 2
    if kind == "byte_level":
        for word in words_of(tokens, 0, tokenizer):
            assert "\ufffd" not in word  # a character is never cut in two
    mixed = words_of(tokens, 1, tokenizer)
    assert mixed[0] == "helloworld"
    assert mixed[-1] == "helloworld"
    assert all(mixed)  # a bare space belongs to the word after it


@pytest.mark.parametrize("kind", ["wordpiece", "byte_level", "unigram"])
def test_word_units_are_words_of_the_tokenizer_spaces_or_pieces(kind):
    text = "don't mail a.b@cd.ef  now!"
    make = {
        "wordpiece": lambda t: train_tokenizer(t, vocab_size=60),
        "byte_level": core_builders.byte_level_tokenizer,
        "unigram": lambda t: core_builders.unigram_tokenizer(t, vocab_size=30),
    }
    tokenizer = make[kind]([text, "aa bb", " ".join("abcdefilmnotw@.!'")])

    def words(unit, given=text):
        tokens = tokenize_texts([given], tokenizer, max_tokens=100, word_unit=unit)
        return [word.replace(" ", "") for word in words_of(tokens, 0, tokenizer)]

    for given in (text, f" {text}  "):
        assert words("whitespace", given) == text.split()
    assert len(words("piece")) == tokenize_texts([text], tokenizer, max_tokens=100).ids.lengths[0]
    if kind == "wordpiece":
        assert words("word") == ["don", "'", "t", "mail", "a", ".", "b", "@", "cd", ".", "ef", "now", "!"]
    for unit in ("word", "whitespace", "piece"):
        assert tokenize_texts(["", " "], tokenizer, max_tokens=9, word_unit=unit).ids.lengths[0] == 0
    with pytest.raises(ValueError, match="choose one of word, whitespace, piece"):
        words("words")


def test_every_row_starts_a_word_and_take_keeps_words(texts, tokenizer):
    tokens = tokenize_texts([*texts, "", "😀😀 a"], tokenizer, max_tokens=30)
    picked = tokens.take(np.array([5, 201, 0, 200]))
    assert words_of(picked, 0, tokenizer) == words_of(tokens, 5, tokenizer)
    assert picked.word_starts[picked.ids.offsets[:-1][picked.ids.lengths > 0]].all()
    fixed = TokenizedTexts(Ragged.from_rows([[1, 2], [3]]), np.zeros(3, dtype=bool))
    assert fixed.word_starts.tolist() == [True, False, True]


def test_a_slow_tokenizer_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    with pytest.raises(ValueError, match="not a fast tokenizer"):
        tokenize_texts(["a"], BertTokenizerLegacy(str(tmp_path / "vocab.txt")), max_tokens=8)
