"""Reading the text files that evaluation data comes in.

Owns decoding: UTF-8 with or without a byte order mark, Windows line ends, `.gz`. Every reader of tasks goes
through here, so all of them bear the same files. Must not know what the lines mean.
"""

import gzip
import json
from collections.abc import Iterator

import pyarrow.fs


def read_text(filesystem: pyarrow.fs.FileSystem, path: str) -> str:
    """The whole file, decompressed and decoded, without a byte order mark.

    Raises:
        ValueError: not UTF-8, or a damaged gzip file.
    """
    with filesystem.open_input_stream(path, compression=None) as stream:
        data: bytes = stream.read()
    try:
        return (gzip.decompress(data) if path.endswith(".gz") else data).decode("utf-8-sig")
    except (UnicodeDecodeError, OSError, EOFError) as error:
        raise ValueError(f"{path}: not readable as UTF-8 text ({error})") from error


def text_lines(filesystem: pyarrow.fs.FileSystem, path: str) -> Iterator[tuple[int, str]]:
    """Line numbers from 1 and lines, without line ends and blank lines.

    Raises:
        ValueError: as `read_text`.
    """
    # Only \n ends a line: JSON strings may hold U+2028 and its like, which str.splitlines would cut at.
    for number, line in enumerate(read_text(filesystem, path).split("\n"), start=1):
        stripped = line.removesuffix("\r")
        if stripped.strip():
            yield number, stripped


def json_lines(filesystem: pyarrow.fs.FileSystem, path: str) -> Iterator[tuple[str, dict[str, object]]]:
    """One object per line, with "file: line n" for error messages.

    Raises:
        ValueError: as `read_text`, or a line that is not a JSON object.
    """
    for number, line in text_lines(filesystem, path):
        where = f"{path}: line {number}"
        try:
            fields = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: not JSON ({error.msg})") from error
        if not isinstance(fields, dict):
            raise ValueError(f"{where}: expected a JSON object, got {type(fields).__name__}")
        yield where, fields


def read_json_object(filesystem: pyarrow.fs.FileSystem, path: str) -> dict[str, object]:
    """A file that is one JSON object.

    Raises:
        ValueError: as `read_text`, or not one JSON object.
    """
    try:
        fields = json.loads(read_text(filesystem, path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON ({error.msg}, line {error.lineno})") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(fields).__name__}")
    return fields
