"""The small files of a study without running one: what is copied from a cell, kept, compared and shown."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from study_builders import benchmark_module

from indexing.evaluation.pair_rows import PairRow, write_pair_rows
from indexing.evaluation.rows import PerQueryRow, write_rows
from pipelines.storage import Location
from pipelines.study.raw import is_taken, write_raw
from pipelines.study.raw_rows import read_raw_rows, write_raw_rows
from pipelines.study.results import build_report
from pipelines.study.task_scores import CellTask, rows_place, scores_place

SEEDS = (0, 1, 2)
NUM = 150
TUNING = {
    "setting": "better",
    "domain": "d",
    "dev": ["dev"],
    "name": "lr",
    "shared": False,
    "chosen": "0.1",
    "trials": [
        {"value": "0.1", "score": 0.6, "key": "better-0"},
        {"value": "0.2", "score": None, "key": "better-9"},
    ],
}


def rows_of(kind, seed, gain):
    """Rows of a task; a gain makes scores better."""
    rng = np.random.default_rng([seed, len(kind)])
    if kind == "queries":
        return [
            PerQueryRow("s", "t", f"q{i}", "map", float(v), "")
            for i, v in enumerate(rng.random(NUM) * 0.5 + gain)
        ], []
    return [], [
        PairRow(
            "s",
            "t",
            "",
            f"p{i}",
            float(i % 2),
            i % 2,
            float(rng.standard_normal() + (i % 2) * (1 + 4 * gain)),
        )
        for i in range(NUM)
    ]


def write_cell(place, task, kind, seed, gain):
    rows, pairs = rows_of(kind, seed, gain)
    target = rows_place(place, task)
    Path(target.path).parent.mkdir(parents=True, exist_ok=True)
    if rows:
        write_rows(target.filesystem, target.path, rows)
        values = {"map": float(np.mean([row.value for row in rows]))}
    else:
        write_pair_rows(target.filesystem, target.path, pairs)
        values = {"ap": 0.5 + gain + 0.001 * seed}
    scores_place(place, task).write_json(
        {"main_measure": next(iter(values)), "values": values, "is_pairs": not rows}
    )


def job_of(folder, key, tasks):
    return SimpleNamespace(
        key=key,
        tasks=tasks,
        place=Location.parse(folder / "cells" / key),
        cell=SimpleNamespace(score_steps=()),
    )


def task_of(name, key):
    return CellTask(name, None, key)


def write_study_folder(folder, gain=0.05):
    """`better` and `base` on two tasks, three seeds each."""
    cells = []
    tasks = [task_of("queries", "f" * 20), task_of("pairs", "e" * 20)]
    for setting, plus in (("better", gain), ("base", 0.0)):
        for seed in SEEDS:
            job = job_of(folder, f"{setting}-{seed}", tasks)
            for task in tasks:
                write_cell(job.place, task, task.name, seed, plus)
            write_raw(Location.parse(folder), job)
            cells.append({"setting": setting, "domain": "d", "seed": seed, "key": job.key})
    claim = {
        "better": "better", "than": "base", "within": 0.0, "ahead": False, "not_below": 0.0, "task": "",
        "labels_below": 0, "unpredicted_by": "", "rank_below": 0.7,
    }  # fmt: skip
    study = {
        "name": "made-up", "title": "Made up", "about": "", "size": "",
        "seeds": list(SEEDS), "baseline": "base",
        "settings": [{"label": label, "values": {}} for label in ("better", "base")],
        "axes": {"a": [], "b": []}, "cells": cells, "score_steps": [], "smallest_effect": 0.5,
        "columns": [
            {"name": n, "domain": "d", "task": n, "in_mean": True, "published": {"better": 70.0}}
            for n in ("queries", "pairs")
        ],
        "claims": [
            claim | {"text": "above"},
            claim | {"text": "few", "labels_below": 100},
            claim | {"text": "best", "than": "*"},
            claim | {"text": "no worse", "not_below": 1.0},
            claim | {"text": "unlike", "unpredicted_by": "pairs", "better": "", "than": ""},
        ],
        "published_mean": {"better": 71.0}, "max_tokens": [64],
        "tunings": [TUNING],
        "searches": [
            {"domain": "d", "setting": "better", "match": "base", "target": 0.5, "precision": 0.01,
             "num_seeds": 3,
             "trials": [{"number": 0, "score": 0.1, "std": 0.0}, {"number": 64, "score": 0.5, "std": 0.02}],
             "answer": 64, "too_few": 0, "high": 128}
        ],
        "recipe": {}, "overrides": {}, "versions": {},
    }  # fmt: skip
    (folder / "study.json").write_text(json.dumps(study))
    return folder


@pytest.fixture(scope="module")
def studied(tmp_path_factory):
    folder = write_study_folder(tmp_path_factory.mktemp("small"))
    return folder, build_report(Location.parse(folder))


def test_the_mean_and_the_claims_have_tests_over_queries_of_both_kinds_of_tasks(studied):
    _, report = studied
    assert {column for (_, column), cell in report.table.cells.items() if cell.p_value is not None} == {
        "queries", "pairs", "mean",
    }  # fmt: skip
    above, few, best, no_worse, unlike = report.claims
    assert (above.verdict, above.num_seeds) == ("seen", 3)
    assert above.p_value < 0.05
    assert (few.verdict, few.basis) == ("seen", "d: 64 rows")
    assert (best.verdict, best.basis) == ("seen", "seen against base")
    assert no_worse.verdict == "seen"
    assert unlike.verdict == "cannot be told"  # of two settings
    assert report.table.cells["better", "mean"].published == 0.71
    assert report.choices[0].cells[-2:] == ("lr 0.1: 60.0, 0.2: failed", "0.1 *")
    assert any("first 64 tokens" in note for note in report.notes)
    curve = report.curves[0]
    assert (curve.points, curve.spreads) == (((6.0, 50.0),), (2.0,))


def test_kept_comparisons_are_used_again_and_belong_to_the_contents_of_the_tasks(studied, tmp_path):
    folder, report = studied
    written = (folder / "comparisons.json").read_text()
    kept = json.loads(written)
    assert len(kept) == 3  # two columns and the mean; the claim is the mean's
    for value in kept.values():
        value["p_value"] = 0.5
    (folder / "comparisons.json").write_text(json.dumps(kept))
    again = build_report(Location.parse(folder))
    assert again.claims[0].p_value == 0.5
    raw = folder / "raw" / "better-0.json"
    content = json.loads(raw.read_text())
    content["tasks"]["queries"]["fingerprint"] = "d" * 20
    raw.write_text(json.dumps(content))
    changed = build_report(Location.parse(folder))
    assert changed.claims[0].verdict == "cannot be told"
    assert any("other contents of the task" in note for note in changed.notes)
    content["tasks"]["queries"]["fingerprint"] = "f" * 20
    raw.write_text(json.dumps(content))
    (folder / "comparisons.json").write_text(written)
    assert build_report(Location.parse(folder)) == report


def test_a_task_of_other_contents_is_copied_anew(tmp_path):
    folder = Location.parse(tmp_path)
    before, after = task_of("queries", "a" * 20), task_of("queries", "b" * 20)
    for task, gain in ((before, 0.0), (after, 0.2)):
        job = job_of(tmp_path, "cell", [task])
        write_cell(job.place, task, "queries", 0, gain)
        assert not is_taken(folder, job)
        raw = write_raw(folder, job)
        assert is_taken(folder, job)
        assert raw["tasks"]["queries"]["values"]["map"] == pytest.approx(0.25 + gain, abs=0.03)
        (scores,) = read_raw_rows(folder / "raw", "cell", task.key).values()
        assert scores.mean() == pytest.approx(0.25 + gain, abs=0.03)
    assert not is_taken(folder, job_of(tmp_path, "cell", [before]))
    assert raw["made"]["version"].startswith("0.")


def test_rows_come_back_in_order_and_labels_are_kept_once(tmp_path):
    folder = Location.parse(tmp_path)
    _, pairs = rows_of("pairs", 0, 0.1)
    for cell in ("one", "two"):
        write_raw_rows(folder, cell, "t" * 20, [], list(reversed(pairs)))
    found = read_raw_rows(folder, "two", "t" * 20)[""]
    wanted = sorted(pairs, key=lambda row: row.pair_id)
    assert np.array_equal(found.labels, [row.label for row in wanted])
    assert np.array_equal(found.scores, np.float32([row.score for row in wanted]))
    assert sorted(place.name[:4] for place in tmp_path.glob("*.parquet")) == ["one-", "task", "two-"]
    assert (tmp_path / f"one-{'t' * 12}.parquet").stat().st_size < NUM * 4 + 600
    assert read_raw_rows(folder, "absent", "t" * 20) is None


def test_a_page_of_results_is_a_function_of_the_files(studied):
    module = benchmark_module("study_results")
    folder, _ = studied
    page = module.results_page([folder, folder])
    (folder / "comparisons.json").unlink()
    assert module.results_page([folder, folder]) == page
    assert page.count("## Made up") == 2
    assert page.count("| better | d | dev | lr 0.1: 60.0, 0.2: failed | 0.1 \\* |") == 2
    assert "| best | seen | Made up |" in page
    assert "`tsdae study configs/studies/made-up.yaml`; seeds 0, 1, 2; 6 cells, 0.0 minutes" in page
    assert " (70.0)" in page
    assert "| above | seen | +" in page
    assert str(folder) not in page


def test_the_page_beside_copies_of_the_small_files_is_the_same(studied, tmp_path):
    folder, _ = studied
    module, out = benchmark_module("run_studies"), tmp_path / "results.md"
    assert module.write_page(out) == 0
    for _ in range(2):
        module.keep_small_files(folder, tmp_path / "results" / "steps")
    assert module.write_page(out) == 1
    page = benchmark_module("study_results").results_page([folder])
    assert out.read_text() == page
    (tmp_path / "results" / "about.txt").write_text("On two cores.\n")
    module.write_page(out)
    _, first, *_ = page.split("\n\n")
    assert out.read_text() == page.replace(first, f"{first}\n\nOn two cores.", 1)
    kept = sorted(place.name for place in (tmp_path / "results" / "steps" / "raw").iterdir())
    assert kept == sorted(place.name for place in (folder / "raw").glob("*.json"))
