"""What is tried again and what is not, and what a full disk leaves; without a cluster."""

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray.train
from pipeline_builders import quiet_reporter
from ray.train.v2.api.exceptions import WorkerGroupError
from safetensors import SafetensorError

from pipelines import train_run
from pipelines.errors import InputError
from pipelines.storage import Location
from pipelines.train_checkpoint import Checkpoints
from pipelines.train_config import TrainConfig


def lost(error):
    return WorkerGroupError("a worker failed", {1: error})


class Trainer:
    """Fails as it is told, then ends with a checkpoint."""

    def __init__(self, errors):
        self.errors, self.num_starts = list(errors), 0

    def fit(self):
        self.num_starts += 1
        if self.errors:
            raise self.errors.pop(0)
        return SimpleNamespace(checkpoint=ray.train.Checkpoint("/somewhere"))


@pytest.fixture
def run(monkeypatch):
    def start(trainer, **settings):
        monkeypatch.setattr(train_run, "_trainer", lambda job: trainer)
        monkeypatch.setattr(train_run, "last_state", lambda board: {"summary": "all is well"})
        monkeypatch.setattr("pipelines.progress_board.last_state", lambda board: {})
        reporter, written = quiet_reporter()
        job = SimpleNamespace(config=TrainConfig(num_steps=5, **settings), board=None)
        try:
            return train_run.run_training(job, reporter=reporter), written.getvalue()
        except BaseException as error:
            error.add_note(written.getvalue())
            raise

    return start


def test_lost_workers_are_started_again_and_each_loss_is_told(run):
    trainer = Trainer([lost(OSError("connection reset")), lost(RuntimeError("gloo"))])
    checkpoint, told = run(trainer, max_failures=2)
    assert checkpoint.path == "/somewhere"
    assert trainer.num_starts == 3
    assert "lost a worker (connection reset); going on" in told
    assert "lost a worker (gloo); going on" in told
    assert told.endswith("train: all is well\n")


def test_after_so_many_losses_the_error_comes_through_and_without_a_limit_it_never_does(run):
    trainer = Trainer([lost(OSError("gone"))] * 9)
    with pytest.raises(WorkerGroupError):
        run(trainer, max_failures=2)
    assert trainer.num_starts == 3
    endless = Trainer([lost(OSError("gone"))] * 9)
    run(endless, max_failures=-1)
    assert endless.num_starts == 10


@pytest.mark.parametrize(
    "error", [InputError("the loss is not finite"), ValueError("the decoder looks ahead")]
)
def test_what_would_come_again_is_not_tried_again(run, error):
    trainer = Trainer([lost(error)] * 9)
    with pytest.raises(ValueError, match=str(error)) as caught:
        run(trainer, max_failures=5)
    assert caught.value is error
    assert trainer.num_starts == 1
    assert "lost" not in caught.value.__notes__[0]


def nothing(folder):
    (folder / "state").mkdir()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "Error writing bytes to file"),
        OSError(errno.EDQUOT, "over quota"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_told_with_its_place_and_leaves_the_last_checkpoint(tmp_path, monkeypatch, error):
    storage = Location.parse(tmp_path / "training/run")
    checkpoints = Checkpoints(storage)

    def upload(metrics, checkpoint, checkpoint_dir_name):
        place = Path(storage.path) / checkpoint_dir_name
        place.mkdir(parents=True)
        (place / "half").write_text("a file")
        if metrics["step"] == 20:
            raise error

    monkeypatch.setattr("ray.train.report", upload)
    checkpoints.report(10, nothing)
    with pytest.raises(InputError) as caught:
        checkpoints.report(20, nothing)
    assert f"no room to write the checkpoint of step 20 in '{storage.path}'" in str(caught.value)
    assert f"step 10, '{storage.path}/checkpoint_step_0000000010'" in str(caught.value)
    assert [path.name for path in Path(storage.path).iterdir()] == ["checkpoint_step_0000000010"]
    assert checkpoints.step == 10


def test_a_full_temporary_folder_is_named_and_other_errors_come_through(tmp_path, monkeypatch):
    checkpoints = Checkpoints(Location.parse(tmp_path / "run"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def no_room(folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    def no_right(folder):
        raise PermissionError(errno.EACCES, "no")

    with pytest.raises(InputError, match=r"in '.*tsdae-checkpoint-.*there is no checkpoint yet"):
        checkpoints.report(20, no_room)
    with pytest.raises(PermissionError):
        checkpoints.report(20, no_right)
    monkeypatch.setattr("ray.train.report", lambda *_, **__: (_ for _ in ()).throw(KeyError("x")))
    with pytest.raises(KeyError):
        checkpoints.report(20, None)
