"""Training state on disk: one safetensors file with a JSON header, written atomically, never unpickled.

Owns the file format. The file holds every tensor of the model and of the optimizer; dropout needs no state
because `step.seed_step` keys it. Knows nothing of what ``extra`` means.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

FILE_NAME = "training_state.safetensors"
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """What a checkpoint holds.

    Attributes:
        step: number of finished steps.
        weights: of the model, by name.
        optimizer: as ``optimizer.state_dict()`` of a model that is whole on this process.
        extra: anything JSON can hold (seed, schedule, data position, config).
    """

    step: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    extra: dict[str, Any]


def save_training_state(
    folder: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    step: int,
    extra: dict[str, Any],
) -> None:
    """Write the state of an unwrapped model (the module inside DDP); see `write_state`."""
    state = TrainingState(
        step=step, weights=model.state_dict(), optimizer=optimizer.state_dict(), extra=extra
    )
    write_state(folder, state)


def write_state(folder: str | Path, state: TrainingState) -> None:
    """Write a state; a kill at any moment leaves the previous file valid.

    Args:
        folder: made if missing; it holds one state, the latest.
        state: of whole tensors, on any device.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{name}": value for name, value in state.weights.items()}
    for index, slots in state.optimizer["state"].items():
        tensors |= {f"optimizer.{index}.{slot}": value for slot, value in slots.items()}
    header = {
        "format": _FORMAT,
        "step": state.step,
        "extra": state.extra,
        "param_groups": state.optimizer["param_groups"],
    }
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    for left_over in folder.glob(f".{FILE_NAME}.*"):
        left_over.unlink(missing_ok=True)  # of a writer that was killed
    temporary = folder / f".{FILE_NAME}.{os.getpid()}"
    try:
        save_file(tensors, temporary, metadata={"state": json.dumps(header, sort_keys=True)})
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(folder / FILE_NAME)
    finally:
        temporary.unlink(missing_ok=True)


def read_state(folder: str | Path) -> TrainingState:
    """Return the state in a folder.

    Raises:
        ValueError: if there is none.
    """
    path = Path(folder) / FILE_NAME
    header, weights = _read(path, "model.")
    slots: dict[int, dict[str, Tensor]] = {}
    for name, value in _read(path, "optimizer.")[1].items():
        index, slot = name.split(".", 1)
        slots.setdefault(int(index), {})[slot] = value
    return TrainingState(
        step=int(header["step"]),
        weights=weights,
        optimizer={"state": slots, "param_groups": header["param_groups"]},
        extra=dict(header["extra"]),
    )


def load_training_state(
    folder: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[int, dict[str, Any]]:
    """Restore model and optimizer in place and return ``(step, extra)``.

    Raises:
        ValueError: if there is no state, or it belongs to another model.
    """
    state = read_state(folder)
    load_weights(model, state)
    optimizer.load_state_dict(state.optimizer)
    return state.step, state.extra


def load_weights(model: nn.Module, state: TrainingState) -> None:
    """Restore the model in place.

    Raises:
        ValueError: if the state belongs to another model.
    """
    try:
        model.load_state_dict(state.weights)
    except RuntimeError as error:
        raise ValueError(f"the training state belongs to another model: {error}") from error


def read_weights(folder: str | Path) -> tuple[int, dict[str, Tensor]]:
    """Return ``(step, weights of the model by name)`` without the optimizer's tensors.

    Raises:
        ValueError: if there is no state.
    """
    header, weights = _read(Path(folder) / FILE_NAME, "model.")
    return int(header["step"]), weights


def _read(path: Path, prefix: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the header, and the tensors whose name starts with the prefix, by the rest of their name."""
    if not path.is_file():
        raise ValueError(f"{path} does not exist; start the run from its beginning")
    try:
        opened = safe_open(str(path), framework="pt")
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read: {error}; is it whole?") from error
    with opened as file:
        header = json.loads(file.metadata()["state"])
        if header["format"] != _FORMAT:
            raise ValueError(f"{path} has format {header['format']}, expected {_FORMAT}")
        names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
        return header, {name.removeprefix(prefix): file.get_tensor(name) for name in names}
