"""Noise of an epoch on disk keeps off the files of others; examples show the noise of the training.

That the epoch is the stream of the training is shown in test_pipelines_ray, which has a cluster.
"""

import re

import numpy as np
import pytest
from pipeline_builders import make_tokens, quiet_reporter, write_rows, write_token_shards
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.collection import read_rows
from pipelines.config_io import load_config
from pipelines.errors import InputError
from pipelines.lanes import LanePlan
from pipelines.manifest import StageFolder
from pipelines.noise_epoch import noise_examples, recorded_config, write_plan
from pipelines.prepare import prepare
from pipelines.storage import Location
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.objective import build_objective
from tsdae_core.pretrained import small_encoder_path
from tsdae_core.scratch import train_tokenizer
from tsdae_core.tokens import tokenize_texts
from tsdae_core.tsdae import TsdaeConfig

TEXTS = ["the cat sat on the mat", "a dog barked at the old cat", "seven small boats went out to sea"] * 4


@pytest.fixture(scope="module")
def objective():
    config = TsdaeConfig(decoder_mask_ratio=0.3)
    return build_objective("tsdae", tokenizer=train_tokenizer(TEXTS, vocab_size=60), config=config)


def test_a_folder_with_files_of_somebody_else_is_not_emptied(tmp_path, objective):
    (tmp_path / "mine/folder").mkdir(parents=True)
    (tmp_path / "mine/folder/notes.txt").write_text("x")
    rows = write_token_shards(Location.parse(tmp_path / "tokens"), [(np.arange(4), make_tokens([[7]] * 4))])
    plan = LanePlan(num_rows=4, batch_size=2, num_lanes=1, seed=5)
    other = StageFolder(Location.parse(tmp_path / "stage"), stage="corpus", config={}, inputs={})
    other.begin()
    other.finish(counts={})
    begun = StageFolder(Location.parse(tmp_path / "begun"), stage="corpus", config={}, inputs={})
    begun.begin()
    for name in ("mine", "stage", "begun"):
        with pytest.raises(InputError, match="holds something else"):
            write_plan(
                *(plan, rows, objective, Location.parse(tmp_path / name)),
                epoch=0,
                inputs={},
                settings={},
                reporter=quiet_reporter()[0],
            )
    assert (tmp_path / "mine/folder/notes.txt").exists()
    assert other.finished() is not None


@pytest.fixture
def workspace(tmp_path, _without_ray):
    write_rows(tmp_path / "a.jsonl", [(str(i), f"{text} number {i}") for i, text in enumerate(TEXTS * 3)])
    config = load_config(None, [f"workspace={tmp_path}/w", f"corpus.input={tmp_path}/a.jsonl"])
    prepare("corpus", config.corpus, Location.parse(tmp_path / "w"), reporter=quiet_reporter()[0])
    return tmp_path / "w"


def test_examples_show_the_noise_that_a_training_keys_by_seed_epoch_and_row(workspace):
    config = recorded_config(str(workspace))
    shown = noise_examples(config, num=7, epoch=3)
    encoder = SentenceEncoder.load(str(small_encoder_path()))
    objective = build_objective("tsdae", tokenizer=encoder.tokenizer)
    row_ids = np.asarray([example.row_id for example in shown])
    texts = [row["text"] for row in read_rows(Location.parse(workspace / "corpus"), row_ids, ["text"])]
    tokens = tokenize_texts(texts, encoder.tokenizer, max_tokens=encoder.max_tokens)
    batch = objective.make_batch(tokens, row_ids, seed=0, epoch=3)
    parts = np.split(batch["source_ids"], np.cumsum(batch["source_lengths"])[:-1])
    assert [e.damaged for e in shown] == [encoder.tokenizer.decode(ids[1:-1].tolist()) for ids in parts]
    assert [e.original for e in shown] == [text.lower() for text in texts]
    assert [e.damaged for e in noise_examples(config, num=7, epoch=4)] != [e.damaged for e in shown]


def test_the_command_prints_plain_examples_into_a_pipe(workspace):
    config = workspace / "mine.yaml"
    config.write_text(f"workspace: {workspace}\ntrain: {{tsdae: {{noise: {{kind: mask, ratio: 0.5}}}}}}\n")
    done = CliRunner().invoke(app, ["noise", str(config), "seed=3", "--show", "2", "--epoch", "1"])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("mask 0.5, seed 3, epoch 1\n")
    assert len(re.findall(r"^original \w.*\ndamaged  .*\[MASK\]", done.stdout, re.MULTILINE)) == 2
    assert "\x1b" not in done.stdout
    assert not re.findall(r" $", done.stdout, re.MULTILINE)
    plain = CliRunner().invoke(app, ["noise", "-w", str(workspace), "--show", "5"])
    assert plain.stdout.startswith("delete 0.6, seed 0, epoch 0\n")
    assert plain.stdout.count("\ndamaged ") == 5


def test_what_cannot_be_shown_is_one_clear_error(workspace, tmp_path):
    with pytest.raises(InputError, match="there is no workspace"):
        recorded_config(str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="has no noise"):
        noise_examples(load_config(None, [f"workspace={workspace}", "train.objective=mlm"]), num=1, epoch=0)
    with pytest.raises(InputError, match="no tokenizer yet"):
        noise_examples(load_config(None, [f"workspace={workspace}", "model.start=scratch"]), num=1, epoch=0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="tsdae prepare"):
        noise_examples(recorded_config(str(tmp_path / "empty")), num=1, epoch=0)
