"""Which code is at work: the installed version, and the commit where it runs from a checkout."""

from __future__ import annotations

import functools
import importlib.metadata
import subprocess
from pathlib import Path

_TIMEOUT_S = 10.0


@functools.lru_cache(maxsize=1)
def code_version() -> str:
    """As `0.1.0+COMMIT`, the commit with `-dirty` for changed files; without it outside of a checkout."""
    version = importlib.metadata.version("tsdae-ray")
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        return version
    try:
        found = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude", "*"],
            capture_output=True,
            text=True,
            check=True,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return version
    return f"{version}+{found.stdout.strip()}"
