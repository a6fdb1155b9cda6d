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

from indexing.evaluation.text_files import json_lines, read_text, text_lines

TABLE_ENDINGS = (".parquet", ".pq", ".jsonl", ".ndjson", ".tsv", ".txt", ".csv")


@dataclass(frozen=True)
class TableRow:
    """One row; `where` names file and row for error messages."""

    where: str
    fields: Mapping[str, Any]

    def text(self, names: Sequence[str]) -> str:
        """The value of the first of the named columns, as text.

        Raises:
            ValueError: no such column, or no value.
        """
        value = self.value(names)
        if value is None:
            there = ", ".join(self.fields)
            raise ValueError(f"{self.where}: expected a column named {' or '.join(names)}; there is {there}")
        return str(value)

    def number(self, names: Sequence[str]) -> float:
        """The value of the first of the named columns, as a finite number.

        Raises:
            ValueError: no such column, or not a number.
        """
        text = self.text(names)
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not abs(value) < float("inf"):
            raise ValueError(f"{self.where}: {' or '.join(names)} must be a number, got {text!r}")
        return value

    def value(self, names: Sequence[str]) -> Any:
        """The value of the first of the named columns, or None."""
        return next((self.fields[name] for name in names if self.fields.get(name) is not None), None)


def read_table_rows(filesystem: pyarrow.fs.FileSystem, path: str) -> list[TableRow]:
    """All rows of a file; all but Parquet may be gzipped. TSV takes quotes as they are, CSV has them.

    Raises:
        ValueError: another ending, a damaged file, or a line with another number of columns than the header.
    """
    plain = path.removesuffix(".gz")
    ending = f".{plain.rpartition('.')[2]}"
    if ending in (".parquet", ".pq"):
        return _parquet_rows(filesystem, path)
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
    except pa.ArrowInvalid as error:
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
