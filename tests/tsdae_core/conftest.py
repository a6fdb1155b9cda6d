"""Fixtures of the learning core's tests: everything is built here, nothing is downloaded."""

import core_builders
import numpy as np
import pytest
import torch
from hypothesis import settings

# A loaded machine must not fail a property test by its clock.
settings.register_profile("core", deadline=None)
settings.load_profile("core")


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def texts():
    return core_builders.make_texts(200)


@pytest.fixture(scope="session")
def tokenizer(texts):
    return core_builders.wordpiece_tokenizer(texts)


@pytest.fixture
def make_encoder(tokenizer):
    """Make a small BERT encoder with non-trivial weights."""

    def make(**changes):
        return core_builders.bert_encoder(tokenizer, **changes)

    return make


@pytest.fixture
def rows():
    return lambda count, start=0: np.arange(start, start + count, dtype=np.int64)
