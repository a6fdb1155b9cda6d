"""One Markdown page from the small files of studies: verdicts, tables, claims, seeds, commands, times.

    python benchmarks/study_results.py results/main-table/cpu results/pooling/cpu --out docs/results.md

A folder has `study.json` and `raw/` as a study leaves them in WORKSPACE/NAME/SIZE; nothing else is read, so
equal files give an equal page. Tests that are not kept in `comparisons.json` yet are computed and kept there.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from indexing.evaluation.rank_agreement import judge_ranks, rank_agreement
from indexing.evaluation.report_markdown import escape_markdown
from indexing.evaluation.study_choices import CHOICES_LEGEND
from indexing.evaluation.study_report import StudyReport, claims_legend, study_legend, study_summary
from pipelines.storage import Location
from pipelines.study.raw import read_raw, read_study_file, trained_keys
from pipelines.study.result_claims import TwoScores, two_scores
from pipelines.study.results import build_report

_HEAD = """# Results

Made from the small files of studies by `benchmarks/study_results.py`; do not edit."""
_STS = "stsb"
_RANK_BELOW = 0.7


class _Study(NamedTuple):
    """A study's folder, what it asked, and its report."""

    folder: Path
    asked: dict[str, Any]
    report: StudyReport


def results_page(folders: Sequence[Path], *, about: str = "") -> str:
    """The page, studies in the order given.

    about: Markdown that goes before them: machine, data, what to keep in mind.

    Raises:
        InputError: a folder has no study.
    """
    studies = [_read(folder) for folder in folders]
    lines = [_HEAD, "", *([about.strip(), ""] if about else [])]
    lines += [*_verdicts(studies), *_sts_and_tasks(studies), study_legend("the baseline"), ""]
    if any(study.report.choices for study in studies):
        lines += [CHOICES_LEGEND, ""]
    smallest: float | None = None
    for study in studies:
        report = study.report
        if report.claims and report.smallest_effect != smallest:
            smallest = report.smallest_effect
            lines += [claims_legend(smallest), ""]
        summary = study_summary(report, level=2, legends=False)
        lines += [*summary[:2], *_run(study), "", *summary[2:]]
    return "\n".join(lines).rstrip("\n") + "\n"


def _read(folder: Path) -> _Study:
    place = Location.parse(folder)
    return _Study(folder, read_study_file(place), build_report(place))


def _verdicts(studies: Sequence[_Study]) -> list[str]:
    """Every claim with its verdict, before the figures."""
    rows = [
        f"| {escape_markdown(claim.text)} | {claim.verdict} | {escape_markdown(study.report.title)} |"
        for study in studies
        for claim in study.report.claims
    ]
    return ["| claim | verdict | study |", "|---|---|---|", *rows, ""] if rows else []


def _sts_and_tasks(studies: Sequence[_Study]) -> list[str]:
    """Whether the order on STS is that on the tasks, over the settings of all studies, equal cells once."""
    by_domain: dict[str, dict[frozenset[str], TwoScores]] = {}
    for study in studies:
        keys: dict[tuple[str, str], set[str]] = {}
        for cell in study.asked["cells"]:
            keys.setdefault((cell["setting"], cell["domain"]), set()).add(cell["key"])
        for domain, scores in two_scores(study.asked, study.report.table, _STS).items():
            for found in scores:
                by_domain.setdefault(domain, {})[frozenset(keys[found.setting, domain])] = found
    agreements = [
        rank_agreement(domain, [s.one for s in found.values()], [s.others for s in found.values()])
        for domain, found in by_domain.items()
    ]
    told = [one for one in agreements if one is not None]
    if not told:
        return []
    claim = judge_ranks("", told, below=_RANK_BELOW)
    return [
        f"STS does not predict the tasks (rank correlation of {_STS} with the mean of a domain's tasks below "
        f"{_RANK_BELOW}, over the settings of all studies on this page): {claim.verdict}. {claim.basis}.",
        "",
    ]


def _run(study: _Study) -> list[str]:
    """Command, seeds, time and code of a study."""
    asked = study.asked
    raw = read_raw(Location.parse(study.folder), trained_keys(asked))
    seconds = sum(cell["made"].get("seconds", 0.0) for cell in raw.values())
    code = sorted({cell["made"]["version"] for cell in raw.values()})
    size = f" --size {asked['size']}" if asked["size"] else ""
    return [
        f"`tsdae study configs/studies/{asked['name']}.yaml{size}`; seeds "
        f"{', '.join(map(str, asked['seeds']))}; {len(raw)} cells, {seconds / 60:.1f} minutes to make them, "
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
