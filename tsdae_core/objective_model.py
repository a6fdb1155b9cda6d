"""The base of what objectives train: one module with every trainable tensor.

Owns what any of them can be asked for beside its loss. Knows nothing of a particular objective.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import nn
from transformers import PreTrainedModel

from tsdae_core.backbone import family_of, layers_of, recompute_layers
from tsdae_core.batch import Batch
from tsdae_core.decoder import BottleneckLayer
from tsdae_core.lm_head import LmHead
from tsdae_core.loss_sums import LossSums


class ObjectiveModel(nn.Module, ABC):
    """A module whose ``forward(batch)`` returns `LossSums`; DDP can wrap it."""

    @abstractmethod
    def forward(self, batch: Batch) -> LossSums:
        """Return the summed loss and the number that it is to be divided by."""

    def enable_gradient_checkpointing(self) -> None:
        """Compute every Transformer layer again in the backward pass instead of keeping what is inside it.

        Changes no number; saves memory for about a third more time. For both paths and every backbone.
        """
        for backbone in self._backbones():
            recompute_layers(backbone)

    def compile_blocks(self, *, backend: str = "inductor") -> None:
        """Compile, with `torch.compile`, what a layer does beside attention, the bottleneck and the LM head.

        Not the whole model: the layout of a batch changes with its lengths and is computed outside torch, so
        that a graph of everything would break or be built again at every step. Each of these blocks takes
        rows of one width, and one graph serves any number of them. For both paths; equal to the uncompiled
        model up to rounding, except that ``inductor`` draws its own dropout.

        Args:
            backend: of `torch.compile`; ``inductor`` needs a C++ compiler on CPUs.
        """
        blocks: list[nn.Module] = [
            module for module in self.modules() if isinstance(module, (BottleneckLayer, LmHead))
        ]
        for backbone in self._backbones():
            attention = family_of(backbone).attention.partition(".")[0]
            for layer in dict.fromkeys(layers_of(backbone)):
                blocks += [
                    child
                    for name, child in layer.named_children()
                    if name != attention and "att" not in name and not isinstance(child, nn.ModuleList)
                ]
        for block in blocks:
            block.compile(backend=backend, dynamic=True)

    def _backbones(self) -> list[nn.Module]:
        return [module for module in self.modules() if isinstance(module, PreTrainedModel)]
