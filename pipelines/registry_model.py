"""The code that is logged with a registered encoder: a list of texts in, vectors out.

Runs wherever MLflow loads the model, with the logged copy of `tsdae_core` and nothing of Ray.
"""

from __future__ import annotations

from typing import Any

import mlflow
import numpy as np
from numpy.typing import NDArray

from tsdae_core.encoder import SentenceEncoder


class EncoderModel(mlflow.pyfunc.PythonModel):  # type: ignore[misc]  # mlflow is untyped
    """Embeds texts: list of n strings -> float32[n, d]."""

    def load_context(self, context: Any) -> None:
        """Loads the encoder from the model's artifacts."""
        self._encoder = SentenceEncoder.load(context.artifacts["encoder"])

    def predict(self, context: Any, model_input: list[str]) -> NDArray[np.float32]:  # noqa: ARG002  # MLflow's names
        """Vectors float32[n, d] of the texts, in their order. MLflow reads the type hint as the signature."""
        return self._encoder.encode(list(model_input))


mlflow.models.set_model(EncoderModel())
