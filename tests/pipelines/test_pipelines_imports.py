"""What a process loads before it is needed: every Ray process of a run pays for it again."""

from __future__ import annotations

import subprocess
import sys

import pytest

_HEAVY = ("torch", "transformers", "mlflow", "ray.train")


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("pipelines.cli.main", (*_HEAVY, "ray", "pyarrow", "faiss")),
        ("pipelines.config_io", (*_HEAVY, "ray", "faiss")),
        # Where Ray's task workers find the functions of the stages.
        (
            "pipelines.prepare_read, pipelines.prepare_gather, pipelines.token_shards, pipelines.stream, "
            "pipelines.embed, pipelines.index_build, pipelines.lookup_tasks, pipelines.evaluation_cell",
            _HEAVY,
        ),
        # The driver of a run whose stages are finished.
        ("pipelines.run, pipelines.cli.summary", _HEAVY),
    ],
)
def test_heavy_libraries_are_imported_where_they_are_called(modules: str, absent: tuple[str, ...]) -> None:
    code = f"import sys, {modules}; print(sorted(set({absent!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
