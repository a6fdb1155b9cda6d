"""A user's own function as an encoder, named `module:function`; for models that cannot be a dependency here.

Must not know tasks or reports.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.errors import InputError

Encode = Callable[[Iterable[str]], NDArray[np.float32]]


def load_callable(name: str) -> Encode:
    """The function behind `module:function`, checked at every call: one finite vector per text.

    The module is found as Python finds modules: installed, or in a folder of PYTHONPATH.

    Raises:
        InputError: the name, the module or the function cannot be used, or what it returns.
    """
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise InputError(f"'{name}' is not module:function, as in my_models:encode")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InputError(f"cannot import '{module_name}': {error}; is its folder in PYTHONPATH?") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise InputError(f"'{module_name}' has no function '{function_name}'")

    def encode(texts: Iterable[str]) -> NDArray[np.float32]:
        given = list(texts)
        return _checked(function(given), len(given), name)

    return encode


def _checked(returned: Any, num_texts: int, name: str) -> NDArray[np.float32]:
    try:
        vectors = np.asarray(returned, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} did not return vectors: {error}") from error
    if vectors.ndim != 2 or vectors.shape[0] != num_texts:
        raise InputError(
            f"{name} returned shape {vectors.shape} for {num_texts} texts, expected one row each"
        )
    if not np.isfinite(vectors).all():
        raise InputError(f"{name} returned vectors that are not finite")
    return vectors
