"""Rebuilding texts from their vectors with the decoder of a run: a look at what its vectors hold.

The finished encoder is stored without decoder; that lives in the checkpoints of the training.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipelines.errors import InputError
from pipelines.start import START_FOLDER
from pipelines.storage import Location
from pipelines.training_runs import training_runs
from tsdae_core.checkpoint import FILE_NAME, read_weights
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.reconstruct import model_from_weights, reconstruct
from tsdae_core.tsdae_model import TsdaeModel

_STATE_FOLDER = "state"


def reconstruct_texts(
    workspace: str, texts: Sequence[str], *, num_beams: int, max_tokens: int | None
) -> list[str]:
    """The most likely text for the vector of each text, by the newest checkpoint of the run.

    num_beams: 1 is greedy. max_tokens: longest text, special tokens included; None takes the encoder's own.

    Raises:
        InputError: an empty text, or a workspace without a checkpoint that holds a decoder.
        ValueError: a number outside its range.
    """
    if any(not text.strip() for text in texts):
        raise InputError("the text is empty")
    model = _open_model(Location.parse(workspace))
    vectors = torch.from_numpy(model.encoder.encode(texts))
    return reconstruct(model, vectors, num_beams=num_beams, max_tokens=max_tokens)


def _open_model(workspace: Location) -> TsdaeModel:
    if not workspace.exists():
        raise InputError(f"there is no workspace '{workspace}'; name one with --workspace")
    state = _newest_state(workspace)
    if state is None:
        raise InputError(
            f"'{workspace}' has no training checkpoint, which holds the decoder; run `tsdae train` first"
        )
    with (workspace / START_FOLDER).as_local_folder() as folder:
        encoder = SentenceEncoder.load(str(folder))
    try:
        with state.as_local_folder() as folder:
            _, weights = read_weights(folder)
        return model_from_weights(encoder, weights)
    except ValueError as error:
        raise InputError(f"the checkpoint '{state}' cannot be used: {error}") from error


def _newest_state(workspace: Location) -> Location | None:
    """The state folder of the newest checkpoint, that with the last name, of the training that wrote last."""
    for run in reversed(training_runs(workspace)):
        found = [
            info.path.removesuffix(f"/{FILE_NAME}")
            for info in run.place.files(recursive=True)
            if info.path.endswith(f"/{_STATE_FOLDER}/{FILE_NAME}")
        ]
        if found:
            return Location(workspace.filesystem, max(found, key=lambda path: path.split("/")[-2]))
    return None
