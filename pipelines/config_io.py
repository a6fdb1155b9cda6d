"""From defaults, a YAML file and dotted overrides to a checked RunConfig, and back to YAML.

Later wins: defaults, those of the objective, the file, then `key.subkey=value` from the command line. Every
wrong key or value is one InputError that names the dotted key.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import yaml

from pipelines.config import RunConfig
from pipelines.config_values import adapter_of, config_to_dict
from pipelines.errors import InputError, nearest
from pipelines.objective_defaults import with_objective_defaults, with_training_defaults
from pipelines.train_config import TrainConfig

_T = TypeVar("_T")
# PyYAML's parser in C, where its build has it: a study of many settings is read in a tenth of the time.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_config(path: str | Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """Reads and checks a configuration.

    Raises:
        InputError: the file is absent or not YAML, a key is unknown, a value has the wrong type or range.
    """
    tree = read_tree(Path(path)) if path is not None else {}
    for override in overrides:
        set_value(tree, *read_override(override))
    return config_of(tree, RunConfig)


def config_of(tree: Mapping[str, Any], config_class: type[_T]) -> _T:
    """A checked configuration of plain nested values; of a run or a training with its objective's settings.

    Raises:
        InputError: a key is unknown, a value has the wrong type or range.
    """
    _check_keys(tree, config_class, prefix="")
    if config_class is RunConfig:
        tree = with_objective_defaults(tree)
    if config_class is TrainConfig:
        tree = with_training_defaults(tree)
    try:
        config: _T = adapter_of(config_class).validate_python(tree)
    except pydantic.ValidationError as error:
        raise InputError(_describe(error)) from error
    _check_finite(config_to_dict(config), prefix="")
    return config


def config_to_yaml(config: RunConfig) -> str:
    """The resolved configuration as YAML that loads back to the same configuration."""
    return yaml.safe_dump(config_to_dict(config), sort_keys=False)


def read_tree(path: Path) -> dict[str, Any]:
    """The sections of a YAML file as they are.

    Raises:
        InputError: the file is absent or not YAML.
    """
    if not path.is_file():
        raise InputError(f"there is no configuration file '{path}'; the shipped ones are in configs/")
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"'{path}' is not valid YAML: {reason}") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise InputError(f"'{path}' must hold a mapping of sections, got {type(tree).__name__}")
    return tree


def read_override(override: str) -> tuple[str, Any]:
    """Dotted key and value of `key.subkey=value`; the value is YAML.

    Raises:
        InputError: not of that form.
    """
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise InputError(
            f"cannot read the override '{override}'; write key.subkey=value, e.g. train.num_workers=4"
        )
    try:
        return key, yaml.load(text, Loader=_LOADER) if text else None
    except yaml.YAMLError as error:
        raise InputError(f"the value of '{override}' is not valid YAML") from error


def set_value(tree: dict[str, Any], key: str, value: Any) -> None:
    """Puts a value at a dotted key, making sections on the way; elements of lists are numbered.

    Raises:
        InputError: something on the way is not a section, or a list lacks the element.
    """
    node: Any = tree
    *parents, last = key.split(".")
    for parent in parents:
        node = _child(node, parent, key)
    if isinstance(node, list):
        node[_position(node, last, key)] = value
    else:
        node[last] = value


def _child(node: Any, name: str, key: str) -> Any:
    """The section (made when absent) or list element one step down the dotted key."""
    child = node[_position(node, name, key)] if isinstance(node, list) else node.setdefault(name, {})
    if child is None:
        child = node[_position(node, name, key) if isinstance(node, list) else name] = {}
    if not isinstance(child, dict | list):
        raise InputError(f"'{key}' cannot be overridden: '{name}' is not a section")
    return child


def _position(items: list[Any], name: str, key: str) -> int:
    if not name.isdecimal() or int(name) >= len(items):
        raise InputError(
            f"'{key}' cannot be overridden: '{name}' is not one of its {len(items)} elements (0, 1, ...)"
        )
    return int(name)


def _check_keys(tree: Mapping[Any, Any], config_class: type, *, prefix: str) -> None:
    hints = _types_of(config_class)
    names = [field.name for field in dataclasses.fields(config_class)]
    for key, value in tree.items():
        if key not in names:
            raise InputError(f"unknown configuration key '{prefix}{key}'.{_hint(str(key), names, prefix)}")
        section, many = _section_of(hints[key])
        if section is None:
            continue
        if many and isinstance(value, list | tuple | Mapping):
            children = value.items() if isinstance(value, Mapping) else enumerate(value)
            for name, item in children:
                if isinstance(item, Mapping):
                    _check_keys(item, section, prefix=f"{prefix}{key}.{name}.")
        elif isinstance(value, Mapping):
            _check_keys(value, section, prefix=f"{prefix}{key}.")


@functools.cache
def _types_of(config_class: type) -> Mapping[str, Any]:
    """The types of the fields, worked out once: a study checks hundreds of configurations."""
    return typing.get_type_hints(config_class)


def _hint(key: str, names: Sequence[str], prefix: str) -> str:
    """Names the key further down the section, or the closest, or another section's, or what there is."""
    elsewhere = [dotted for dotted in _dotted_keys(RunConfig) if dotted.rpartition(".")[2] == key]
    below = [dotted for dotted in elsewhere if prefix and dotted.startswith(prefix)]
    if below:
        return f" Did you mean '{below[0]}'?"
    if close := nearest(key, names, prefix=prefix):
        return close
    if elsewhere:
        return f" Did you mean '{elsewhere[0]}'?"
    return f" The keys there are: {', '.join(names)}"


def _dotted_keys(config_class: type, prefix: str = "") -> list[str]:
    """Every key that a configuration can hold; sequences are left out."""
    keys = []
    for name, hint in _types_of(config_class).items():
        section, many = _section_of(hint)
        keys.append(f"{prefix}{name}")
        if section is not None and not many:
            keys += _dotted_keys(section, f"{prefix}{name}.")
    return keys


def _check_finite(value: Any, *, prefix: str) -> None:
    """Refuses nan and inf, which pass most comparisons of range checks and fail hours later."""
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            _check_finite(child, prefix=f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"configuration key '{prefix}': must be a finite number, got {value}")


def _section_of(hint: Any) -> tuple[type | None, bool]:
    """The dataclass inside a type hint, and whether the hint is a sequence or mapping of them."""
    if dataclasses.is_dataclass(hint):
        return typing.cast(type, hint), False
    origin = typing.get_origin(hint)
    for argument in typing.get_args(hint):
        if dataclasses.is_dataclass(argument):
            return typing.cast(type, argument), origin not in (typing.Union, types.UnionType)
    return None, False


def _describe(error: pydantic.ValidationError) -> str:
    """The first problem as one line with its dotted key."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"] if not str(part).endswith("Config"))
    message = first["msg"].removeprefix("Value error, ")
    given = "" if first["type"] in ("missing", "value_error") else f", got {first['input']!r}"
    if message[1:2].islower():  # a word, not an abbreviation
        message = message[0].lower() + message[1:]
    where = f"configuration key '{key}'" if key else "configuration"
    return f"{where}: {message}{given}"
