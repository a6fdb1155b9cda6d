from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest

from indexing.evaluation.text_tasks import TextTask
from pipelines.callable_encoder import load_callable
from pipelines.compared_system import ComparedSystem
from pipelines.errors import InputError
from tsdae_core.sent2vec import Sent2VecConfig, train_sent2vec

MODULE = """
import math

def lengths(texts):
    return [[len(text), 1.0] for text in texts]

def flat(texts):
    return [1.0] * len(texts)

def short(texts):
    return lengths(texts)[1:]

def words(texts):
    return [["a"]] * len(texts)

def broken(texts):
    return [[math.nan]] * len(texts)

number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "users_own_encoder.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return "users_own_encoder"


def test_a_users_function_encodes_any_iterable_of_texts(module: str) -> None:
    vectors = load_callable(f"{module}:lengths")(iter(["a", "bcd"]))
    assert vectors.dtype == np.float32
    assert vectors.tolist() == [[1.0, 1.0], [3.0, 1.0]]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("users_own_encoder", "not module:function"),
        (":encode", "not module:function"),
        ("no_such_module:encode", "PYTHONPATH"),
        ("users_own_encoder:missing", "no function 'missing'"),
        ("users_own_encoder:number", "no function 'number'"),
        ("users_own_encoder:flat", "expected one row each"),
        ("users_own_encoder:short", "expected one row each"),
        ("users_own_encoder:words", "did not return vectors"),
        ("users_own_encoder:broken", "not finite"),
    ],
)
def test_what_cannot_be_used_is_told(module: str, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_callable(name)(["a", "b"])


def test_functions_and_sent2vec_folders_are_systems_of_an_evaluation(module: str, tmp_path: Path) -> None:
    config = Sent2VecConfig(dim=4, num_buckets=10, min_count=1, num_epochs=1)
    texts = ["kori mi", "tula se kori"] * 5
    train_sent2vec(texts, config, seed=0).save(tmp_path / "s2v")
    for source in (f"{module}:lengths", str(tmp_path / "s2v")):
        system = ComparedSystem(name="mine", kind="encoder", source=source)
        same, other = system.scorer(cast("TextTask", None)).pair_scores(["kori mi"] * 2, ["kori mi", "se"])
        assert same == pytest.approx(1.0)
        assert other < same
        assert system.fingerprint() == system.fingerprint()
    with pytest.raises(InputError, match="no function"):
        ComparedSystem(name="a", kind="encoder", source=f"{module}:gone").scorer(cast("TextTask", None))
