"""Documentation of installed packages: the files that hold it and the docstrings inside, never imported.

Owns the walk over installed distributions and the parse of one source file. No code of a package is run.
Everything a worker process needs is here and imports only the standard library and the two prose modules.
"""

from __future__ import annotations

import ast
import gc
import importlib.metadata
import inspect
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path, PurePath

from pipelines.docs_prose import prose_paragraphs
from pipelines.docs_sentences import is_complete, is_prose, split_sentences
from pipelines.errors import InputError, nearest

MAX_FILE_BYTES = 1_000_000
_SKIPPED_FOLDERS_TEXT = (
    "tests test testing _vendor vendor vendored _vendored externals extern _external thirdparty "
    "third_party thirdparty_files node_modules"
)
_SKIPPED_FOLDERS = frozenset(_SKIPPED_FOLDERS_TEXT.split())
_SKIPPED_FILES = re.compile(r"test_.*|.*_test|tests?|conftest|.*_pb2(?:_grpc)?|modular_.*")
_DOC_CALLS = re.compile(r"add_?(?:new)?_?doc(?:str)?\w*", re.IGNORECASE)
_LICENSE_CHARS = 120


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A Python source file: where it lies, the module it is imported as, the distribution it belongs to."""

    path: str
    module: str
    package: str
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class InstalledPackage:
    """A distribution with readable metadata; `files` are its Python sources inside site-packages, sorted."""

    name: str
    version: str
    license: str
    summary: str
    description: str
    files: tuple[SourceFile, ...]


@dataclass(frozen=True, kw_only=True)
class DocEntry:
    """One docstring (or package description) as prose.

    `source` is "package.module:qualname", or "package.module" for a module; `title` the dotted name.
    `first` is the first sentence, empty when it is not clean prose; `rest` the clean, complete ones after it.
    """

    package: str
    source: str
    title: str
    first: str
    rest: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ParsedFiles:
    """What came out of some files: entries in file order, and the files that could not be read or parsed."""

    entries: tuple[DocEntry, ...]
    num_docstrings: int
    unparsable: tuple[SourceFile, ...]


def installed_packages(names: Sequence[str] | None = None) -> list[InstalledPackage]:
    """Installed distributions sorted by normalised name, the first on `sys.path` winning.

    Editable installs are left out (their text changes without their version), and a file listed by two
    distributions belongs to the first. `names` chooses; InputError names one that is not installed.
    """
    found: dict[str, importlib.metadata.Distribution] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name and not _is_editable(distribution):
            found.setdefault(_normalised(name), distribution)
    wanted = sorted(found) if names is None else sorted({_normalised(name) for name in names})
    for name in wanted:
        if name not in found:
            raise InputError(f"package '{name}' is not installed here.{nearest(name, found)}")
    seen: set[str] = set()
    return [_describe(name, found[name], seen=seen) for name in wanted]


def parse_files(files: Sequence[SourceFile]) -> ParsedFiles:
    """The documentation in some source files, as prose. Unparsable files are named, never fatal."""
    entries: list[DocEntry] = []
    unparsable: list[SourceFile] = []
    num_docstrings = 0
    for file in files:
        try:
            with _no_cycle_collection():
                docs = list(_docstrings(Path(file.path).read_bytes()))
        except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
            unparsable.append(file)
            continue
        num_docstrings += len(docs)
        for qualname, text in docs:
            if (
                entry := doc_entry(text, package=file.package, module=file.module, qualname=qualname)
            ) is not None:
                entries.append(entry)
    return ParsedFiles(entries=tuple(entries), num_docstrings=num_docstrings, unparsable=tuple(unparsable))


def description_entries(package: InstalledPackage) -> list[DocEntry]:
    """The one-line summary and the long description of a package's metadata, as prose."""
    texts = (("__summary__", package.summary), ("__description__", package.description))
    entries = (
        doc_entry(text, package=package.name, module=package.name, qualname=name) for name, text in texts
    )
    return [entry for entry in entries if entry is not None]


