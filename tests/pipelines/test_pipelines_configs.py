"""Every shipped recipe runs as it stands, on toy files as it expects them and a toy checkpoint of its family.

Only the steps are cut down. Trainings go through all stages up to the encoder, tables of untrained systems to
the report; both in this process.
"""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import index_builders
import numpy as np
import pytest
from checkpoint_builders import FAMILIES, write_checkpoints
from labelled_builders import labelled_rows, prepare_and_train, sentences, write_labels
from pipeline_builders import quiet_reporter, write_rows
from shard_builders import run_shards_here
from study_runs import CellsHere
from train_here import SilentTracker, without_ray

from pipelines.config_io import load_config
from pipelines.configured_systems import evaluate_systems
from pipelines.prepare import prepare
from pipelines.storage import Location
from pipelines.study import run_study as run_study_module
from pipelines.study.run_study import run_study
from pipelines.study.study_file import is_study, load_study
from tests.indexing.evaluation.useb_builders import WORDS, write_all
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.scratch import train_tokenizer
from tsdae_core.sent2vec_config import Sent2VecConfig

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted([*CONFIGS.glob("paper/*.yaml"), *CONFIGS.glob("recipes/*.yaml")])
STUDIES = [path for path in FILES if is_study(path)]
SHIPPED = [path for path in FILES if path not in STUDIES]


def name_of(path):
    return f"{path.parent.name}/{path.stem}"


def write_useb_training(folder):
    for domain in ("askubuntu", "cqadupstack", "scidocs", "twitter"):
        place = folder / domain
        for part in ("unsupervised", "supervised"):
            (place / part).mkdir(parents=True)
        (place / "unsupervised/train.txt").write_text("\n".join(sentences(60)) + "\n")
        rows = labelled_rows("pairs")
        columns = dict(zip(("org", "para", "lbl"), zip(*rows, strict=True), strict=True))
        if domain == "twitter":
            columns |= {"s1": columns["org"], "s2": columns["para"]}
        for ending, lines in columns.items():
            (place / f"supervised/train.{ending}").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The files that the recipes name, in the places where they look for them."""
    folder = tmp_path_factory.mktemp("data")
    write_all(folder / "data/useb/data-eval")
    write_useb_training(folder / "data/useb/data-train")
    write_rows(folder / "data/sentences/a.txt", [(text,) for text in sentences(60)])
    triplets = [
        (*row, text) for row, text in zip(labelled_rows("ranking"), sentences(60, seed=7), strict=True)
    ]
    write_rows(folder / "data/nli/triplets.jsonl.gz", triplets, ("anchor", "positive", "negative"))
    write_rows(folder / "data/documents/a.txt", [(text,) for text in sentences(30, seed=8)])
    write_labels(folder / "data/nli.jsonl", "nli")
    write_labels(folder / "data/stsb/train.csv", "sts")
    write_labels(folder / "data/pairs/train/a.tsv", "pairs")
    dev = ["sentence1\tsentence2\tlabel", *map("\t".join, labelled_rows("pairs", 20, seed=4))]
    (folder / "data/pairs/dev.tsv").write_text("\n".join(dev) + "\n")
    rng = np.random.default_rng(0)
    lines = [f"{word} {' '.join(f'{v:.3f}' for v in rng.standard_normal(8))}\n" for word in WORDS]
    (folder / "data/glove.840B.300d.txt").write_text("".join(lines))
    (folder / "use_large.py").write_text("from tests.indexing.evaluation.useb_builders import encode\n")
    write_checkpoints(folder, train_tokenizer([*sentences(60), *WORDS], vocab_size=80))
    return folder


@pytest.fixture(autouse=True)
def here(data, monkeypatch):
    monkeypatch.chdir(data)
    monkeypatch.syspath_prepend(str(data))
    index_builders.without_ray(monkeypatch)
    found = without_ray(monkeypatch)
    monkeypatch.setattr("pipelines.comparison.run_shards", run_shards_here)
    monkeypatch.setattr("pipelines.configured_systems.Tracker", type("Off", (), {"of": lambda *_: None}))
    return found


def shortened(config):
    """Two steps; one workspace for all of a pooling, so that equal phases are trained once."""

    def short(train):
        labels = train.labels
        if labels is not None and labels.generate is not None:
            few = {"num_queries": 8, "queries_per_passage": 1, "max_query_tokens": 6}
            few = replace(labels.generate, **few, mining_depth=9, negatives_per_query=6)
            labels = replace(labels, generate=few)
        size = min(train.batch_size, 32)
        return replace(train, num_steps=2, batch_size=size, num_lanes=0, labels=labels)

    phases = tuple(replace(phase, train=short(phase.train)) for phase in config.phases)
    train = phases[-1].train if phases else short(config.train)
    return replace(config, workspace=f"work/{config.model.pooling}", phases=phases, train=train)


def weights(folder):
    """The encoder's weights by name."""
    return {name: value.numpy() for name, value in SentenceEncoder.load(folder).backbone.state_dict().items()}


def small_system(system):
    return replace(system, sent2vec=Sent2VecConfig(dim=8)) if system.kind == "sent2vec" else system


