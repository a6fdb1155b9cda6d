"""The verdicts on a study's claims, from its table, its comparisons over queries and its searches.

Owns how a claim of the configuration becomes questions. The rules are in `indexing.evaluation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from indexing.evaluation.rank_agreement import judge_ranks, rank_agreement
from indexing.evaluation.study_claims import (
    JudgedClaim,
    LabelsFound,
    Question,
    judge_all,
    judge_labels,
    judge_together,
)
from indexing.evaluation.study_table import MEAN, StudyTable
from pipelines.study.claim_config import ALL_OTHERS
from pipelines.study.comparisons import Comparisons

# Columns by name; the mean has all that count.
Groups = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class TwoScores:
    """A setting on a domain: its score on one task, and on those that count for the mean."""

    setting: str
    one: float
    others: float


def judged_claims(
    study: Mapping[str, Any], table: StudyTable, comparisons: Comparisons, groups: Groups
) -> tuple[JudgedClaim, ...]:
    """The claims in the order of the study."""
    asked = [_questions(claim, table.settings) for claim in study["claims"]]
    flat = [question for questions in asked for question in questions]
    found = {
        one.compared: comparison
        for one in flat
        if one.column in groups and (comparison := comparisons.of(one.better, one.than, groups[one.column]))
    }
    judged = iter(judge_all(table, flat, found, smallest=study["smallest_effect"] / 100))
    verdicts = []
    for claim, questions in zip(study["claims"], asked, strict=True):
        mine = [next(judged) for _ in questions]
        if claim["unpredicted_by"]:
            verdicts.append(_ranks(claim, study, table))
        elif claim["labels_below"]:
            verdicts.append(_labels(claim, study["searches"]))
        elif claim["than"] == ALL_OTHERS:
            verdicts.append(judge_together(claim["text"], [q.than for q in questions], mine))
        else:
            verdicts += mine
    return tuple(verdicts)


def two_scores(study: Mapping[str, Any], table: StudyTable, task: str) -> dict[str, list[TwoScores]]:
    """By domain what each setting got on a task and, as a mean, on those that count, where it has both."""
    found: dict[str, list[TwoScores]] = {}
    for domain in dict.fromkeys(column["domain"] for column in study["columns"]):
        columns = [column for column in study["columns"] if column["domain"] == domain]
        ones = [column["name"] for column in columns if column["task"] == task]
        others = [column["name"] for column in columns if column["in_mean"] and column["task"] != task]
        if not ones or not others:
            continue
        cells = table.cells
        found[domain] = [
            TwoScores(
                setting,
                cells[setting, ones[0]].mean,
                sum(cells[setting, name].mean for name in others) / len(others),
            )
            for setting in table.settings
            if all((setting, name) in cells for name in (*ones, *others))
        ]
    return found


def _questions(claim: Mapping[str, Any], settings: Sequence[str]) -> list[Question]:
    if claim["unpredicted_by"] or claim["labels_below"]:
        return []
    others = [name for name in settings if name != claim["better"]]
    return [
        Question(
            text=claim["text"],
            better=claim["better"],
            than=than,
            within=claim["within"] / 100,
            ahead=claim["ahead"],
            not_below=claim["not_below"] / 100,
            column=claim["task"] or MEAN,
        )
        for than in (others if claim["than"] == ALL_OTHERS else [claim["than"]])
    ]


def _ranks(claim: Mapping[str, Any], study: Mapping[str, Any], table: StudyTable) -> JudgedClaim:
    found = [
        rank_agreement(domain, [s.one for s in scores], [s.others for s in scores])
        for domain, scores in two_scores(study, table, claim["unpredicted_by"]).items()
    ]
    told = [one for one in found if one is not None]
    return judge_ranks(claim["text"], told, below=claim["rank_below"])


def _labels(claim: Mapping[str, Any], searches: Sequence[Mapping[str, Any]]) -> JudgedClaim:
    found = [
        LabelsFound(
            domain=search["domain"],
            answer=search["answer"],
            too_few=search["too_few"],
            high=search["high"],
            is_judged=search["num_seeds"] > 1,
        )
        for search in searches
        if search["setting"] == claim["better"]
    ]
    return judge_labels(claim["text"], found, below=claim["labels_below"])
