"""Checks before a long run: the decoder needs the sentence vector, and it cannot look ahead.

A decoder that ignores the vector trains nothing (some decoder-only backbones do so silently), and one that
sees later tokens copies them. Knows nothing of data or optimizers.

Shapes: B sentences, L padded length, T tokens, D width, W width of the token embeddings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tsdae_core.backbone import word_embeddings
from tsdae_core.batch import Batch
from tsdae_core.padded import real_mask
from tsdae_core.ragged import Int64s
from tsdae_core.tsdae_model import TsdaeModel


def check_decoder_uses_vector(model: TsdaeModel, batch: Batch) -> None:
    """Refuse a model whose reconstruction loss does not depend on the sentence vector.

    Args:
        model: any mode; left as it was, without gradients.
        batch: one batch of the TSDAE objective.

    Raises:
        ValueError: if d loss / d vector is zero for some sentence.
    """
    vectors = model.encoder.embed(batch["source_ids"], batch["source_lengths"]).detach().requires_grad_()
    sums = model.reconstruct(vectors, batch["target_ids"], batch["target_lengths"])
    (grad,) = torch.autograd.grad(sums.loss_sum, vectors, allow_unused=True)
    if grad is None or bool((grad.abs().amax(1) == 0).any()):
        raise ValueError(
            "the decoder ignores the sentence vector (d loss / d vector is 0), so training cannot work; "
            "use a backbone from the supported list"
        )


def check_decoder_is_causal(model: TsdaeModel, batch: Batch) -> None:
    """Refuse a model in which a decoder state depends on a later input token.

    The gradient of the states of a text's first half, with respect to the embeddings of its second half, must
    be exactly zero.

    Args:
        model: any mode; left as it was, without gradients.
        batch: one batch of the TSDAE objective.

    Raises:
        ValueError: if one is not.
    """
    lengths = np.asarray(batch["target_lengths"], dtype=np.int64)
    position = np.concatenate([np.arange(length) for length in lengths])
    is_early = position < np.repeat((lengths + 1) // 2, lengths)
    was_training = model.training
    model.eval()
    try:
        states_TD, inputs, order = _decode(model, batch, np.asarray(batch["target_ids"]), lengths)
    finally:
        model.train(was_training)
    early = torch.from_numpy(is_early[order]).to(states_TD.device)
    # Random weights: a plain sum of LayerNorm's output is a constant, whatever comes in.
    weights = torch.empty_like(states_TD).uniform_(-1, 1, generator=_generator(states_TD.device))
    (grad,) = torch.autograd.grad((states_TD * weights)[early].sum(), inputs)
    # Packed inputs are one row of all tokens in the order of the states, padded ones a row per text.
    grad_TW = grad[0] if grad.shape[0] == 1 else grad[real_mask(torch.from_numpy(lengths).to(grad.device))]
    largest = float(grad_TW[~early].abs().amax()) if bool((~early).any()) else 0.0
    if largest > 0.0:
        raise ValueError(
            f"the decoder sees later tokens (a gradient of {largest:.2g} where 0 belongs), so it could copy "
            "its target; this backbone does not honour a causal mask"
        )


def _decode(
    model: TsdaeModel, batch: Batch, ids: NDArray[Any], lengths: Int64s
) -> tuple[Tensor, Tensor, Int64s]:
    """Return decoder states [T, D], the embeddings that they were made of, and the order of the states."""
    caught: list[Tensor] = []

    def catch(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        caught.append(output.detach().requires_grad_())
        return caught[-1]

    with torch.no_grad():
        vectors = model.encoder.embed(batch["source_ids"], batch["source_lengths"])
    table = word_embeddings(model.decoder_backbone or model.encoder.backbone)
    with torch.enable_grad(), table.register_forward_hook(catch):
        states_TD, order = model.decode(vectors, ids, lengths)
    (inputs,) = caught
    return states_TD, inputs, order


def _generator(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(0)
