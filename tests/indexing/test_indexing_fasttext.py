"""fastText's binary models, against vectors that fastText itself gave.

`fasttext.bin` is a model of `train_unsupervised(model="cbow", dim=4, bucket=60, minn=3, maxn=5)`; `VECTORS`
are what `get_word_vector` of fastText 0.9.2 gave for it.
"""

import gzip
from pathlib import Path

import numpy as np
import pytest

from indexing.fasttext_file import pieces_of, read_fasttext
from indexing.word_vectors import read_word_vectors

MODEL = Path(__file__).with_name("fasttext.bin")
KNOWN = ("disk", "boot", "über", "naïve", "東京", "</s>")
UNKNOWN = ("disks", "überall", "東京都", "a")
VECTORS = {
    "disk": [0.73168159, 0.96330118, 0.32560283, 0.32696843],
    "boot": [0.55956048, 0.60409552, 0.76134866, 0.44571516],
    "über": [0.6762774, 0.73403722, 0.52651429, 0.29643324],
    "naïve": [0.56674117, 0.61362392, 0.35534278, 0.52135605],
    "東京": [0.19932099, 0.14374986, 0.16808276, 0.47984257],
    "</s>": [0.32693818, 0.41793421, -0.08593208, 0.00599286],
    "disks": [0.47901165, 0.52641594, 0.29707503, 0.22347015],
    "überall": [0.41200471, 0.43093318, 0.32626355, 0.19948435],
    "東京都": [0.42761868, 0.38872027, 0.2481312, 0.3849929],
    "a": [1.44391513, 1.97668707, 1.13374019, 0.46481872],
}


def test_known_and_unknown_words_have_the_vectors_that_fasttext_gives():
    model = read_fasttext(MODEL)
    assert set(KNOWN) <= set(model.words)
    assert not set(UNKNOWN) & set(model.words)
    for word in (*KNOWN, *UNKNOWN):
        np.testing.assert_allclose(model.vector(word), VECTORS[word], rtol=1e-5, atol=1e-7, err_msg=word)


def test_pieces_are_those_between_the_marks_of_a_word():
    assert pieces_of("ab", min_chars=3, max_chars=5) == ["<ab", "<ab>", "ab>"]
    assert pieces_of("ab", min_chars=1, max_chars=2) == ["<a", "a", "ab", "b", "b>"]
    assert pieces_of("ab", min_chars=3, max_chars=0) == []


@pytest.mark.parametrize("only", [None, {"disk", "disks", "über"}])
@pytest.mark.parametrize("zipped", [False, True])
def test_texts_are_averaged_over_known_words_and_those_made_of_pieces(tmp_path, only, zipped):
    path = MODEL
    if zipped:
        path = tmp_path / "fasttext.bin.gz"
        path.write_bytes(gzip.compress(MODEL.read_bytes(), mtime=0))
    vectors = read_word_vectors(path, only=only)
    out = vectors.encode(["Disk, disks über", ""])
    wanted = np.mean([VECTORS[word] for word in ("disk", "disks", "über")], axis=0)
    np.testing.assert_allclose(out[0], wanted, rtol=1e-5, atol=1e-7)
    assert not out[1].any()
    weighted = vectors.weighted_by_idf(["disk disks", "disk", "disk"]).encode(["disk disks über"])
    # `disk` is in every text and weighs nothing; `disks` is in one, and `über`, in none, weighs as much.
    wanted = np.mean([VECTORS["disks"], VECTORS["über"]], axis=0)
    np.testing.assert_allclose(weighted[0], wanted, rtol=1e-5, atol=1e-7)


def test_damaged_and_compressed_models_are_refused(tmp_path):
    data, path = MODEL.read_bytes(), tmp_path / "model.bin"
    model = read_fasttext(MODEL)
    num_words, (num_rows, dim) = len(model.words), model.table.shape
    is_compressed = len(data) - (1 + 16 + 4 * num_words * dim) - (16 + 4 * num_rows * dim) - 1
    for changed, message in (
        (data[: is_compressed + 100], "ends inside the model"),
        (data[:200], "ends inside the model"),
        (data[:20], "ends inside the model"),
        (data[:4] + b"\x09\0\0\0" + data[8:], "version 11 or 12"),
        (data[:is_compressed] + b"\1" + data[is_compressed + 1 :], r"\.ftz"),
        (data[:8] + b"\5\0\0\0" + data[12:], "does not fit .* and width 5"),
    ):
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=message):
            read_word_vectors(path)
