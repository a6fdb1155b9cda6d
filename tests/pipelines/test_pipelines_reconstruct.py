"""`tsdae reconstruct`: the decoder is found in the checkpoints of the training."""

import os
import sys

import numpy as np
import pytest
import torch

from pipelines.cli import main as cli
from pipelines.errors import InputError
from pipelines.reconstruct import reconstruct_texts
from tsdae_core.checkpoint import FILE_NAME, save_training_state
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.objective import build_objective
from tsdae_core.optim import OptimConfig, build_optimizer
from tsdae_core.reconstruct import reconstruct
from tsdae_core.scratch import ScratchConfig, build_scratch_encoder, train_tokenizer
from tsdae_core.step import training_step
from tsdae_core.tokens import tokenize_texts
from tsdae_core.tsdae import TsdaeConfig

TEXTS = ["green tea", "a small boat", "red"]


def write_run(workspace, *, objective="tsdae", config=None, num_steps=80):
    """What `tsdae train` leaves of a run, made by hand: start/ and two checkpoints, the newer one trained."""
    shape = ScratchConfig(
        num_layers=2, hidden_size=32, num_heads=4, intermediate_size=64, max_tokens=16, dropout=0.0
    )
    tokenizer = train_tokenizer(TEXTS, vocab_size=60)
    build_scratch_encoder(shape, tokenizer, pooling="cls", seed=0).save(workspace / "start")
    encoder = SentenceEncoder.load(workspace / "start")
    method = build_objective(objective, tokenizer=encoder.tokenizer, config=config)
    model = method.build_model(encoder, seed=0).train()
    optimizer = build_optimizer(model, OptimConfig(lr=5e-3))
    batch = method.make_batch(tokenize_texts(TEXTS, tokenizer, max_tokens=16), np.arange(3), seed=0, epoch=0)
    if objective == "tsdae":
        batch |= {"source_ids": batch["target_ids"], "source_lengths": batch["target_lengths"]}
    run = workspace / "training" / "0123456789abcdef"
    for step, name in ((0, "checkpoint_2026-01-01_10"), (num_steps, "checkpoint_2026-01-01_11")):
        for _ in range(step):
            targets = method.num_targets(batch)
            training_step(model, batch, optimizer, global_num_targets=targets, max_grad_norm=1.0)
        save_training_state(run / name / "state", model, optimizer, step=step, extra={})
    return model


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    "config", [None, TsdaeConfig(num_decoder_layers=1), TsdaeConfig(tie="scratch", num_decoder_layers=1)]
)
def test_the_newest_checkpoint_rebuilds_what_it_has_learned(tmp_path, config, monkeypatch, capfd):
    model = write_run(tmp_path, config=config)
    vectors = torch.from_numpy(model.encoder.encode(TEXTS))
    for num_beams in (1, 3):
        rebuilt = reconstruct_texts(str(tmp_path), TEXTS, num_beams=num_beams, max_tokens=None)
        assert rebuilt == reconstruct(model, vectors, num_beams=num_beams)
        assert {"green tea", "red"} <= set(rebuilt)
    arguments = ["reconstruct", "green tea", "--workspace", str(tmp_path), "--beam", "2", "--max-tokens", "9"]
    monkeypatch.setattr(sys, "argv", ["tsdae", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    assert capfd.readouterr().out == "green tea\n"


def test_of_two_trainings_the_one_that_wrote_last_counts(tmp_path):
    write_run(tmp_path, num_steps=0)
    earlier = tmp_path / "training" / "ffff" / "checkpoint_9999" / "state"
    earlier.mkdir(parents=True)
    (earlier / FILE_NAME).write_bytes(b"of other settings")
    os.utime(earlier / FILE_NAME, (1_000, 1_000))
    assert len(reconstruct_texts(str(tmp_path), ["red"], num_beams=1, max_tokens=None)) == 1
    os.utime(earlier / FILE_NAME)
    with pytest.raises(InputError, match="checkpoint_9999"):
        reconstruct_texts(str(tmp_path), ["red"], num_beams=1, max_tokens=None)


def test_what_is_missing_is_named(tmp_path):
    def ask(text="red", workspace=tmp_path, max_tokens=None):
        return reconstruct_texts(str(workspace), [text], num_beams=1, max_tokens=max_tokens)

    with pytest.raises(InputError, match="there is no workspace"):
        ask(workspace=tmp_path / "none")
    with pytest.raises(InputError, match=r"has no training checkpoint.*tsdae train"):
        ask()
    with pytest.raises(InputError, match="text is empty"):
        ask(" ")
    write_run(tmp_path, num_steps=0)
    with pytest.raises(ValueError, match="max_tokens=99 must be 3 to 16"):
        ask(max_tokens=99)
    write_run(tmp_path / "mlm", objective="mlm", num_steps=0)
    with pytest.raises(InputError, match="hold no decoder; only the tsdae objective"):
        ask(workspace=tmp_path / "mlm")
    (state,) = (tmp_path / "training").glob(f"*/*_11/state/{FILE_NAME}")
    state.write_bytes(b"half")
    with pytest.raises(InputError, match="cannot be read"):
        ask()
