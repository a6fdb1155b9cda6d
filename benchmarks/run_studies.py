"""Run all studies of configs/studies one after the other, then write one page of their results.

    python benchmarks/run_studies.py --size cpu --out docs/results.md variables.glove=/data/glove.6B.50d.txt

Settings KEY=VALUE go to every study. The main table comes first, since others use its cells. Stopped and
given again, it goes on where it was: cells that are there are not run again. A study that fails does not stop
the others; the exit code is then 1. `--only` takes some of the studies, `--page-only` runs none.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from study_results import results_page

from pipelines.study.raw import STUDY_FILE
from pipelines.study.run_study import study_folder
from pipelines.study.study_file import load_study

ORDER = (
    "main-table",
    "deletion-ratio",
    "noise-type",
    "pooling",
    "tying",
    "decoder-depth",
    "corpus-size",
    "steps",
    "label-efficiency",
    "pre-training",
    "order-of-phases",
    "checkpoint",
)
CONFIGS = Path(__file__).parents[1] / "configs" / "studies"


def command(name: str, *, size: str, overrides: Sequence[str]) -> list[str]:
    """The command line of one study."""
    return [sys.executable, "-m", "pipelines", "study", str(_path(name)), "--size", size, *overrides]


def write_page(names: Sequence[str], out: Path, *, size: str, overrides: Sequence[str]) -> int:
    """Writes the page of those studies that have results; returns how many."""
    places = [study_folder(load_study(_path(name), overrides, size=size), size) for name in names]
    there = [place.local_path for place in places if (place / STUDY_FILE).exists()]
    if there:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(results_page(there), encoding="utf-8")
    return len(there)


def main() -> int:
    """Runs what is asked for; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of every study")
    parser.add_argument("--size", required=True, help="toy, cpu or paper")
    parser.add_argument("--only", default=",".join(ORDER), metavar="STUDY,STUDY", help="some of the studies")
    parser.add_argument("--out", type=Path, default=Path("docs/results.md"), help="the page of results")
    parser.add_argument("--page-only", action="store_true", help="write the page from what is there")
    given = parser.parse_args()
    names = given.only.split(",")
    if unknown := [name for name in names if name not in ORDER]:
        parser.error(f"no study {', '.join(unknown)}; there is {', '.join(ORDER)}")
    failed = []
    for name in [] if given.page_only else names:
        print(f"== {name}", flush=True)
        started_s = time.monotonic()
        code = subprocess.run(
            command(name, size=given.size, overrides=given.overrides), check=False
        ).returncode
        print(f"== {name}: exit code {code}, {(time.monotonic() - started_s) / 60:.1f} minutes", flush=True)
        failed += [name] * (code != 0)
    num = write_page(names, given.out, size=given.size, overrides=given.overrides)
    print(f"{given.out}: {num} studies" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def _path(name: str) -> Path:
    return CONFIGS / f"{name}.yaml"


if __name__ == "__main__":
    sys.exit(main())
