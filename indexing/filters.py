"""Filters on document columns: a line of text becomes an Arrow expression.

    year >= 2020 and lang in en, de and title contains "reset" and kind != draft

Clauses are joined by `and`; all must hold. Values are bare words or quoted. Owns the grammar and how a value
is compared with a column of another type. Must not know where the rows are.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<sign><=|>=|!=|==|=|<|>)|(?P<comma>,)"""
    r"""|(?P<word>[^\s<>=!,"']+))"""
)
_NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": lambda left, right: left == right,
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}
_ORDER = ("<", "<=", ">", ">=")
_EXAMPLE = "expected for instance: year >= 2020 and lang in en, de and title contains reset"


@dataclass(frozen=True)
class Clause:
    """One condition: a column, an operator (a sign, `in`, `not in` or `contains`), values as written."""

    column: str
    operator: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Filter:
    """Conditions that must all hold."""

    clauses: tuple[Clause, ...]

    @property
    def columns(self) -> list[str]:
        """The columns it looks at, each once."""
        return list(dict.fromkeys(clause.column for clause in self.clauses))

    def expression(self, schema: pa.Schema) -> pc.Expression:
        """The filter for rows of a schema. A row without a value in a column does not pass.

        Text columns are compared as text; with `<` and the like and a number, by the numbers that they hold.

        Raises:
            ValueError: a column that is not there, or a value that the column's type cannot have.
        """
        parts = [_expression(clause, schema) for clause in self.clauses]
        whole = parts[0]
        for part in parts[1:]:
            whole = whole & part
        return whole


def parse_filter(text: str) -> Filter:
    """Reads a filter.

    Raises:
        ValueError: says where the text stops making sense.
    """
    tokens = _tokens(text)
    clauses: list[Clause] = []
    while tokens:
        if clauses:
            _expect_word(tokens, "and", text)
        clauses.append(_clause(tokens, text))
    if not clauses:
        raise ValueError(f"the filter is empty; {_EXAMPLE}")
    return Filter(tuple(clauses))


# A token: its kind (quoted, sign, comma, word) and its text.
def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"filter {text!r}: cannot read {text[position:].strip()!r}; {_EXAMPLE}")
        kind = str(match.lastgroup)
        value = match[kind]
        found.append((kind, re.sub(r"\\(.)", r"\1", value[1:-1]) if kind == "quoted" else value))
        position = match.end()
    return found


def _clause(tokens: list[tuple[str, str]], text: str) -> Clause:
    kind, column = tokens.pop(0)
    if kind not in ("word", "quoted"):
        raise ValueError(f"filter {text!r}: expected a column, got {column!r}; {_EXAMPLE}")
    if not tokens:
        raise ValueError(f"filter {text!r}: nothing follows column {column!r}; {_EXAMPLE}")
    kind, operator = tokens.pop(0)
    operator = operator.lower()
    if operator == "not" and tokens and tokens[0][1].lower() == "in":
        tokens.pop(0)
        operator = "not in"
    if kind != "sign" and operator not in ("in", "not in", "contains"):
        raise ValueError(f"filter {text!r}: unknown operator {operator!r}; {_EXAMPLE}")
    values = [_value(tokens, text)]
    while operator in ("in", "not in") and tokens and tokens[0][0] == "comma":
        tokens.pop(0)
        values.append(_value(tokens, text))
    return Clause(column, operator, tuple(values))


def _value(tokens: list[tuple[str, str]], text: str) -> str:
    """One value; bare words up to the next `and` or comma belong together."""
    if not tokens or tokens[0][0] not in ("word", "quoted"):
        raise ValueError(f"filter {text!r}: a value is missing; {_EXAMPLE}")
    kind, value = tokens.pop(0)
    words = [value]
    while kind == "word" and tokens and tokens[0][0] == "word" and tokens[0][1].lower() != "and":
        words.append(tokens.pop(0)[1])
    return " ".join(words)


def _expect_word(tokens: list[tuple[str, str]], word: str, text: str) -> None:
    _, got = tokens.pop(0)
    if got.lower() != word or not tokens:
        raise ValueError(f"filter {text!r}: expected `{word}` and a condition at {got!r}; {_EXAMPLE}")


def _expression(clause: Clause, schema: pa.Schema) -> pc.Expression:
    if clause.column not in schema.names:
        raise ValueError(f"filter: there is no column {clause.column!r}; there are {', '.join(schema.names)}")
    kind = schema.field(clause.column).type
    field = pc.field(clause.column)
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if clause.operator == "contains":
        if not is_text:
            raise ValueError(f"filter: `contains` needs a text column, {clause.column!r} holds {kind}")
        return pc.match_substring(field, clause.values[0], ignore_case=True)
    if is_text and clause.operator in _ORDER and re.match(_NUMBER, clause.values[0]):
        numbers = pc.if_else(
            pc.match_substring_regex(field, _NUMBER), pc.utf8_trim_whitespace(field), pa.scalar(None, kind)
        )
        return _COMPARE[clause.operator](numbers.cast(pa.float64()), float(clause.values[0]))
    values = [_typed(value, kind, clause.column) for value in clause.values]
    if clause.operator == "in":
        return field.isin(pa.array(values, kind))
    if clause.operator == "not in":
        return field.is_valid() & ~field.isin(pa.array(values, kind))
    return _COMPARE[clause.operator](field, pa.scalar(values[0], kind))


def _typed(value: str, kind: pa.DataType, column: str) -> Any:
    try:
        return pa.array([value]).cast(kind)[0].as_py()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(f"filter: column {column!r} holds {kind}, not {value!r}") from error
