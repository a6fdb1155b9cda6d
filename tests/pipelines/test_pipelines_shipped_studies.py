"""The shipped studies: every grid is whole in every size. Their cells run in test_pipelines_study."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from study_builders import benchmark_module

from pipelines.config_io import load_config, read_tree
from pipelines.study.grid import cells_of
from pipelines.study.raw import study_columns
from pipelines.study.study_file import is_study, load_study, study_sizes
from pipelines.study.tuning import tunings_of

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs" / "studies"
STUDIES = sorted(path for path in CONFIGS.glob("*.yaml") if is_study(path))
SHIPPED = [path for path in STUDIES if path.stem != "common"]
# Settings of a study and the recipe of configs/paper that has the same row.
SAME_ROWS = [
    ("main-table", "TSDAE", "tsdae"),
    ("main-table", "MLM", "mlm"),
    ("main-table", "CT", "ct"),
    ("main-table", "SimCSE", "simcse"),
    ("steps", "CT", "ct"),
    ("steps", "SimCSE", "simcse"),
    ("checkpoint", "DistilBERT, TSDAE", "tsdae-distilbert"),
    ("checkpoint", "RoBERTa, TSDAE", "tsdae-roberta"),
    ("checkpoint", "DistilRoBERTa, TSDAE", "tsdae-distilroberta"),
    ("checkpoint", "ELECTRA, TSDAE", "tsdae-electra"),
    ("tying", "tie scratch", "tsdae-scratch-decoder"),
    ("order-of-phases", "labels only", "sbert-nli-stsb"),
    ("order-of-phases", "TSDAE, then labels", "tsdae-to-nli-sts"),
    ("order-of-phases", "labels, then TSDAE", "nli-sts-to-tsdae"),
    ("order-of-phases", "MLM, then labels", "mlm-to-nli-sts"),
    ("order-of-phases", "labels, then MLM", "nli-sts-to-mlm"),
    ("label-efficiency", "TSDAE", "tsdae"),
    ("label-efficiency", "SBERT", "sbert-in-domain-askubuntu"),
    ("label-efficiency", "SBERT", "sbert-in-domain-cqadupstack"),
    ("label-efficiency", "SBERT", "sbert-in-domain-scidocs"),
    ("label-efficiency", "SBERT", "sbert-in-domain-twitterpara"),
    ("pre-training", "nothing", "sbert-in-domain-twitterpara"),
]


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_has_three_sizes_and_its_cells_differ_where_they_should(path):
    assert set(study_sizes(path)) == {"toy", "cpu", "paper"}
    assert read_tree(path)["name"] == path.stem
    for size in study_sizes(path):
        study = load_study(path, size=size)
        cells = cells_of(study)
        asked = [(cell.config, cell.system, cell.domain) for cell in cells]
        assert all(one not in asked[:i] for i, one in enumerate(asked)), size
        columns = {column["name"] for column in study_columns(study)}
        assert {claim.task for claim in study.claims} <= {"", *columns}, size
        if size != "toy":
            assert len({cell.seed for cell in cells}) >= 3


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_method_is_searched_alike_at_cpu_size_and_none_at_the_papers(path):
    study = load_study(path, size="cpu")
    tunings = tunings_of(study)
    trained = {cell.setting.label for cell in cells_of(study) if cell.system.trains}
    assert {tuning.setting for tuning in tunings} == ({study.tune.share} if study.tune.share else trained)
    rates = (1e-5, 3e-5, 1e-4) if path.stem == "tuned-start" else (5e-5, 2e-4, 8e-4)
    assert {tuple(trial.value for trial in tuning.trials) for tuning in tunings} == {rates}
    assert {tuning.domain for tuning in tunings} == set(study.domains)
    for domain in study.domains.values():
        assert not set(domain.dev) & set(domain.tasks)
    assert load_study(path, size="paper").tune is None


@pytest.mark.parametrize(
    "name", ["deletion-ratio", "pooling", "tying", "decoder-depth", "corpus-size", "steps"]
)
def test_what_another_study_searches_the_main_table_has_trained_already(name):
    known, asked = (
        {
            (repr(without_speed(trial.cell.config)), tuning.domain)
            for tuning in tunings_of(load_study(CONFIGS / f"{study}.yaml", size="cpu"))
            for trial in tuning.trials
        }
        for study in ("main-table", name)
    )
    assert known & asked
    if load_study(CONFIGS / f"{name}.yaml", size="cpu").tune.share:
        assert asked <= known


def without_speed(config):
    """Without what tells where and how fast a training runs, or what it only logs."""
    same = {"gpus_per_worker": 0.0, "cpus_per_worker": 1.0, "checkpoint_every": 1, "validate_every": 1}
    return replace(config, train=replace(config.train, **same))


@pytest.mark.parametrize(("study", "label", "recipe"), SAME_ROWS)
def test_rows_at_the_papers_size_are_those_of_the_papers_recipes(study, label, recipe):
    cells = cells_of(load_study(CONFIGS / f"{study}.yaml", size="paper"))
    *_, last = recipe.partition("sbert-in-domain-")
    domain = last.removesuffix("para") or "askubuntu"
    mine = next(cell for cell in cells if (cell.setting.label, cell.domain) == (label, domain))
    paper = load_config(ROOT / "configs" / "paper" / f"{recipe}.yaml")
    assert mine.config.model == paper.model
    assert mine.config.corpus.input == paper.corpus.input
    same = {"gpus_per_worker": 0.0, "cpus_per_worker": 1.0}
    ours = [replace(part.train, **same) for _, part in mine.trainings]
    assert ours == ([phase.train for phase in paper.phases] or [paper.train])


def test_the_papers_size_has_the_four_tasks_of_useb():
    study = load_study(CONFIGS / "main-table.yaml", size="paper")
    counted = [
        task for domain in study.domains.values() for task in domain.tasks if study.tasks[task].in_mean
    ]
    assert {study.tasks[task].kind for task in counted} == {
        "askubuntu", "cqadupstack", "twitterpara", "scidocs",
    }  # fmt: skip
    assert len(counted) == 4
    assert study.published_mean["TSDAE"] == 55.2


def test_a_corpus_size_is_seen_whole():
    for size in ("cpu", "paper"):
        for cell in cells_of(load_study(CONFIGS / "corpus-size.yaml", size=size)):
            train = cell.config.train
            assert train.num_steps * train.batch_size >= train.max_rows


def test_one_command_runs_all_studies():
    module = benchmark_module("run_studies")
    assert sorted(module.ORDER) == [path.stem for path in SHIPPED]
    line = module.command("steps", size="toy", overrides=["a=b"])
    assert line[1:3] == ["-m", "pipelines"]
    assert line[-3:] == ["--size", "toy", "a=b"]


def test_the_published_page_is_what_the_small_files_beside_it_give(tmp_path):
    shutil.copytree(ROOT / "docs" / "results", tmp_path / "results")
    assert benchmark_module("run_studies").write_page(tmp_path / "results.md") > 0
    assert (tmp_path / "results.md").read_text() == (ROOT / "docs" / "results.md").read_text()
