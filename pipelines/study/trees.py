"""Nested plain values: two trees as one."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Sections of both are merged, anything else of `over` wins."""
    result = copy.deepcopy(dict(under))
    for key, value in over.items():
        below = result.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            result[key] = merged(below, value)
        else:
            result[key] = copy.deepcopy(value)
    return result
