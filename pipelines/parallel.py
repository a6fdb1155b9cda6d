"""The model on one worker and its links to the others: whole copies (DDP) or shards (FSDP2).

Owns wrapping, sums over workers, and turning copies or shards into whole tensors and back, so that a
checkpoint is the same for both and for any number of workers. Knows nothing of steps, data or files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from pipelines.train_config import TrainConfig
from tsdae_core.backbone import layers_of
from tsdae_core.checkpoint import TrainingState, load_weights
from tsdae_core.optim import build_optimizer

_T = TypeVar("_T")


class Parallel:
    """A trained module on this worker.

    Attributes:
        model: the module itself; sharded in place under FSDP2.
        wrapped: what a training step calls.
        optimizer: of the model's parameters, or of this worker's shards of them.
        sharded: whether parameters are cut into shards, so that every forward pass needs all workers.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        config: TrainConfig,
        rank: int,
        world_size: int,
        device: torch.device,
        state: TrainingState | None,
    ):
        """Restores `state`, moves the model to the device and links it to the other workers.

        Under FSDP2 every Transformer layer is a unit, whose weights are whole only while it runs. The packed
        path reads weights outside of their modules, so the model must be on the general path then.
        """
        self.rank, self.world_size, self.device = rank, world_size, device
        self.sharded = config.strategy == "fsdp2" and world_size > 1
        self.model = model
        if state is not None:
            load_weights(model, state)
        model.to(device)
        self.wrapped: nn.Module = model
        if self.sharded:
            mesh = init_device_mesh(device.type, (world_size,))
            for layer in _layers(model):
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        elif world_size > 1:
            self.wrapped = DistributedDataParallel(model)
        self.optimizer = build_optimizer(model, config.optim)
        if state is not None:
            self.optimizer.load_state_dict(self._sharded_slots(state.optimizer))

    def sum(self, *values: float) -> list[float]:
        """The values added over all workers, the same on each."""
        if self.world_size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return [float(value) for value in total]

    def gather(self, value: _T) -> list[_T]:
        """One value of every worker, in the order of ranks, on each of them."""
        if self.world_size == 1:
            return [value]
        gathered: list[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, value)
        return gathered

    def weights(self) -> dict[str, Tensor]:
        """The whole weights by name; every worker has to call this."""
        return {name: _whole(value) for name, value in self.model.state_dict().items()}

    def optimizer_state(self) -> dict[str, Any]:
        """The optimizer's state with whole tensors; every worker has to call this."""
        state = self.optimizer.state_dict()
        slots = {
            index: {name: _whole(value) for name, value in of_param.items()}
            for index, of_param in state["state"].items()
        }
        return {"state": slots, "param_groups": state["param_groups"]}

    @contextmanager
    def whole_root(self) -> Iterator[None]:
        """Parts of the model can be called by themselves in the body, on all workers alike."""
        if not isinstance(self.model, FSDPModule):
            yield
            return
        self.model.unshard()
        try:
            yield
        finally:
            self.model.reshard()

    def _sharded_slots(self, state: dict[str, Any]) -> dict[str, Any]:
        """Whole slots cut as the parameters they belong to are."""
        params = [param for group in self.optimizer.param_groups for param in group["params"]]
        slots = {
            index: {name: _cut_like(params[index], value) for name, value in of_param.items()}
            for index, of_param in state["state"].items()
        }
        return {"state": slots, "param_groups": state["param_groups"]}


def autocast(config: TrainConfig, device: torch.device) -> Any:
    """The context in which forward passes run at the configured precision."""
    if config.precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def _layers(model: nn.Module) -> list[nn.Module]:
    """Every Transformer layer once; shared layers and a backbone that runs twice are no exception."""
    backbones = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    return list(dict.fromkeys(layer for backbone in backbones for layer in layers_of(backbone)))


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _cut_like(param: Tensor, slot: Tensor) -> Tensor:
    if not isinstance(param, DTensor) or slot.shape != param.shape:
        return slot
    return distribute_tensor(slot.to(param.device), param.device_mesh, param.placements)
