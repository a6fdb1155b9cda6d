"""`configs/paper` says what the paper says: checkpoint, pooling, rate, batch and length of every row."""

from pathlib import Path

import pytest

from pipelines.config_io import load_config
from pipelines.study.grid import cells_of
from pipelines.study.study_file import is_study, load_study
from tsdae_core.flow_config import FlowConfig
from tsdae_core.sent2vec_config import Sent2VecConfig

PAPER = Path(__file__).parents[2] / "configs" / "paper"
BERT = "bert-base-uncased"
TASKS = ("askubuntu", "cqadupstack", "twitterpara", "scidocs")
DOMAINS = dict(zip(("askubuntu", "cqadupstack", "twitter", "scidocs"), TASKS, strict=True))

# Objective, batch size, steps, passes, optimizer, rate, schedule.
TSDAE = ("tsdae", 8, 100_000, 0, "adamw", 3e-5, "constant")
MLM = ("mlm", 8, 100_000, 0, "adamw", 5e-5, "constant")
CT = ("ct", 16, 100_000, 0, "rmsprop", 1e-5, "piecewise")
SIMCSE = ("simcse", 512, 100_000, 1, "adamw", 5e-5, "constant")
NLI = ("ranking", 64, 100_000, 1, "adamw", 2e-5, "linear")
STS = ("sts", 16, 100_000, 4, "adamw", 2e-5, "linear")
RANKING = ("ranking", 64, 20_000, 10, "adamw", 2e-5, "linear")
PAIRS = ("pairs", 64, 20_000, 10, "adamw", 2e-5, "linear")

# Checkpoint, pooling, trainings one after the other.
TRAINED = {
    "tsdae": (BERT, "cls", [TSDAE]),
    "mlm": (BERT, "mean", [MLM]),
    "ct": (BERT, "mean", [CT]),
    "simcse": (BERT, "cls", [SIMCSE]),
    "sbert-nli": (BERT, "mean", [NLI]),
    "sbert-nli-stsb": (BERT, "mean", [NLI, STS]),
    "sbert-in-domain-askubuntu": (BERT, "mean", [RANKING]),
    "sbert-in-domain-cqadupstack": (BERT, "mean", [RANKING]),
    "sbert-in-domain-scidocs": (BERT, "mean", [RANKING]),
    "sbert-in-domain-twitterpara": (BERT, "mean", [PAIRS]),
    "tsdae-to-nli-sts": (BERT, "cls", [TSDAE, NLI, STS]),
    "mlm-to-nli-sts": (BERT, "mean", [MLM, NLI, STS]),
    "ct-to-nli-sts": (BERT, "mean", [CT, NLI, STS]),
    "simcse-to-nli-sts": (BERT, "cls", [SIMCSE, NLI, STS]),
    "nli-sts-to-tsdae": (BERT, "cls", [NLI, STS, TSDAE]),
    "nli-sts-to-mlm": (BERT, "mean", [NLI, STS, MLM]),
    "nli-sts-to-ct": (BERT, "mean", [NLI, STS, CT]),
    "nli-sts-to-simcse": (BERT, "cls", [NLI, STS, SIMCSE]),
    "tsdae-distilbert": ("distilbert-base-uncased", "cls", [TSDAE]),
    "tsdae-roberta": ("roberta-base", "cls", [TSDAE]),
    "tsdae-distilroberta": ("distilroberta-base", "cls", [TSDAE]),
    "tsdae-electra": ("google/electra-base-discriminator", "cls", [TSDAE]),
    "tsdae-bart": ("facebook/bart-base", "cls", [TSDAE]),
    "tsdae-t5": ("t5-base", "mean", [TSDAE]),  # T5 puts no token first
    "tsdae-scratch-decoder": (BERT, "cls", [TSDAE]),
}
# Kind, source, pooling of the paper's row; others beside it are ours.
UNTRAINED = {
    "bert": ("encoder", BERT, "mean"),
    "bert-flow": ("flow", BERT, "mean"),
    "bm25": ("bm25", "", None),
    "glove": ("words", "data/glove.840B.300d.txt", None),
    "sent2vec": ("sent2vec", "", None),
    "use-large": ("encoder", "use_large:encode", None),
}
# The same trainings over all four domains, by the row's name in the study.
MEANS = {
    "TSDAE": ("cls", [TSDAE]),
    "MLM": ("mean", [MLM]),
    "CT": ("mean", [CT]),
    "SimCSE": ("cls", [SIMCSE]),
    "SBERT, NLI and STS": ("mean", [NLI, STS]),
    "TSDAE, then NLI and STS": ("cls", [TSDAE, NLI, STS]),
    "MLM, then NLI and STS": ("mean", [MLM, NLI, STS]),
    "CT, then NLI and STS": ("mean", [CT, NLI, STS]),
    "SimCSE, then NLI and STS": ("cls", [SIMCSE, NLI, STS]),
    "NLI and STS, then TSDAE": ("cls", [NLI, STS, TSDAE]),
    "NLI and STS, then MLM": ("mean", [NLI, STS, MLM]),
    "NLI and STS, then CT": ("mean", [NLI, STS, CT]),
    "NLI and STS, then SimCSE": ("cls", [NLI, STS, SIMCSE]),
}


def settings_of(train):
    optim = train.optim
    length = (train.batch_size, train.num_steps, train.num_epochs)
    return (train.objective, *length, optim.optimizer, optim.lr, optim.schedule)


