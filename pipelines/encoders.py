"""Anything that turns texts into vectors, by one name: a folder, a hub name, or a user's function.

Must not know tasks or reports.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipelines.callable_encoder import load_callable
from pipelines.errors import InputError
from tsdae_core.choices import PoolingMode

Encode = Callable[[Sequence[str]], NDArray[np.float32]]
_CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_callable_name(source: str) -> bool:
    """Whether a source is `module:function` and not a place."""
    return _CALLABLE.fullmatch(source) is not None and not Path(source).exists()


def load_encode(source: str, *, device: str = "cpu", pooling: PoolingMode | None = None) -> Encode:
    """The function texts -> float32[n, d] of an encoder.

    Args:
        source: a folder of ours or of sentence-transformers, a plain checkpoint, a Sent2Vec folder, a hub
            name, or `module:function`.
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
        if is_sent2vec(source):
            return Sent2Vec.load(source).encode
        return SentenceEncoder.load(source, device=device, pooling=pooling).encode
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"cannot load the encoder '{source}': {reason}") from error
