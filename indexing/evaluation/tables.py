"""Rows of a labelled table, whichever of four formats it is in: Parquet, JSONL, TSV, CSV.

Owns formats and the other names that columns go by. Must not know what a task is.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from indexing.evaluation.task_files import PARQUET_ENDINGS, is_table, table_parts
from indexing.evaluation.text_files import json_lines, read_text, text_lines

TABLE_ENDINGS = (*PARQUET_ENDINGS, ".jsonl", ".ndjson", ".tsv", ".txt", ".csv")
_TRUTH = {"True": 1.0, "False": 0.0}
_EXCERPT_CHARS = 80


@dataclass(frozen=True)
class TableRow:
    """One row; `where` names file and row for error messages."""

    where: str
    fields: Mapping[str, Any]

    def text(self, names: Sequence[str]) -> str:
        """The value of the first of the named columns, as text.

        Raises:
            ValueError: no such column, no value, or one that has no written form (a list, bytes).
        """
        value = self.value(names)
        if value is None:
            raise ValueError(f"{self.where}: {self._what_lacks(names)}")
        if isinstance(value, Mapping | Sequence) and not isinstance(value, str):
            shown = repr(value)[:_EXCERPT_CHARS]
            raise ValueError(f"{self.where}: {' or '.join(names)} must be text or a number, got {shown}")
        return str(value)

    def number(self, names: Sequence[str]) -> float:
        """The value of the first of the named columns, as a finite number; True and False are 1 and 0.

        Raises:
            ValueError: no such column, or not a number.
        """
        text = self.text(names)
        try:
            value = _TRUTH[text] if text in _TRUTH else float(text)
        except ValueError:
            value = float("nan")
        if not abs(value) < float("inf"):
            raise ValueError(f"{self.where}: {' or '.join(names)} must be a number, got {text!r}")
        return value

    def value(self, names: Sequence[str]) -> Any:
        """The value of the first of the named columns, or None."""
        return next((self.fields[name] for name in names if self.fields.get(name) is not None), None)

    def _what_lacks(self, names: Sequence[str]) -> str:
        empty = [name for name in names if name in self.fields]
        if empty:
            return f"no value in column {' or '.join(empty)}"
        return f"expected a column named {' or '.join(names)}; there is {', '.join(self.fields)}"


def read_table_rows(filesystem: pyarrow.fs.FileSystem, path: str) -> list[TableRow]:
    """All rows of a file; all but Parquet may be gzipped. TSV takes quotes as they are, CSV has them.

    path: by its ending; one that ends as Parquet may also be a folder of parts.

    Raises:
        ValueError: another ending, a damaged file, or a line with another number of columns than the header.
    """
    if is_table(path):
        return [row for part in table_parts(filesystem, path) for row in _parquet_rows(filesystem, part)]
    plain = path.removesuffix(".gz")
    ending = f".{plain.rpartition('.')[2]}"
    if ending in (".jsonl", ".ndjson"):
        return [TableRow(where, fields) for where, fields in json_lines(filesystem, path)]
    if ending in (".tsv", ".txt"):
        lines = [(number, line.split("\t")) for number, line in text_lines(filesystem, path)]
        return _headed(path, lines)
    if ending == ".csv":
        reader = csv.reader(io.StringIO(read_text(filesystem, path), newline=""))
        return _headed(path, [(reader.line_num, columns) for columns in reader if columns])
    raise ValueError(f"{path}: expected a file that ends in {', '.join(TABLE_ENDINGS)}")


def _parquet_rows(filesystem: pyarrow.fs.FileSystem, path: str) -> list[TableRow]:
    try:
        with filesystem.open_input_file(path) as stream:
            rows = pq.read_table(stream).to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a readable Parquet file ({error})") from error
    return [TableRow(f"{path}: row {number}", row) for number, row in enumerate(rows)]


def _headed(path: str, lines: list[tuple[int, list[str]]]) -> list[TableRow]:
    if not lines:
        raise ValueError(f"{path}: the file is empty")
    header = [name.strip() for name in lines[0][1]]
    rows = []
    for number, columns in lines[1:]:
        where = f"{path}: line {number}"
        if len(columns) != len(header):
            raise ValueError(f"{where}: expected the {len(header)} columns of the header, got {len(columns)}")
        rows.append(TableRow(where, dict(zip(header, columns, strict=True))))
    return rows
