"""Word vector files of each format, and their average."""

import gzip
import struct

import numpy as np
import pytest

from indexing.word_vectors import WordVectors, read_word_vectors

WORDS = {"disk": (1.0, 0.0, 2.0), "boot": (0.0, 4.0, -2.0), "the": (0.5, 0.5, 0.5)}
TEXT = "".join(f"{word} {' '.join(map(str, numbers))}\n" for word, numbers in WORDS.items())
BINARY = b"3 3\n" + b"".join(w.encode() + b" " + struct.pack("<3f", *v) + b"\n" for w, v in WORDS.items())


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("glove.txt", TEXT.encode()),
        ("glove.txt.gz", gzip.compress(TEXT.encode(), mtime=0)),
        ("windows.txt", TEXT.replace("\n", "\r\n").encode()),
        ("fasttext.vec", b"3 3\n" + TEXT.replace("\n", " \n").encode()),
        ("word2vec.bin", BINARY),
        ("word2vec.bin.gz", gzip.compress(BINARY, mtime=0)),
    ],
)
def test_every_format_gives_the_same_vectors(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    vectors = read_word_vectors(tmp_path / name)
    assert {w: tuple(vectors.vectors[i].tolist()) for w, i in vectors.words.items()} == WORDS
    assert (vectors.dim, vectors.vectors.dtype) == (3, np.float32)
    assert list(read_word_vectors(tmp_path / name, only={"boot"}).words) == ["boot"]


def test_a_text_is_the_mean_of_its_known_words_and_zero_without_any():
    vectors = WordVectors({w: i for i, w in enumerate(WORDS)}, np.array(list(WORDS.values()), np.float32))
    out = vectors.encode(["Disk, BOOT unknown", "", "nothing here", "disk disk boot"])
    np.testing.assert_allclose(out[0], [0.5, 2.0, 0.0])
    np.testing.assert_allclose(out[3], [2 / 3, 4 / 3, 2 / 3], rtol=1e-6)
    assert not out[1:3].any()


def test_frequent_words_weigh_less_and_words_of_every_text_nothing():
    vectors = WordVectors({w: i for i, w in enumerate(WORDS)}, np.array(list(WORDS.values()), np.float32))
    weighted = vectors.weighted_by_idf(["the disk", "the boot", "the boot", "the"])
    out = weighted.encode(["the disk boot", "the"])
    idf = np.log([4, 2])
    wanted = (idf[0] * np.array(WORDS["disk"]) + idf[1] * np.array(WORDS["boot"])) / idf.sum()
    np.testing.assert_allclose(out[0], wanted, rtol=1e-5)
    assert not out[1].any()


def random_vectors(path):
    """A file of 40 words, and texts of these and of unknown words."""
    rng = np.random.default_rng(0)
    words = [f"w{number}" for number in range(40)]
    lines = [f"{word} {' '.join(map(str, rng.standard_normal(8).round(4)))}" for word in words]
    path.write_text("\n".join(lines) + "\n")
    return [" ".join(rng.choice([*words[:30], "unknown"], size=1 + i % 9)) for i in range(50)], words


def test_plain_and_idf_weighted_averages_equal_sentence_transformers(tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, WordEmbeddings, WordWeights
    from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer

    texts, words = random_vectors(tmp_path / "v.txt")
    texts += ["", "w35 w36 w1", "W3, w4!"]
    vectors = read_word_vectors(tmp_path / "v.txt")
    tokenizer = WhitespaceTokenizer(stop_words=[], do_lower_case=True)
    looked_up = WordEmbeddings.from_text_file(str(tmp_path / "v.txt"), tokenizer=tokenizer)
    plain = SentenceTransformer(modules=[looked_up, Pooling(8, "mean")], device="cpu")
    np.testing.assert_allclose(vectors.encode(texts), plain.encode(texts), atol=1e-6)
    seen = texts[:50]
    idf = {
        word: np.log(len(seen) / sum(word in text.split() for text in seen))
        for word in words
        if any(word in text.split() for text in seen)
    }
    assert len(idf) == 30
    unseen = np.log(len(seen))  # as a word that one text has
    weights = WordWeights(list(tokenizer.get_vocab()), idf, unknown_word_weight=unseen)
    weighted = SentenceTransformer(modules=[looked_up, weights, Pooling(8, "mean")], device="cpu")
    np.testing.assert_allclose(
        vectors.weighted_by_idf(seen).encode(texts), weighted.encode(texts), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("header", ["3 2\n", ""])
def test_words_with_spaces_and_repeated_words(tmp_path, header):
    (tmp_path / "v.vec").write_text(header + "a 3 4\n. . 1 2\na 5 6\n")
    vectors = read_word_vectors(tmp_path / "v.vec")
    assert vectors.words == {"a": 0, ". .": 1}
    np.testing.assert_array_equal(vectors.vectors, [[3, 4], [1, 2]])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a 1 2\nb 1\n", "'b' has 1 numbers, the words before 2"),
        (b"a 1 nan\n", "NaN or infinity"),
        (b"a one two\n", "line 1: expected a word and its numbers"),
        (b"", "no word vectors"),
        (BINARY[:30], "ends before its 3 words"),
        ((793712314).to_bytes(4, "little") + b"\x00" * 20, "version 11 or 12"),
    ],
)
def test_files_that_are_not_word_vectors_are_refused(tmp_path, data, message):
    (tmp_path / "v").write_bytes(data)
    with pytest.raises(ValueError, match=message):
        read_word_vectors(tmp_path / "v")
    with pytest.raises(ValueError, match="cannot read word vectors"):
        read_word_vectors(tmp_path / "absent")
