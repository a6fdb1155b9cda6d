"""Halves of texts, and how well they find each other."""

import core_builders
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsdae_core.half_retrieval import mean_reciprocal_rank, split_halves
from tsdae_core.ragged import Ragged
from tsdae_core.tokens import TokenizedTexts, tokenize_texts

WORDS = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=3), max_size=9)


@settings(deadline=None, max_examples=100)
@given(texts=st.lists(WORDS, max_size=6))
def test_halves_are_the_text_cut_between_two_words_and_short_texts_are_left_out(texts):
    ids = Ragged.from_rows([[piece for word in words for piece in word] for words in texts])
    starts = [i == 0 for words in texts for word in words for i in range(len(word))]
    halves = split_halves(TokenizedTexts(ids, np.array(starts, dtype=np.bool_)))
    assert halves.rows.tolist() == [i for i, words in enumerate(texts) if len(words) >= 4]
    for place, row in enumerate(halves.rows):
        words = texts[row]
        middle = (len(words) + 1) // 2
        first, second = halves.first.row(place).tolist(), halves.second.row(place).tolist()
        assert first == [piece for word in words[:middle] for piece in word]
        assert second == [piece for word in words[middle:] for piece in word]


def by_hand(first, second):
    total = 0.0
    for queries, keys in ((first, second), (second, first)):
        for i, query in enumerate(queries):
            scores = [query @ key / np.linalg.norm(query) / np.linalg.norm(key) for key in keys]
            total += 1 / (1 + sum(score > scores[i] for score in scores))
    return total / (2 * len(first))


@pytest.mark.parametrize("noise", [0.1, 1.0, 10.0])
def test_the_measure_is_the_mean_reciprocal_rank_of_both_directions(noise):
    rng = np.random.default_rng(0)
    first = rng.normal(size=(40, 8)).astype(np.float32)
    second = first + noise * rng.normal(size=(40, 8)).astype(np.float32)
    assert mean_reciprocal_rank(first, second) == pytest.approx(by_hand(first, second), abs=1e-9)
    assert mean_reciprocal_rank(first, first) == 1.0


def test_one_vector_for_everything_scores_like_chance_and_blocks_change_nothing(monkeypatch):
    same = np.ones((9, 4), dtype=np.float32)
    assert mean_reciprocal_rank(same, same) == pytest.approx(1 / 5)  # the middle of nine ranks
    rng = np.random.default_rng(1)
    first, second = rng.normal(size=(2, 30, 4)).astype(np.float32)
    whole = mean_reciprocal_rank(first, second)
    monkeypatch.setattr("tsdae_core.half_retrieval._QUERIES_PER_BLOCK", 7)
    assert mean_reciprocal_rank(first, second) == pytest.approx(whole, abs=1e-12)


def test_arrays_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match="of one shape"):
        mean_reciprocal_rank(np.ones((2, 3), np.float32), np.ones((3, 3), np.float32))
    with pytest.raises(ValueError, match="with rows"):
        mean_reciprocal_rank(np.ones((0, 3), np.float32), np.ones((0, 3), np.float32))


def test_ids_are_encoded_as_the_text_they_are_made_of():
    texts = core_builders.make_texts(20)
    tokenizer = core_builders.wordpiece_tokenizer(texts)
    encoder = core_builders.bert_encoder(tokenizer).eval()
    tokens = tokenize_texts(texts, tokenizer, max_tokens=encoder.max_tokens)
    vectors = encoder.encode_ids(tokens.ids, batch_tokens=64)
    np.testing.assert_allclose(vectors, encoder.encode(texts), atol=1e-5)