TRAINED = [path for path in SHIPPED if "systems:" not in path.read_text()]
UNTRAINED = [path for path in SHIPPED if path not in TRAINED]


@pytest.mark.parametrize("path", TRAINED, ids=name_of)
def test_a_training_runs_as_it_stands(path):
    config = shortened(load_config(path))
    manifest, _ = prepare_and_train(config)
    assert manifest.counts["steps"] in (1, 2)
    work = Path(config.workspace)
    first = work / "phases" / config.phases[0].name if config.phases else work
    family = json.loads((first / "start/config.json").read_text())["model_type"]
    assert family == FAMILIES[config.model.start]
    log = json.loads((work / "encoder/training_log.json").read_text())
    assert np.isfinite([value for key in ("losses", "validation_losses") for _, value in log[key]]).all()
    assert (config.train.early_stopping.task is not None) == bool(log["task_scores"])
    before, after = (weights(work / name) for name in ("start", "encoder"))
    assert before.keys() == after.keys()
    moved = any(not np.array_equal(after[name], value) for name, value in before.items())
    assert moved == (log["kept_step"] > 0)
    for phase in config.phases[:-1]:
        assert (work / f"phases/{phase.name}/encoder/manifest.json").exists()


@pytest.mark.parametrize("path", UNTRAINED, ids=name_of)
def test_a_table_of_untrained_systems_runs_as_it_stands(path):
    config = replace(load_config(path), workspace=f"work/{path.stem}")
    small = tuple(small_system(system) for system in config.evaluate.systems)
    config = replace(config, evaluate=replace(config.evaluate, systems=small))
    reporter, _ = quiet_reporter()
    workspace = Location.parse(config.workspace)
    if config.evaluate.needs_corpus:
        prepare("corpus", config.corpus, workspace, reporter=reporter)
    done = evaluate_systems(config, workspace, reporter=reporter)
    content = json.loads((Path(done.folder.path) / "report.json").read_text())
    names = {system.name for system in config.evaluate.systems}
    # What is fitted on a domain's text is scored on that domain alone; a mean is of the paper's four.
    assert len(content["tasks"]) == (1 if config.evaluate.needs_corpus else 4)
    if not config.evaluate.needs_corpus:
        assert set(content["mean_of_main_scores"]) == names
        assert all(0 < value <= 1 for value in content["mean_of_main_scores"].values())


def test_a_recipe_that_names_its_objective_alone_is_recorded_with_the_settings_in_force(here):
    """In the training's fingerprint, which is made of what its manifest shows, and in MLflow."""
    text = (
        "corpus: {input: data/sentences}\nmodel: {start: bert-base-uncased}\n"
        "train: {objective: mlm, num_steps: 2, validation_rows: 8}\nworkspace: work/plain\n"
    )
    Path("plain.yaml").write_text(text)
    manifest, _ = prepare_and_train(load_config("plain.yaml"))
    assert (manifest.config["optim"]["lr"], manifest.config["batch_size"]) == (5e-5, 8)
    start = json.loads(Path("work/plain/start/manifest.json").read_text())
    assert start["config"]["model"]["pooling"] == "mean"
    assert here.tracker.params["train.optim.lr"] == "5e-05"
    assert here.tracker.params["model.pooling"] == "mean"
    explicit = ["model.pooling=mean", "train.optim.lr=5e-5", "train.batch_size=8"]
    again, told = prepare_and_train(load_config("plain.yaml", explicit))
    assert "train: up to date" in told
    assert again.fingerprint == manifest.fingerprint


@pytest.fixture
def _studies_here(monkeypatch):
    """A study in this process, without Ray and MLflow."""
    monkeypatch.setattr(run_study_module, "connected", lambda *_, **__: nullcontext())
    monkeypatch.setattr(run_study_module, "run_cells", CellsHere())
    silent = SimpleNamespace(of=lambda *_: SilentTracker())
    monkeypatch.setattr(run_study_module, "Tracker", silent)
    monkeypatch.setattr(run_study_module, "StudyRuns", lambda *_, **__: SilentTracker())


@pytest.mark.usefixtures("_studies_here")
@pytest.mark.parametrize("path", STUDIES, ids=name_of)
def test_a_study_over_the_four_domains_reports_their_mean(path):
    """Of the rows, one of each kind: a training, several, and none."""
    kept = ("TSDAE", "NLI and STS, then SimCSE", "BM25")
    there = load_study(path, size="toy").axes.get("method", {})
    left_out = [f"axes.method.{name}=null" for name in there if name not in kept]
    reporter, _ = quiet_reporter()
    study = load_study(path, ["baseline=''", *left_out], size="toy")
    report = run_study(study, size="toy", reporter=reporter)
    assert set(report.table.settings) == (set(kept) if there else {"SBERT, in domain"})
    columns = [column.name for column in report.table.columns]
    assert len(columns) == 4
    for setting in report.table.settings:
        means = [report.table.cells[setting, name].mean for name in columns]
        assert all(0 < mean <= 1 for mean in means)
        assert report.table.cells[setting, "mean"].mean == pytest.approx(np.mean(means))
