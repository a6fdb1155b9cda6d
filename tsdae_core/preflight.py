"""Checks before a long run: the decoder needs the sentence vector, and it cannot look ahead.

A decoder that ignores the vector trains nothing (some decoder-only backbones do so silently), and one that
sees later tokens copies them. Knows nothing of data or optimizers.
"""

from __future__ import annotations

import numpy as np
import torch

from tsdae_core.batch import Batch
from tsdae_core.tsdae import TsdaeModel


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
    """Refuse a model whose decoder states change when a later input token changes.

    Raises:
        ValueError: if the state of any but the last token changes with the last token.
    """
    was_training = model.training
    model.eval()
    lengths = np.asarray(batch["target_lengths"], dtype=np.int64)
    ids = np.array(batch["target_ids"])
    last = np.cumsum(lengths) - 1
    changed = ids.copy()
    changed[last] = ids[0] if (ids[last] != ids[0]).all() else (ids[last] + 1) % (int(ids.max()) + 1)
    with torch.no_grad():
        vectors = model.encoder.embed(batch["source_ids"], batch["source_lengths"])
        before, order = model.decode(vectors, ids, lengths)
        after, _ = model.decode(vectors, changed, lengths)
    model.train(was_training)
    earlier = torch.from_numpy(~np.isin(order, last))
    difference = float((before - after)[earlier].abs().amax()) if bool(earlier.any()) else 0.0
    if difference > 1e-6:
        raise ValueError(
            f"the decoder sees later tokens (a state changed by {difference:.2g}), so it could copy its "
            "target; this backbone does not honour a causal mask"
        )