def doc_entry(text: str, *, package: str, module: str, qualname: str) -> DocEntry | None:
    """A docstring's first sentence and clean remaining sentences; None when nothing clean is left."""
    paragraphs = prose_paragraphs(text)
    if not paragraphs:
        return None
    first, *others = split_sentences(paragraphs[0])
    for paragraph in paragraphs[1:]:
        others += split_sentences(paragraph)
    rest = tuple(sentence for sentence in others if is_complete(sentence) and is_prose(sentence))
    first = first if is_prose(first) and not first.endswith((":", ",", ";", "...")) else ""
    if not first and not rest:
        return None
    return DocEntry(
        package=package,
        source=f"{module}:{qualname}" if qualname else module,
        title=f"{module}.{qualname}" if qualname else module,
        first=first,
        rest=rest,
    )


def _docstrings(source: bytes) -> Iterator[tuple[str, str]]:
    """(qualname, cleaned docstring) of every module, class, function and method, and of add_docstr calls."""
    if b'"""' not in source and b"'''" not in source:
        return  # a file without a triple-quoted string has next to no prose; this skips a fifth of the parse
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    if text := ast.get_docstring(tree):
        yield "", text
    yield from _nested(tree.body, prefix="")


@contextmanager
def _no_cycle_collection() -> Iterator[None]:
    """Syntax trees hold many objects and no cycles; collecting during a parse costs a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _nested(body: Sequence[ast.stmt], *, prefix: str) -> Iterator[tuple[str, str]]:
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = prefix + node.name
            if text := ast.get_docstring(node):
                yield name, text
            if isinstance(node, ast.ClassDef):
                yield from _nested(node.body, prefix=f"{name}.")
        elif isinstance(node, ast.If | ast.Try):
            yield from _nested(node.body, prefix=prefix)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from _attached_docstring(node.value)


def _attached_docstring(call: ast.Call) -> Iterator[tuple[str, str]]:
    """(name, text) of a call such as add_docstr(torch.abs, "..."), which documents an extension module."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if not _DOC_CALLS.fullmatch(function.lstrip("_")) or not call.args:
        return
    nodes = (node for argument in call.args for node in ast.walk(argument))
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    text = max(texts, key=len, default="")
    names = [name for name in texts if re.fullmatch(r"[\w.]+", name)] or [getattr(call.args[0], "attr", "")]
    if "\n" in text and names[0]:
        yield ".".join(names), inspect.cleandoc(text)


def _describe(
    name: str, distribution: importlib.metadata.Distribution, *, seen: set[str]
) -> InstalledPackage:
    metadata = distribution.metadata
    description = _field(metadata, "Description")
    return InstalledPackage(
        name=name,
        version=distribution.version,
        license=_license(metadata),
        summary=_field(metadata, "Summary"),
        description=description or str(metadata.get_payload() if isinstance(metadata, Message) else ""),
        files=tuple(_source_files(name, distribution, seen=seen)),
    )


def _source_files(
    name: str, distribution: importlib.metadata.Distribution, *, seen: set[str]
) -> Iterator[SourceFile]:
    for listed in sorted(distribution.files or (), key=lambda file: file.as_posix()):
        if listed.suffix != ".py" or _is_skipped(listed):
            continue
        path = str(distribution.locate_file(listed))
        if (
            path in seen
            or not Path(path).is_file()
            or (num_bytes := Path(path).stat().st_size) > MAX_FILE_BYTES
        ):
            continue
        seen.add(path)
        parts = listed.with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield SourceFile(path=path, module=module, package=name, num_bytes=num_bytes)


def _is_skipped(path: PurePath) -> bool:
    folders = path.parts[:-1]
    outside = ".." in folders or path.is_absolute()
    return outside or not _SKIPPED_FOLDERS.isdisjoint(folders) or bool(_SKIPPED_FILES.fullmatch(path.stem))


def _is_editable(distribution: importlib.metadata.Distribution) -> bool:
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    return bool(origin.get("dir_info", {}).get("editable"))


def _license(metadata: importlib.metadata.PackageMetadata) -> str:
    """The licence as the package states it: expression, short licence field, or classifiers."""
    for key in ("License-Expression", "License"):
        stated = _field(metadata, key).strip()
        if stated and "\n" not in stated and len(stated) <= _LICENSE_CHARS and stated != "UNKNOWN":
            return stated
    classifiers = [text for text in metadata.get_all("Classifier") or () if text.startswith("License ::")]
    return "; ".join(text.rsplit(" :: ", 1)[-1] for text in classifiers) or "not stated"


def _field(metadata: importlib.metadata.PackageMetadata, key: str) -> str:
    return "\n".join(metadata.get_all(key) or ())


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
