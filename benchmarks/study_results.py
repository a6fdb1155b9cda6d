"""One Markdown page from the small files of studies: tables, claims, seeds, commands, times.

    python benchmarks/study_results.py results/main-table/cpu results/pooling/cpu --out docs/results.md

A folder has `study.json` and `raw/` as a study leaves them in WORKSPACE/NAME/SIZE; nothing else is read, so
equal files give an equal page. Tests that are not kept in `comparisons.json` yet are computed and kept there.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from indexing.evaluation.study_report import claims_legend, study_legend, study_summary
from pipelines.storage import Location
from pipelines.study.raw import read_raw, read_study_file
from pipelines.study.results import build_report

_HEAD = """# Results

Made from the small files of the studies by `python benchmarks/study_results.py`; do not edit."""


def results_page(folders: Sequence[Path]) -> str:
    """The page, studies in the order given.

    Raises:
        InputError: a folder has no study.
    """
    lines = [_HEAD, "", study_legend("the baseline"), ""]
    smallest: float | None = None
    for folder in folders:
        report = build_report(Location.parse(folder))
        if report.claims and report.smallest_effect != smallest:
            smallest = report.smallest_effect
            lines += [claims_legend(smallest), ""]
        summary = study_summary(report, level=2, legends=False)
        lines += [*summary[:2], *_run(folder), "", *summary[2:]]
    return "\n".join(lines).rstrip("\n") + "\n"


def _run(folder: Path) -> list[str]:
    """Command, seeds, time and code of a study."""
    study = read_study_file(Location.parse(folder))
    raw = read_raw(Location.parse(folder), [cell["key"] for cell in study["cells"]])
    seconds = sum(cell["made"].get("seconds", 0.0) for cell in raw.values())
    code = sorted({cell["made"]["version"] for cell in raw.values()})
    size = f" --size {study['size']}" if study["size"] else ""
    return [
        f"`tsdae study configs/studies/{study['name']}.yaml{size}`; seeds "
        f"{', '.join(map(str, study['seeds']))}; {len(raw)} cells, {seconds / 60:.1f} minutes to make them, "
        f"added up; code {', '.join(code) or 'unknown'}."
    ]


def main() -> None:
    """Writes the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, help="folders of studies, in the page's order")
    parser.add_argument("--out", type=Path, required=True, help="the page, e.g. docs/results.md")
    given = parser.parse_args()
    given.out.write_text(results_page(given.folders), encoding="utf-8")
    print(f"{given.out}: {len(given.folders)} studies")


if __name__ == "__main__":
    main()
