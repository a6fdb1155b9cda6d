"""Every shipped recipe runs as it stands, on toy files laid out as it expects them and a toy checkpoint.

Only the steps are cut down. Trainings go through all stages up to the encoder, tables of untrained systems to
the report; both in this process.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from labelled_builders import SCRATCH, labelled_rows, prepare_and_train, sentences, write_labels
from pipeline_builders import quiet_reporter, write_rows
from safetensors.numpy import load_file
from shard_builders import run_shards_here
from train_here import without_ray

from pipelines.config_io import load_config
from pipelines.configured_systems import evaluate_systems
from pipelines.prepare import prepare
from pipelines.storage import Location
from tests.indexing.evaluation.useb_builders import WORDS, write_all
from tsdae_core.scratch import build_scratch_encoder, train_tokenizer

CONFIGS = Path(__file__).parents[2] / "configs"
SHIPPED = sorted([*CONFIGS.glob("paper/*.yaml"), *CONFIGS.glob("recipes/*.yaml")])
CHECKPOINTS = (
    *("bert-base-uncased", "distilbert-base-uncased", "roberta-base", "distilroberta-base", "t5-base"),
    *("google/electra-base-discriminator", "facebook/bart-base", "sentence-transformers/all-MiniLM-L6-v2"),
)


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
    write_labels(folder / "data/nli.jsonl", "nli")
    write_labels(folder / "data/stsb/train.csv", "sts")
    write_labels(folder / "data/pairs/train/a.tsv", "pairs")
    dev = ["sentence1\tsentence2\tlabel", *map("\t".join, labelled_rows("pairs", 20, seed=4))]
    (folder / "data/pairs/dev.tsv").write_text("\n".join(dev) + "\n")
    rng = np.random.default_rng(0)
    lines = [f"{word} {' '.join(f'{v:.3f}' for v in rng.standard_normal(8))}\n" for word in WORDS]
    (folder / "data/glove.840B.300d.txt").write_text("".join(lines))
    (folder / "use_large.py").write_text("from tests.indexing.evaluation.useb_builders import encode\n")
    texts = [*sentences(60), *WORDS]
    encoder = build_scratch_encoder(SCRATCH, train_tokenizer(texts, vocab_size=80), pooling="cls", seed=0)
    for name in CHECKPOINTS:
        encoder.save(folder / name)
    return folder


@pytest.fixture(autouse=True)
def here(data, monkeypatch):
    monkeypatch.chdir(data)
    monkeypatch.syspath_prepend(str(data))
    found = without_ray(monkeypatch)
    monkeypatch.setattr("pipelines.comparison.run_shards", run_shards_here)
    monkeypatch.setattr("pipelines.configured_systems.Tracker", type("Off", (), {"of": lambda *_: None}))
    return found


def shortened(config):
    """Two steps; one workspace for all of a pooling, so that equal phases are trained once."""

    def short(train):
        return replace(train, num_steps=2, batch_size=min(train.batch_size, 32), num_lanes=0)

    phases = tuple(replace(phase, train=short(phase.train)) for phase in config.phases)
    train = phases[-1].train if phases else short(config.train)
    return replace(config, workspace=f"work/{config.model.pooling}", phases=phases, train=train)


def weights(folder):
    """The encoder's weights by name, whatever stands before it with and without a head."""
    found = load_file(folder / "model.safetensors")
    return {name.removeprefix("bert."): found[name] for name in found if not name.startswith("cls.")}


TRAINED = [path for path in SHIPPED if "systems:" not in path.read_text()]
UNTRAINED = [path for path in SHIPPED if path not in TRAINED]


@pytest.mark.parametrize("path", TRAINED, ids=name_of)
def test_a_training_runs_as_it_stands(path):
    config = shortened(load_config(path))
    manifest, _ = prepare_and_train(config)
    assert manifest.counts["steps"] in (1, 2)
    work = Path(config.workspace)
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


def test_there_is_a_recipe_for_every_row_of_the_papers_tables():
    found = {path.stem: load_config(path) for path in CONFIGS.glob("paper/*.yaml")}
    main = {"tsdae", "mlm", "ct", "simcse", "bert-flow", "bm25", "glove", "sent2vec", "bert", "use-large"}
    main |= {"sbert-nli", "sbert-nli-stsb"}
    domains = ("askubuntu", "cqadupstack", "scidocs", "twitterpara")
    main |= {f"sbert-in-domain-{name}" for name in domains}
    main |= {
        name
        for kind in ("tsdae", "mlm", "ct", "simcse")
        for name in (f"{kind}-to-nli-sts", f"nli-sts-to-{kind}")
    }
    checkpoints = ("distilbert", "roberta", "distilroberta", "electra", "bart", "t5", "scratch-decoder")
    assert set(found) == main | {f"tsdae-{name}" for name in checkpoints}
    rates = {name: config.train.optim.lr for name, config in found.items()}
    assert {
        rates[name] for name in found if name == "tsdae" or name.removeprefix("tsdae-") in checkpoints
    } == {3e-5}
    assert (rates["mlm"], rates["ct"], rates["simcse"]) == (5e-5, 1e-5, 5e-5)
    assert (found["simcse"].train.batch_size, found["simcse"].train.num_epochs) == (512, 1)
    ct = found["ct"].train
    assert (ct.batch_size, ct.lanes, ct.optim.optimizer, ct.loss_unit) == (16, 2, "rmsprop", "pair")
    for domain in domains:
        train = found[f"sbert-in-domain-{domain}"].train
        assert (train.num_epochs, train.num_steps, train.batch_size) == (10, 20_000, 64)
        assert train.keep == "best"
        assert train.early_stopping.patience > 0
