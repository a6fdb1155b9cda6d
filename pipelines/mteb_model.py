"""Our encoder as a model of the `mteb` package, which is installed apart: `pip install 'tsdae-ray[mteb]'`.

    import mteb
    from pipelines.mteb_model import MtebModel

    mteb.evaluate(MtebModel.load("work/mine/encoder"), tasks=mteb.get_tasks(tasks=["STS12"]))

Owns the adapter only; tasks, splits and measures are MTEB's own, and differ from USEB's (docs/evaluation.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ScoringFunction
from numpy.typing import NDArray

from tsdae_core.encoder import SentenceEncoder


class MtebModel(AbsEncoder):
    """A sentence encoder with MTEB's `encode`; similarity is the cosine; prompts are not used."""

    def __init__(self, encoder: SentenceEncoder, *, name: str, revision: str) -> None:
        self._encoder = encoder
        self.mteb_model_meta = ModelMeta.create_empty(
            overwrites={
                "name": name,
                "revision": revision,
                "embed_dim": encoder.dim,
                "max_tokens": encoder.max_tokens,
                "similarity_fn_name": ScoringFunction.COSINE,
                "framework": ["PyTorch"],
                "open_weights": True,
                "use_instructions": False,
            }
        )

    @classmethod
    def load(cls, path_or_hub_id: str, *, name: str = "tsdae-ray/encoder", device: str = "cpu") -> MtebModel:
        """Load an encoder; MTEB files results under `name` (organisation/model) and its fingerprint.

        Raises:
            ValueError: as `SentenceEncoder.load`.
        """
        encoder = SentenceEncoder.load(path_or_hub_id, device=device)
        return cls(encoder, name=name, revision=encoder.fingerprint())

    def encode(self, inputs: Any, **_: Any) -> NDArray[np.float32]:
        """float32[n, d] of the texts of MTEB's batches, in their order."""
        return self._encoder.encode([text for batch in inputs for text in batch["text"]])
