"""A registered model loaded as on another machine: with its logged code and requirements and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# `-S` keeps site-packages and what its .pth files add off the path, so that nothing comes in beside `Bare`.
_CODE = """
import importlib.machinery, json, sys
spec = json.loads(sys.argv[1])
allowed = set(spec["allowed"])
class Bare(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        found = super().find_spec(name, path, target)
        if found is None or name.partition(".")[0] in allowed:
            return found
        places = [found.origin or "", *(found.submodule_search_locations or ())]
        inside = any(place.startswith(root) for place in places for root in spec["packages"])
        return None if inside else found
sys.meta_path[:] = [Bare if f is importlib.machinery.PathFinder else f for f in sys.meta_path]
sys.path += spec["packages"]
import mlflow.pyfunc, numpy as np
model = mlflow.pyfunc.load_model(spec["model"])
np.save(spec["output"], np.asarray(model.predict(spec["texts"])))
import tsdae_core
for name in spec["absent"]:
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    sys.exit(f"{name} can be imported")
assert not tsdae_core.__file__.startswith(spec["ours"]), tsdae_core.__file__
"""


def reachable(requirements: Sequence[str]) -> set[str]:
    """The distributions that pip would install for these requirements, by canonical name."""
    found: set[tuple[str, str]] = set()
    waiting = [Requirement(line) for line in requirements]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        for extra in ("", *wanted.extras):
            if (name, extra) in found:
                continue
            found.add((name, extra))
            for line in metadata.requires(name) or ():
                needed = Requirement(line)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    waiting.append(needed)
    return {name for name, _ in found}


def importable(requirements: Sequence[str]) -> set[str]:
    """The top-level modules of the reachable distributions."""
    there = reachable(requirements)
    return {
        module
        for module, owners in metadata.packages_distributions().items()
        if there & {canonicalize_name(owner) for owner in owners}
    }


def predict_bare(
    model_uri: str, tracking_uri: str, texts: Sequence[str], *, requirements: Sequence[str], folder: Path
) -> NDArray[Any]:
    """What the registered model answers in a process that can import its requirements and no package besides.

    requirements: lines of the logged requirements.txt.
    """
    root = Path(__file__).resolve().parents[1]
    packages = {
        str(Path(metadata.distribution(name).locate_file("")).resolve()) for name in ("mlflow", "torch")
    }
    allowed = importable(requirements)
    absent = [
        name for name in ("ray", "faiss", "pipelines", "indexing", "typer", "bm25s") if name not in allowed
    ]
    assert len(absent) >= 5, "the requirements bring what a model does not need"
    output = folder / "vectors.npy"
    spec = {
        "allowed": sorted(allowed),
        "packages": sorted(packages),
        "absent": absent,
        "model": model_uri,
        "texts": list(texts),
        "output": str(output),
        "ours": str(root),
    }
    environment = {**os.environ, "MLFLOW_TRACKING_URI": tracking_uri}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "-S", "-c", _CODE, json.dumps(spec)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    vectors: NDArray[Any] = np.load(output)
    return vectors


def logged_requirements(client: Any, name: str, alias: str) -> list[str]:
    """The lines of the requirements.txt that was logged with the version at an alias."""
    import mlflow.artifacts

    version = client.get_model_version_by_alias(name, alias)
    text: str = mlflow.artifacts.load_text(f"models:/{name}/{version.version}/requirements.txt")
    return [line for line in text.splitlines() if line.strip()]
