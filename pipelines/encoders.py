"""Anything that turns texts into vectors, by one name: a folder, a hub name, or a user's function.

Must not know tasks or reports.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from indexing.fasttext_file import read_fasttext
from pipelines.callable_encoder import load_callable
from pipelines.errors import InputError
from tsdae_core.choices import PoolingMode

if TYPE_CHECKING:
    from tsdae_core.sent2vec import Sent2Vec

Encode = Callable[[Sequence[str]], NDArray[np.float32]]
_CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_callable_name(source: str) -> bool:
    """Whether a source is `module:function` and not a place."""
    return _CALLABLE.fullmatch(source) is not None and not Path(source).exists()


def load_encode(source: str, *, device: str = "cpu", pooling: PoolingMode | None = None) -> Encode:
    """The function texts -> float32[n, d] of an encoder.

    Args:
        source: a folder of ours or of sentence-transformers, a plain checkpoint, a Sent2Vec folder or a model
            (`.bin`) of its authors' program, a hub name, or `module:function`.
        device: of a Transformer.
        pooling: of a Transformer; None takes what its folder says.

    Raises:
        InputError: it cannot be loaded.
    """
    if is_callable_name(source):
        return load_callable(source)
    from tsdae_core.encoder import SentenceEncoder
    from tsdae_core.sent2vec import Sent2Vec, is_sent2vec

    try:
        if Path(source).is_file():
            return original_sent2vec(Path(source)).encode
        if is_sent2vec(source):
            return Sent2Vec.load(source).encode
        return SentenceEncoder.load(source, device=device, pooling=pooling).encode
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"cannot load the encoder '{source}': {reason}") from error


def original_sent2vec(path: Path) -> Sent2Vec:
    """A model that the program of Sent2Vec's authors has trained; its words are looked up as ours are.

    Raises:
        ValueError: another file.
    """
    from tsdae_core.sent2vec import Sent2Vec, Sent2VecConfig

    model = read_fasttext(path)
    if not model.is_sent2vec:
        raise ValueError(f"{path} is a model of fastText, which is no encoder but word vectors")
    words = [""] * (len(model.table) - model.num_buckets)
    for word, row in model.words.items():
        words[row] = word
    config = Sent2VecConfig(
        dim=model.dim, ngrams=model.word_ngrams, num_buckets=model.num_buckets, ngram_hash="original"
    )
    return Sent2Vec(words, model.table, config)
