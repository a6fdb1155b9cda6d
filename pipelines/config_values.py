"""Any config dataclass as plain values."""

from __future__ import annotations

from typing import Any

import pydantic


def config_to_dict(config: Any) -> dict[str, Any]:
    """Nested plain values of any config dataclass, tuples as lists, ready for YAML or JSON."""
    plain = pydantic.TypeAdapter(type(config)).dump_python(config, mode="json")
    assert isinstance(plain, dict)
    return plain