def trainings_of(config):
    return [phase.train for phase in config.phases] or [config.train]


def check_details(train):
    """What goes with the objective."""
    if train.objective == "tsdae":
        noise = train.tsdae.noise
        assert (noise.kind, noise.ratio, train.early_stopping.patience) == ("delete", 0.6, 0)
    if train.objective == "ct":
        assert train.optim.boundaries == (500, 1_000, 1_500, 2_000)
        assert train.optim.rates == (8e-6, 6e-6, 4e-6, 2e-6)
        assert (train.ct.num_negatives, train.lanes) == (7, 2)
    if train.objective == "simcse":
        assert (train.simcse.temperature, train.simcse.head) == (0.05, True)
    if train.objective in ("tsdae", "mlm", "ct", "simcse"):
        assert (train.optim.warmup_steps, train.optim.weight_decay, train.keep) == (0, 0.0, "last")


@pytest.mark.parametrize("name", TRAINED)
def test_a_recipe_trains_with_the_papers_settings(name):
    config = load_config(PAPER / f"{name}.yaml")
    start, pooling, trainings = TRAINED[name]
    assert (config.model.start, config.model.pooling) == (start, pooling)
    assert [settings_of(train) for train in trainings_of(config)] == trainings
    for train in trainings_of(config):
        check_details(train)
        tie = "scratch" if name == "tsdae-scratch-decoder" else "tied"
        assert train.objective != "tsdae" or train.tsdae.tie == tie
    assert config.corpus.input.startswith("data/useb/data-train/")


@pytest.mark.parametrize("domain", DOMAINS)
def test_in_domain_training_stops_by_development_data_of_the_domain_where_there_are_some(domain):
    task = DOMAINS[domain]
    train = load_config(PAPER / f"sbert-in-domain-{task}.yaml").train
    assert train.labels.input == f"data/useb/data-train/{domain}/supervised"
    assert (train.labels.layout, train.keep) == ("useb", "best")
    stopping = train.early_stopping
    assert stopping.patience > 0
    if domain == "twitter":
        assert (stopping.metric, stopping.task) == ("validation_loss", None)
    else:
        assert (stopping.metric, stopping.task.kind, stopping.task.split) == ("task", task, "dev")


@pytest.mark.parametrize("name", UNTRAINED)
def test_a_table_without_training_has_the_papers_row_first(name):
    config = load_config(PAPER / f"{name}.yaml")
    first = config.evaluate.systems[0]
    assert (first.kind, first.source, first.pooling) == UNTRAINED[name]
    assert first.flow == FlowConfig(lr=1e-6, weight_decay=0.01)
    assert first.sent2vec == Sent2VecConfig(dim=700, ngrams=2, num_negatives=10)
    if not config.evaluate.needs_corpus:
        assert [task.kind for task in config.evaluate.tasks] == list(TASKS)


def test_there_is_a_recipe_for_every_row_of_the_papers_tables_and_no_other():
    found = {path.stem for path in PAPER.glob("*.yaml") if not is_study(path)}
    assert found == TRAINED.keys() | UNTRAINED.keys()


def test_the_study_over_the_four_domains_has_the_same_settings_in_every_domain():
    study = load_study(PAPER / "four-domains.yaml", size="paper")
    cells = cells_of(study)
    main = {"TSDAE": 55.2, "MLM": 52.9, "CT": 52.4, "SimCSE": 50.6, "BERT-flow": 49.2, "BM25": 50.4}
    assert main.items() <= study.published_mean.items()
    rest = load_study(PAPER / "four-domains.yaml", ["axes.method.CT=null"], size="paper")
    assert study.published_mean.keys() - rest.published_mean.keys() == {"CT"}
    trained = [cell for cell in cells if cell.system.trains]
    assert {cell.setting.label for cell in trained} == set(MEANS)
    for cell in trained:
        pooling, trainings = MEANS[cell.setting.label]
        assert (cell.config.model.start, cell.config.model.pooling) == (BERT, pooling)
        assert [settings_of(train) for train in trainings_of(cell.config)] == trainings
        for train in trainings_of(cell.config):
            check_details(train)
    for cell in cells:
        if cell.system.transform == "flow":
            assert (cell.system.flow_lr, cell.config.model.pooling) == (1e-6, "mean")
        if cell.system.kind == "sent2vec":
            assert (cell.system.sent2vec_dim, cell.system.sent2vec_min_count) == (700, 5)
    places = {(cell.domain, cell.tasks, cell.seed) for cell in trained}
    assert len(places) == 4 * 5
    assert {task.lower() for _, (task,), _ in places} == set(TASKS)


def test_the_study_of_in_domain_training_has_the_recipes_settings_by_domain():
    study = load_study(PAPER / "four-domains-in-domain.yaml", size="paper")
    cells = cells_of(study)
    assert study.published_mean == {}
    assert len(cells) == 4 * 5
    for cell in cells:
        recipe = load_config(PAPER / f"sbert-in-domain-{DOMAINS[cell.domain]}.yaml")
        ours, theirs = cell.config.train, recipe.train
        assert cell.config.model == recipe.model
        for name in ("labels", "optim", "early_stopping", "keep", "validate_every"):
            assert getattr(ours, name) == getattr(theirs, name), (cell.domain, name)
        assert settings_of(ours) == settings_of(theirs)
