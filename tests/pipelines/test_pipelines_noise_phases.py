"""`tsdae noise --phase`: the noise of one phase, from the encoder that it starts from."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from labelled_builders import prepare_and_train, small_config, small_train
from pipeline_builders import quiet_reporter
from shard_builders import run_shards_here
from train_here import without_ray

from pipelines.errors import InputError
from pipelines.lanes import step_digest
from pipelines.noise_epoch import noise_examples, write_epoch
from pipelines.phase_config import PhaseConfig
from pipelines.storage import Location


def test_the_noise_of_a_phase_is_that_of_its_training(tmp_path, monkeypatch):
    without_ray(monkeypatch)
    monkeypatch.setattr("pipelines.noise_epoch.run_shards", run_shards_here)
    names = {"mlm": "mlm", "first": "tsdae", "second": "tsdae"}
    phases = [PhaseConfig(name=name, train=small_train(objective)) for name, objective in names.items()]
    config = small_config(tmp_path, phases=phases)
    prepare_and_train(config)
    for name, place in (("first", "phases/first"), ("second", ".")):
        examples = noise_examples(config, num=20, epoch=0, phase=name)
        assert sum(example.damaged != example.original for example in examples) > 10
        output = Location.parse(tmp_path / name)
        write_epoch(config, output, epoch=0, reporter=quiet_reporter()[0], phase=name)
        rows = pq.read_table(tmp_path / name / "part-00000.parquet").to_pandas()
        log = json.loads((Path(config.workspace) / place / "encoder/training_log.json").read_text())
        digests = [step_digest(rows[rows.step == i].row_id.to_numpy(), i) for i in range(log["num_steps"])]
        assert sum(digests) % 2**64 == log["stream_digest"]
        assert (log["stream_digests"], log["steps_per_stream_digest"]) == (digests, 1)


def test_phases_that_cannot_be_shown_are_told(tmp_path):
    phases = [PhaseConfig(name=name, train=small_train("tsdae")) for name in ("first", "second")]
    config = small_config(tmp_path, phases=phases)
    for phase, message in (
        (None, "name one with --phase: first, second"),
        ("secnd", "Did you mean 'second'"),
        ("second", "encoder of 'first', which is not trained yet"),
    ):
        with pytest.raises(InputError, match=message):
            noise_examples(config, num=1, epoch=0, phase=phase)
    with pytest.raises(InputError, match="leave --phase out"):
        noise_examples(small_config(tmp_path, small_train("tsdae")), num=1, epoch=0, phase="first")
