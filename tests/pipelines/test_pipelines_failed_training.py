"""A training that broke: what the message names is there, and doing as it says works."""

import os
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from labelled_builders import prepare_and_train, small_config, small_train
from pipeline_builders import quiet_reporter
from train_here import without_ray

from pipelines.config_io import config_to_yaml, load_config
from pipelines.errors import InputError
from pipelines.manifest import Manifest
from pipelines.model_config import ModelConfig
from pipelines.start import describe_start, resolve_start
from pipelines.storage import Location
from pipelines.tracking import Tracker
from pipelines.training_runs import remove_other_runs, training_runs
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.optim import OptimConfig

# Fine for four steps, then so large that the fifth breaks the weights and the sixth shows it.
BREAKING = OptimConfig(lr=1e-3, schedule="piecewise", boundaries=(4,), rates=(1e30,))


def break_training(config):
    with pytest.raises(InputError) as caught:
        prepare_and_train(config)
    return str(caught.value)


def status_of_runs(config):
    tracker = Tracker.of(config, Location.parse(config.workspace))
    runs = tracker.client().search_runs([tracker.experiment_id()])
    return [run.info.status for run in runs]


def names(config):
    return sorted(path.name for path in (Path(config.workspace) / "training").iterdir())


def test_the_checkpoint_that_the_message_names_starts_another_training(tmp_path, monkeypatch):
    without_ray(monkeypatch)
    monkeypatch.setattr("pipelines.train.Tracker", Tracker)
    train = small_train("tsdae", optim=BREAKING, num_steps=12, checkpoint_every=2, validate_every=12)
    config = small_config(tmp_path, train)
    message = break_training(config)
    assert "the loss or its gradient is not finite in step 6 " in message
    assert "the last good checkpoint is that of step 4, " in message
    assert status_of_runs(config) == ["FAILED"]
    (advised,) = [word for word in shlex.split(message) if word.startswith("model.start=")]
    encoder = Path(advised.partition("=")[2])
    assert f"'{encoder.parent}'" in message
    assert "Lower train.optim.lr" in message
    kept = SentenceEncoder.load(encoder).fingerprint()
    (failed,) = names(config)

    # A second failure before a checkpoint of its own does not cost the one that was named.
    break_training(replace(config, train=replace(train, optim=replace(BREAKING, boundaries=(1,)))))
    assert failed in names(config)

    (tmp_path / "run.yaml").write_text(config_to_yaml(config))
    lower = ["train.optim.lr=1e-4", "train.optim.schedule=constant"]
    lower += ["train.optim.boundaries=[]", "train.optim.rates=[]"]
    followed = load_config(tmp_path / "run.yaml", [*lower, advised])
    prepare_and_train(followed)
    assert SentenceEncoder.load(Path(config.workspace) / "start").fingerprint() == kept
    assert sorted(status_of_runs(config)) == ["FAILED", "FAILED", "FINISHED"]
    assert len(names(config)) == 2  # its own, and the one that it starts from
    assert "up to date" in prepare_and_train(followed)[1]

    # Without the start the named checkpoint is of no use any more.
    prepare_and_train(load_config(tmp_path / "run.yaml", lower))
    assert failed not in names(config)
    assert len(names(config)) == 1


def test_weights_too_large_to_go_on_from_are_not_kept_as_a_checkpoint(tmp_path, monkeypatch):
    without_ray(monkeypatch)
    broken_by_the_fourth = replace(BREAKING, boundaries=(3,))
    train = small_train("tsdae", optim=broken_by_the_fourth, num_steps=12, checkpoint_every=2)
    message = break_training(small_config(tmp_path, train))
    assert "the weights are not finite after step 4 (too large for any vector)" in message
    assert "the last good checkpoint is that of step 2, " in message
    assert "checkpoint_step_0000000002/encoder' from the encoder" in message


def test_before_the_first_checkpoint_only_the_rate_is_advised(tmp_path, monkeypatch):
    without_ray(monkeypatch)
    train = small_train("tsdae", optim=BREAKING, num_steps=12, checkpoint_every=12)
    message = break_training(small_config(tmp_path, train))
    assert "there is no checkpoint yet" in message
    assert "Lower train.optim.lr or warm up longer" in message
    assert "model.start" not in message


def a_run(workspace, name, *, changed_s=None):
    folder = workspace / "training" / name
    folder.mkdir(parents=True)
    (folder / "snapshot.json").write_text("{}")
    if changed_s is not None:
        state = folder / "checkpoint_step_0000000002" / "state"
        state.mkdir(parents=True)
        (state / "weights").write_text("w")
        os.utime(state / "weights", (changed_s, changed_s))
    return folder


def left(workspace, **options):
    remove_other_runs(Location.parse(workspace), **({"current": "now", "start": "scratch"} | options))
    return {run.place.name for run in training_runs(Location.parse(workspace))}


def test_of_other_trainings_the_last_with_a_checkpoint_stays_until_this_one_is_finished(tmp_path):
    for name, changed_s in {"now": None, "old": 1_000, "last": 2_000, "none": None}.items():
        a_run(tmp_path, name, changed_s=changed_s)
    assert left(tmp_path, is_finished=False) == {"now", "last"}
    assert left(tmp_path, is_finished=True) == {"now"}
    assert left(tmp_path / "absent", is_finished=True) == set()


def test_the_training_that_a_start_lies_in_stays_also_behind_a_link(tmp_path):
    folder = a_run(tmp_path / "w", "first", changed_s=1_000)
    a_run(tmp_path / "w", "second", changed_s=2_000)
    (tmp_path / "link").symlink_to(tmp_path / "w")
    start = str(tmp_path / "link" / "training" / "first" / "checkpoint_step_0000000002" / "encoder")
    assert left(tmp_path / "w", start=start, is_finished=True) == {"first"}
    shutil.rmtree(folder)
    assert left(tmp_path / "w", start="first", is_finished=True) == set()


def test_a_start_may_be_a_url_and_a_changed_file_behind_it_is_noticed(tmp_path):
    from tsdae_core.pretrained import small_encoder_path

    shutil.copytree(small_encoder_path(), tmp_path / "encoder")
    url = f"file://{tmp_path}/encoder"
    config = replace(small_config(tmp_path, small_train("tsdae")), model=ModelConfig(start=url))
    place = Location.parse(tmp_path / "work")
    corpus = Manifest(stage="corpus", fingerprint="", config={}, inputs={}, counts={})
    resolve_start(config, place, corpus, place / "corpus", reporter=quiet_reporter()[0])
    wanted = SentenceEncoder.load(small_encoder_path(), pooling="cls", max_tokens=75).fingerprint()
    assert SentenceEncoder.load(tmp_path / "work" / "start").fingerprint() == wanted
    before = describe_start(url)
    (tmp_path / "encoder" / "config.json").write_text("{}")
    assert describe_start(url) != before
    gone = replace(config, model=ModelConfig(start=f"{url}-gone"))
    with pytest.raises(InputError, match=r"cannot load model\.start 'file://.*-gone'"):
        resolve_start(gone, place, corpus, place / "corpus", reporter=quiet_reporter()[0])
