"""Tiny labelled files, a corpus and settings for trainings of one layer."""

import numpy as np
from pipeline_builders import quiet_reporter, write_rows

from pipelines.collection_config import CollectionConfig
from pipelines.config import RunConfig
from pipelines.labels_config import LabelsConfig
from pipelines.model_config import ModelConfig
from pipelines.phases import train_phases
from pipelines.prepare import prepare
from pipelines.storage import Location
from pipelines.train_config import TrainConfig
from tsdae_core.optim import OptimConfig
from tsdae_core.scratch import ScratchConfig

WORDS = ["ba", "kori", "mi", "tula", "se", "rin", "po", "da"]
NLI = ("contradiction", "entailment", "neutral")
COLUMNS = {
    "nli": ("premise", "hypothesis", "label"),
    "sts": ("sentence1", "sentence2", "score"),
    "pairs": ("sentence1", "sentence2", "label"),
    "ranking": ("anchor", "positive"),
    "margin_mse": ("query", "positive", "negative", "margin"),
}
SCRATCH = ScratchConfig(
    num_layers=1,
    hidden_size=16,
    num_heads=2,
    intermediate_size=32,
    vocab_size=80,
    max_tokens=24,
    dropout=0.0,
)


def sentences(count, *, seed=0):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=2 + i % 6)) + f" {i}" for i in range(count)]


def labelled_rows(objective, count=60, *, seed=1):
    left, right = sentences(count, seed=seed), sentences(count, seed=seed + 1)
    labels = {
        "nli": [NLI[i % 3] for i in range(count)],
        "sts": [f"{i % 51 / 10:.1f}" for i in range(count)],
        "pairs": [str(i % 2) for i in range(count)],
        "margin_mse": [f"{i % 13 - 4.5:.1f}" for i in range(count)],
    }
    third = [sentences(count, seed=seed + 2)] if objective == "margin_mse" else []
    columns = [left, right, *third, *([labels[objective]] if objective in labels else [])]
    return list(zip(*columns, strict=True))


def write_labels(path, objective, count=60, *, seed=1):
    return write_rows(path, labelled_rows(objective, count, seed=seed), COLUMNS[objective])


def small_train(objective, *, labels=None, **settings):
    section = (
        None if labels is None else LabelsConfig(**({"input": str(labels)} | settings.pop("section", {})))
    )
    defaults = {"num_steps": 3, "batch_size": 8, "validation_rows": 8, "optim": OptimConfig(lr=1e-3)}
    return TrainConfig(objective=objective, labels=section, **(defaults | settings))


def small_config(folder, train=None, *, phases=()):
    corpus = folder / "corpus.txt"
    if not corpus.exists():
        folder.mkdir(parents=True, exist_ok=True)
        corpus.write_text("\n".join(sentences(60)) + "\n")
    settings = {"phases": tuple(phases)} if phases else {"train": train}
    return RunConfig(
        workspace=str(folder / "work"),
        corpus=CollectionConfig(input=str(corpus)),
        model=ModelConfig(start="scratch", max_tokens=24, scratch=SCRATCH),
        **settings,
    )


def prepare_and_train(config):
    """The two stages on their own, with what they told."""
    reporter, written = quiet_reporter()
    workspace = Location.parse(config.workspace)
    corpus = prepare("corpus", config.corpus, workspace, reporter=reporter)
    if config.documents is not None:
        prepare("documents", config.documents, workspace, reporter=reporter)
    manifest = train_phases(config, workspace, corpus, reporter=reporter)
    return manifest, written.getvalue()
