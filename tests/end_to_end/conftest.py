"""One undisturbed tiny run, shared by the tests that look at its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.end_to_end.helpers import tsdae, write_config

_PACKAGES = ("typer", "rich", "filelock", "bm25s", "ir-measures", "pydantic")


@dataclass(frozen=True)
class TinyRun:
    """An undisturbed run: its corpus, configuration, workspace and what it printed."""

    corpus: Path
    config: Path
    workspace: Path
    stdout: str
    stderr: str


@pytest.fixture(scope="session")
def docs_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation of a few small packages."""
    from pipelines.docs_corpus import write_docs_corpus

    folder = tmp_path_factory.mktemp("docs") / "corpus"
    write_docs_corpus(folder, packages=_PACKAGES, num_queries=20, max_documents=200)
    return folder


@pytest.fixture(scope="session")
def tiny_run(docs_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """The whole job, undisturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    config = write_config(folder, docs_corpus, folder / "work")
    done = tsdae("run", str(config), cwd=folder)
    assert done.returncode == 0, done.stderr
    return TinyRun(docs_corpus, config, folder / "work", done.stdout, done.stderr)
