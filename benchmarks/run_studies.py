"""Run all studies of configs/studies one after the other, keep their small files, write one page from them.

    python benchmarks/run_studies.py --size cpu --out docs/results.md variables.glove=/data/glove.6B.50d.txt

Settings KEY=VALUE go to every study. The main table comes first, since others use its cells. Stopped and
given again, it goes on where it was: cells that are there are not run again. A study that fails does not stop
the others; the exit code is then 1. `--only` takes some of the studies, `--page-only` runs none.

The small files are copied beside the page, for docs/results.md into docs/results/NAME. The page is made from
these copies alone, of whatever studies are there, and begins with about.txt beside them, if that is there. So
it can be made again without workspace or data:

    python benchmarks/run_studies.py --size cpu --page-only --out docs/results.md
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from study_results import results_page

from pipelines.study.comparisons import KEPT_NAME
from pipelines.study.raw import RAW_FOLDER, STUDY_FILE, trained_keys
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
    "tuned-start",
)
CONFIGS = Path(__file__).parents[1] / "configs" / "studies"


def command(name: str, *, size: str, overrides: Sequence[str]) -> list[str]:
    """The command line of one study."""
    return [sys.executable, "-m", "pipelines", "study", str(_path(name)), "--size", size, *overrides]


def keep_small_files(source: Path, target: Path) -> None:
    """Copies of a study's folder what its tables are made from, in place of what was there.

    Not the scores by query and pair, which are larger: the tests over them are kept.
    """
    shutil.rmtree(target, ignore_errors=True)
    (target / RAW_FOLDER).mkdir(parents=True)
    for name in (STUDY_FILE, KEPT_NAME):
        shutil.copy(source / name, target / name)
    for key in trained_keys(json.loads((source / STUDY_FILE).read_text())):
        place = source / RAW_FOLDER / f"{key}.json"
        if place.exists():  # a cell that failed has none
            shutil.copy(place, target / RAW_FOLDER / place.name)


def write_page(out: Path) -> int:
    """Writes the page of the studies whose small files are beside it; returns how many."""
    folder = out.with_suffix("")
    there = [folder / name for name in ORDER if (folder / name / STUDY_FILE).exists()]
    about = folder / "about.txt"
    if there:
        text = about.read_text(encoding="utf-8") if about.exists() else ""
        out.write_text(results_page(there, about=text), encoding="utf-8")
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
        folder = study_folder(load_study(_path(name), given.overrides, size=given.size), given.size)
        if (folder / KEPT_NAME).exists():
            keep_small_files(folder.local_path, given.out.with_suffix("") / name)
    num = write_page(given.out)
    print(f"{given.out}: {num} studies" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def _path(name: str) -> Path:
    return CONFIGS / f"{name}.yaml"


if __name__ == "__main__":
    sys.exit(main())
