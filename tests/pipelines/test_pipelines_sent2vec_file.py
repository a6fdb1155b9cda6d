"""Models of the program of Sent2Vec's authors, against the sentence vectors that it printed.

That program (github.com/epfml/sent2vec) wrote `sent2vec.bin` with `-dim 4 -wordNgrams 3 -bucket 60`;
`VECTORS` are what its `print-sentence-vectors` gave, with five digits.
"""

import gzip
from pathlib import Path

import numpy as np
import pytest

from pipelines.compared_system import ComparedSystem
from pipelines.encoders import load_encode, original_sent2vec
from pipelines.errors import InputError
from tsdae_core.sent2vec import Sent2Vec

MODEL = Path(__file__).with_name("sent2vec.bin")
VECTORS = {
    "disk": [-2.2765, 3.1659, 3.4206, -1.107],
    "disk boot": [-0.47463, 1.593, 1.2458, -0.55473],
    "boot disk": [-0.63834, 1.5254, 0.83759, -0.8443],
    "unknown disk": [-2.2765, 3.1659, 3.4206, -1.107],
    "disk unknown boot": [-0.47463, 1.593, 1.2458, -0.55473],
    "the disk kernel boot": [0.24417, 0.89193, -0.0024283, -0.28719],
    "über 東京": [-0.024129, 0.40227, -1.4664, -0.71974],
}


def test_a_text_has_the_vector_that_the_program_prints(tmp_path):
    wanted = list(VECTORS.values())
    np.testing.assert_allclose(load_encode(str(MODEL))(list(VECTORS)), wanted, rtol=1e-4)
    zipped = tmp_path / "model.bin.gz"
    zipped.write_bytes(gzip.compress(MODEL.read_bytes(), mtime=0))
    np.testing.assert_allclose(load_encode(str(zipped))(list(VECTORS)), wanted, rtol=1e-4)
    assert not load_encode(str(MODEL))(["nothing known", ""]).any()
    original_sent2vec(MODEL).save(tmp_path / "saved")
    np.testing.assert_allclose(Sent2Vec.load(tmp_path / "saved").encode(VECTORS), wanted, rtol=1e-4)


def test_it_is_a_system_to_compare_and_other_files_are_not(tmp_path):
    system = ComparedSystem(name="Sent2Vec", kind="encoder", source=str(MODEL))
    assert system.fingerprint() != ComparedSystem(name="x", kind="encoder", source=__file__).fingerprint()
    changed = bytearray(MODEL.read_bytes())
    changed[36] = 2  # another kind of model, whose table has no spare row
    (tmp_path / "other.bin").write_bytes(changed)
    for source in (tmp_path / "other.bin", Path(__file__)):
        with pytest.raises(InputError, match="cannot load the encoder"):
            load_encode(str(source))
