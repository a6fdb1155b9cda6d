"""Supervised trainings: phases, resuming, epochs, a validation task, and what is recorded."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from labelled_builders import prepare_and_train, sentences, small_config, small_train, write_labels
from safetensors.numpy import load_file
from train_here import KilledError, without_ray

from pipelines.errors import InputError
from pipelines.manifest import read_manifest
from pipelines.phase_config import PhaseConfig
from pipelines.storage import Location
from pipelines.train_config import EarlyStopping, TrainConfig
from pipelines.validation_task import ValidationTask
from tsdae_core.optim import OptimConfig


@pytest.fixture(autouse=True)
def here(monkeypatch):
    return without_ray(monkeypatch)


def write_pairs(path, count=24):
    """Pairs of equal and of different sentences, which any encoder can tell apart."""
    texts = sentences(count, seed=9)
    rows = [(text, text if i % 2 else texts[-1 - i], i % 2) for i, text in enumerate(texts)]
    lines = ["sentence1\tsentence2\tlabel", *("\t".join(map(str, row)) for row in rows)]
    Path(path).write_text("\n".join(lines) + "\n")
    return path


def log_of(config):
    return json.loads((Path(config.workspace) / "encoder/training_log.json").read_text())


@pytest.mark.parametrize("objective", ["nli", "sts", "pairs", "ranking", "margin_mse"])
def test_each_supervised_objective_trains_and_records_its_labels(tmp_path, here, objective):
    path = write_labels(tmp_path / "rows.csv", objective)
    config = small_config(tmp_path, small_train(objective, labels=path, num_steps=4))
    manifest, told = prepare_and_train(config)
    log = log_of(config)
    assert f"train: {objective}, 4 steps of 8 rows" in told
    assert np.isfinite([value for _, value in log["losses"] + log["validation_losses"]]).all()
    assert log["num_sentences"] == 32
    labels = read_manifest(Location.parse(config.workspace) / "labels")
    assert manifest.inputs["labels"] == labels.digest
    assert ("labels", str(path), labels.digest, "training") in here.tracker.inputs
    before, after = (
        load_file(Path(config.workspace) / f"{name}/model.safetensors") for name in ("start", "encoder")
    )
    assert any(not np.array_equal(after[name], before[name]) for name in after)
    assert "up to date, 4 steps" in prepare_and_train(config)[1]
    write_labels(path, objective, seed=5)
    assert "up to date" not in prepare_and_train(config)[1].partition("labels:")[2]


def test_learning_is_seen_on_the_labels(tmp_path):
    """Nothing is alike, say the scores: after some steps the held-out loss is far lower."""
    path = tmp_path / "rows.csv"
    texts = sentences(80, seed=3)
    rows = [f"{a},{b},0" for a, b in zip(texts, reversed(texts), strict=True)]
    path.write_text("sentence1,sentence2,score\n" + "\n".join(rows) + "\n")
    train = small_train("sts", labels=path, num_steps=40, validate_every=20, optim=OptimConfig(lr=1e-2))
    config = small_config(tmp_path, train)
    prepare_and_train(config)
    losses = [value for _, value in log_of(config)["validation_losses"]]
    assert losses[-1] < 0.5 * losses[0]


def test_a_killed_phase_goes_on_from_its_checkpoint_bit_for_bit(tmp_path, here):
    """NLI, STS, then TSDAE; killed in the second phase, a step behind its last checkpoint."""
    nli, sts = (write_labels(tmp_path / f"{name}.jsonl", name) for name in ("nli", "sts"))
    many = {"num_steps": 12, "checkpoint_every": 2, "validate_every": 4, "log_every": 5}
    phases = [
        PhaseConfig(name="nli", train=small_train("nli", labels=nli, num_epochs=1)),
        PhaseConfig(name="sts", train=small_train("sts", labels=sts, **many)),
        PhaseConfig(name="target", train=small_train("tsdae")),
    ]
    digests = {}
    for name in ("undisturbed", "killed"):
        config = small_config(tmp_path / name, phases=phases)
        if name == "killed":
            here.die_at("sts", 11)
            with pytest.raises(KilledError):
                prepare_and_train(config)
            assert not (Path(config.workspace) / "phases/sts/encoder/manifest.json").exists()
            (kept,) = Path(config.workspace).glob("phases/sts/training/*/checkpoint_*")
            assert kept.name == "checkpoint_step_0000000010"
        prepare_and_train(config)
        places = [Path(config.workspace) / place for place in ("phases/nli", "phases/sts", ".")]
        digests[name] = [
            json.loads((place / "encoder/manifest.json").read_text())["digest"] for place in places
        ]
        assert json.loads((places[0] / "encoder/training_log.json").read_text())["num_steps"] == 3
    assert digests["killed"] == digests["undisturbed"]


def test_bad_labels_of_a_late_phase_are_told_before_the_first_trains(tmp_path):
    (tmp_path / "bad.csv").write_text("premise,hypothesis,label\na,b,what\n")
    phases = [
        PhaseConfig(name="first", train=small_train("tsdae")),
        PhaseConfig(name="second", train=small_train("nli", labels=tmp_path / "bad.csv")),
    ]
    with pytest.raises(InputError, match="label_names"):
        prepare_and_train(small_config(tmp_path, phases=phases))
    assert not (tmp_path / "work/phases/first/encoder").exists()


def test_a_validation_task_stops_the_training_and_the_best_encoder_is_kept(tmp_path, here):
    """The task is solved before training, so nothing is gained and the start is what is kept."""
    task = ValidationTask(folder=str(write_pairs(tmp_path / "dev.tsv")))
    stopping = EarlyStopping(metric="task", task=task, patience=2)
    path = write_labels(tmp_path / "rows.csv", "pairs")
    train = small_train(
        "pairs",
        labels=path,
        num_steps=50,
        validate_every=3,
        validation_rows=0,
        keep="best",
        early_stopping=stopping,
    )
    config = small_config(tmp_path, train)
    manifest, _ = prepare_and_train(config)
    log = log_of(config)
    assert (log["num_steps"], log["kept_step"]) == (6, 0)
    assert log["task_scores"][0] == [0, 1.0]
    assert [step for step, _ in log["task_scores"]] == [0, 3, 6]
    assert manifest.facts["task_scores"] == log["task_scores"]
    (recorded,) = [entry for entry in here.tracker.inputs if entry[3] == "evaluation"]
    assert recorded[0] == "validation dev"
    assert manifest.inputs["validation_task"] == recorded[2]
    write_pairs(tmp_path / "dev.tsv", count=12)
    assert "up to date, 6 steps" not in prepare_and_train(config)[1]


def test_validation_tasks_that_cannot_be_used_are_told(tmp_path):
    with pytest.raises(ValueError, match=r"early_stopping\.task\.folder"):
        EarlyStopping(metric="task")
    folder = tmp_path / "twitter"
    folder.mkdir()
    (folder / "Twitter_URL_Corpus_test.txt").write_text("a\tb\t(4, 6)\n")
    for place, message in ((folder, "test part only"), (tmp_path / "nothing", "no file or folder")):
        stopping = EarlyStopping(task=ValidationTask(folder=str(place)))
        config = small_config(tmp_path, replace(small_train("tsdae"), early_stopping=stopping))
        with pytest.raises(InputError, match=message):
            prepare_and_train(config)
    assert TrainConfig(early_stopping=EarlyStopping(task=ValidationTask(folder="x"))).keep == "last"
