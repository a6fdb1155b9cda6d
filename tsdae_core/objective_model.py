"""The base of what objectives train: one module with every trainable tensor.

Owns what any of them can be asked for beside its loss. Knows nothing of a particular objective.
"""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from tsdae_core.backbone import recompute_layers
from tsdae_core.batch import Batch, LossSums


class ObjectiveModel(nn.Module):
    """A module whose ``forward(batch)`` returns `LossSums`; DDP can wrap it."""

    def forward(self, batch: Batch) -> LossSums:
        """Return the summed loss and the number that it is to be divided by."""
        raise NotImplementedError

    def enable_gradient_checkpointing(self) -> None:
        """Compute every Transformer layer again in the backward pass instead of keeping what is inside it.

        Changes no number; saves memory for about a third more time. For both paths and every backbone.
        """
        for module in self.modules():
            if isinstance(module, PreTrainedModel):
                recompute_layers(module)
