"""BERT-flow (Li et al. 2020, arXiv 2011.05864): map the corpus's vectors to a standard normal, invertibly.

A small Glow as in that paper: scale and shift per dimension, a fixed random split of the dimensions, additive
coupling; built from zuko's transforms. The encoder stays frozen. Owns the module, its fit and its files.
Knows nothing of texts or of the encoder.

Shapes: B vectors, D width.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from zuko.flows import GeneralCouplingTransform
from zuko.lazy import LazyComposedTransform, UnconditionalTransform
from zuko.transforms import AdditiveTransform, MonotonicAffineTransform

from tsdae_core.flow_config import FlowConfig as FlowConfig
from tsdae_core.hashing import fold_key, keyed_permutation

_WEIGHTS, _CONFIG = "model.safetensors", "config.json"


class Flow(nn.Module):
    """The invertible map; it starts as the standardisation that ``mean`` and ``std`` (buffers [D]) say."""

    def __init__(self, width: int, config: FlowConfig, *, seed: int) -> None:
        super().__init__()
        if width < 2:
            raise ValueError(f"a flow needs vectors of at least 2 dimensions, got {width}")
        self.width, self.config = width, config
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("std", torch.ones(width))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(fold_key("flow", seed) >> 1)
            parts = [_glow_step(width, config, seed, index) for index in range(config.num_steps)]
            self.steps: Any = LazyComposedTransform(*chain.from_iterable(parts))

    def forward(self, vectors_BD: Tensor) -> Tensor:
        """Return the latent vectors [B, D], which are compared by cosine."""
        latent_BD: Tensor = self.steps()((vectors_BD - self.mean) / self.std)
        return latent_BD

    def inverse(self, latent_BD: Tensor) -> Tensor:
        """Return the vectors [B, D] whose image is given."""
        standard_BD: Tensor = self.steps().inv(latent_BD)
        return standard_BD * self.std + self.mean

    def log_prob(self, vectors_BD: Tensor) -> Tensor:
        """Return the log density [B] that the flow gives to vectors."""
        latent_BD, log_det_B = self.latent_and_log_det(vectors_BD)
        return log_det_B - 0.5 * (latent_BD.square() + math.log(2 * math.pi)).sum(-1)

    def latent_and_log_det(self, vectors_BD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the latent vectors [B, D] and the log of the Jacobian's determinant [B]."""
        latent_BD, log_det_B = self.steps().call_and_ladj((vectors_BD - self.mean) / self.std)
        return latent_BD, log_det_B - self.std.log().sum()


def fit_flow(
    vectors: NDArray[np.floating], config: FlowConfig | None = None, *, seed: int
) -> tuple[Flow, list[float]]:
    """Fit a flow by maximum likelihood; return it, and the mean negative log density of each epoch.

    Args:
        vectors: float[n, d], a sample of the corpus.
        config: None for the defaults.
        seed: decides weights, splits and order.

    Raises:
        ValueError: for fewer than two vectors.
    """
    config = config or FlowConfig()
    data = torch.from_numpy(np.asarray(vectors, dtype=np.float32))
    if data.shape[0] < 2:
        raise ValueError(f"a flow needs at least 2 vectors, got {data.shape[0]}")
    flow = Flow(data.shape[1], config, seed=seed).train()
    flow.mean.copy_(data.mean(0))
    flow.std.copy_(data.std(0).clamp_min(1e-6))
    optimizer = torch.optim.AdamW(flow.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    losses = []
    for epoch in range(config.num_epochs):
        order = torch.from_numpy(keyed_permutation(data.shape[0], seed, epoch))
        loss_sum = 0.0
        for rows in torch.split(order, config.batch_size):
            optimizer.zero_grad(set_to_none=True)
            loss = -flow.log_prob(data[rows]).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            loss_sum += float(loss.detach()) * rows.shape[0]
        losses.append(loss_sum / data.shape[0])
    return flow.eval(), losses


def write_flow(folder: Path, flow: Flow) -> None:
    """Write weights and settings into an existing folder."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in flow.state_dict().items()}
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    content = {"width": flow.width, **asdict(flow.config)}
    (folder / _CONFIG).write_text(json.dumps(content, indent=2) + "\n")


def read_flow(folder: Path) -> Flow:
    """Return the flow of a folder."""
    content: dict[str, Any] = json.loads((folder / _CONFIG).read_text())
    flow = Flow(int(content.pop("width")), FlowConfig(**content), seed=0)
    flow.load_state_dict(load_file(folder / _WEIGHTS))
    return flow.eval()


def _glow_step(width: int, config: FlowConfig, seed: int, index: int) -> tuple[nn.Module, nn.Module]:
    """Return scale and shift, and the coupling, whose last layer is 0: a step starts as the identity."""
    split = torch.from_numpy(keyed_permutation(width, fold_key("flow-split", seed, index))) % 2 == 0
    coupling = GeneralCouplingTransform(
        width,
        mask=split,
        univariate=AdditiveTransform,
        shapes=[()],
        hidden_features=(config.hidden_size, config.hidden_size),
    )
    last = list(coupling.hyper.children())[-1]
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    scale = UnconditionalTransform(MonotonicAffineTransform, torch.zeros(width), torch.zeros(width))
    return scale, coupling
