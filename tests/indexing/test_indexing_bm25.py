"""BM25 against its formula written plainly, and its edges."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexing.bm25 import BM25Searcher, Tokenizer, singular
from indexing.hits import NO_HIT

WORDS = st.lists(st.sampled_from(["ant", "bee", "cat", "dog"]), max_size=6).map(" ".join)


def naive_scores(query, texts, k1, b):
    documents = [text.split() for text in texts]
    mean_length = sum(map(len, documents)) / len(documents)
    scores = []
    for document in documents:
        total = 0.0
        for word in query.split():
            frequency = sum(word in other for other in documents)
            if word not in document:
                continue
            idf = math.log(1 + (len(documents) - frequency + 0.5) / (frequency + 0.5))
            tf = document.count(word)
            total += idf * tf / (tf + k1 * (1 - b + b * len(document) / mean_length))
        scores.append(total)
    return scores


@given(
    texts=st.lists(WORDS, min_size=1, max_size=8),
    query=WORDS,
    k=st.integers(1, 10),
    k1=st.sampled_from([0.9, 1.2]),
    b=st.sampled_from([0.0, 0.4, 1.0]),
)
def test_scores_follow_the_formula_and_the_tie_rule(texts, query, k, k1, b):
    ids = np.arange(len(texts), dtype=np.int64)[::-1].copy() * 2
    found = BM25Searcher.build(ids, texts, k1=k1, b=b).retrieve([query], k)
    scores = naive_scores(query, texts, k1, b)
    got = {int(i): float(s) for i, s in zip(found.ids[0], found.scores[0], strict=True) if i != NO_HIT}
    wanted = {int(ids[n]): score for n, score in enumerate(scores) if score > 0}
    assert len(got) == min(k, len(wanted))
    assert got == pytest.approx({i: wanted[i] for i in got}, rel=1e-4)
    order = [(-score, row_id) for row_id, score in got.items()]
    assert order == sorted(order)
    left_out = [score for row_id, score in wanted.items() if row_id not in got]
    assert max(left_out, default=0) <= min(got.values(), default=1) * (1 + 1e-4)


def test_equal_texts_rank_by_id_even_beyond_k():
    found = BM25Searcher.build([9, 3, 7, 5], ["same words"] * 4).retrieve(["words"], 2)
    assert found.ids.tolist() == [[3, 5]]


@pytest.mark.parametrize("query", ["", "  ", "?!", "unknown", "the"])
def test_queries_without_known_words_have_no_hits(query):
    searcher = BM25Searcher.build([1, 2], ["the quick fox", ""], stopwords="en")
    assert searcher.retrieve([query], 3).ids.tolist() == [[NO_HIT] * 3]


def test_a_corpus_without_words_is_legal():
    assert BM25Searcher.build([1, 2], ["", "..."]).retrieve(["fox"], 2).ids.tolist() == [[NO_HIT, NO_HIT]]


def test_no_queries_is_an_empty_answer():
    assert BM25Searcher.build([1], ["a"]).retrieve([], 2).ids.shape == (0, 2)


def test_words_are_lower_cased_runs_of_letters_and_digits():
    assert Tokenizer().words_of("Foo_bar, C3PO's don't ÄRGER") == [
        *["foo", "bar", "c3po", "s", "don", "t", "ärger"]
    ]


def test_scripts_without_spaces_split_into_characters():
    assert Tokenizer().words_of("東京 tower ไทย") == ["東", "京", "tower", "ไ", "ท", "ย"]
    found = BM25Searcher.build([1, 2], ["東京都", "大阪"]).retrieve(["京"], 1)
    assert found.ids.tolist() == [[1]]


def test_the_plural_stemmer_follows_harman():
    words = ["queries", "skies", "databases", "shoes", "trees", "status", "class", "cats", "is", "as"]
    wanted = ["query", "sky", "database", "shoe", "tree", "status", "class", "cat", "is", "as"]
    assert [singular(word) for word in words] == wanted
    assert BM25Searcher.build([1], ["two cats"], stemmer="en_plural").retrieve(["cat"], 1).ids[0, 0] == 1
    assert BM25Searcher.build([1], ["two cats"]).retrieve(["cat"], 1).ids[0, 0] == NO_HIT


@pytest.mark.parametrize("options", [{}, {"stopwords": "en", "stemmer": "en_plural", "k1": 1.2, "b": 0.75}])
def test_a_saved_index_answers_the_same(tmp_path, options):
    searcher = BM25Searcher.build([4, 2], ["the cats ran", "a dog"], **options)
    searcher.save(tmp_path)
    queries = ["cat", "cats and the dog", ""]
    assert BM25Searcher.load(tmp_path).retrieve(queries, 2).equals(searcher.retrieve(queries, 2))


def test_bad_input_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no texts"):
        BM25Searcher.build([], [])
    with pytest.raises(ValueError, match="more than once"):
        BM25Searcher.build([1, 1], ["a", "b"])
    with pytest.raises(ValueError, match="k1 >= 0"):
        BM25Searcher.build([1], ["a"], b=2.0)
    with pytest.raises(ValueError, match="stopwords"):
        BM25Searcher.build([1], ["a"], stopwords="xx")
    with pytest.raises(ValueError, match="stemmer"):
        BM25Searcher.build([1], ["a"], stemmer="porter")
    with pytest.raises(ValueError, match="at least 1"):
        BM25Searcher.build([1], ["a"]).retrieve(["a"], 0)
    with pytest.raises(FileNotFoundError, match="no complete BM25 index"):
        BM25Searcher.load(tmp_path)
