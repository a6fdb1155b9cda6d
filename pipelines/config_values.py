"""Any config dataclass as plain values."""

from __future__ import annotations

from typing import Any

import pydantic


def config_to_dict(config: Any) -> dict[str, Any]:
    """Nested plain values of any config dataclass, tuples as lists, ready for YAML or JSON."""
    plain = adapter_of(type(config)).dump_python(config, mode="json")
    assert isinstance(plain, dict)
    return plain


def adapter_of(config_class: type[Any]) -> pydantic.TypeAdapter[Any]:
    """What checks and dumps a config dataclass; made once, as making it takes longer than using it."""
    if config_class not in _ADAPTERS:
        _ADAPTERS[config_class] = pydantic.TypeAdapter(config_class)
    return _ADAPTERS[config_class]


_ADAPTERS: dict[type[Any], pydantic.TypeAdapter[Any]] = {}
