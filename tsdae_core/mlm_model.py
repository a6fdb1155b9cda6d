"""The model of masked language modelling: the loss on hidden tokens only, and states at chosen places.

Shapes: T tokens, M hidden tokens, D width.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tsdae_core.backbone import word_embeddings
from tsdae_core.batch import Batch
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.hashing import fold_key
from tsdae_core.lm_head import LmHead
from tsdae_core.loss_sums import LossSums, int64_tensor
from tsdae_core.objective_model import ObjectiveModel
from tsdae_core.packed import FusedProjections, fuse_projections, plan_packing, run_packed
from tsdae_core.padded import run_padded
from tsdae_core.ragged import Int64s
from tsdae_core.token_table import TokenTable


class MlmModel(ObjectiveModel):
    """Backbone and LM head; pooling and what follows it take no part."""

    def __init__(self, encoder: SentenceEncoder, *, seed: int) -> None:
        super().__init__()
        self.backbone = encoder.backbone
        self.use_packed, self.causal = encoder.use_packed, encoder.attention == "causal"
        head = copy.deepcopy(encoder.lm_head)
        self.lm_head = head or LmHead.for_backbone(self.backbone, seed=fold_key("lm_head", seed) >> 1)
        self.to(encoder.device, word_embeddings(self.backbone).weight.dtype)

    def forward(self, batch: Batch) -> LossSums:
        """Return the loss summed over hidden tokens, and their number."""
        table = TokenTable(word_embeddings(self.backbone))
        fused = fuse_projections(self.backbone, table) if self.use_packed else None
        targets_M = int64_tensor(batch["target_ids"], table.weight.device)
        hidden_MD = states_at(
            self.backbone,
            batch["input_ids"],
            batch["lengths"],
            batch["target_places"],
            fused=fused,
            causal=self.causal,
        )
        loss_sum = self.lm_head.loss_sum(hidden_MD, targets_M, table=table)
        return LossSums(loss_sum, int(targets_M.shape[0]))


def states_at(
    backbone: nn.Module,
    input_ids: NDArray[Any],
    lengths: Int64s,
    places: Int64s,
    *,
    fused: FusedProjections | None,
    causal: bool,
) -> Tensor:
    """Return the last hidden states [M, D] of the tokens at ``places`` (int64[M], into ``input_ids``).

    Without ``fused`` the backbone's own forward runs.
    """
    device = word_embeddings(backbone).weight.device
    lengths, places = np.asarray(lengths, dtype=np.int64), np.asarray(places)
    if fused is None:
        ids_T, lengths_B = int64_tensor(input_ids, device), int64_tensor(lengths, device)
        hidden_TD = run_padded(backbone, ids_T, lengths_B, causal=causal)
        return hidden_TD.index_select(0, int64_tensor(places, device))
    plan = plan_packing(lengths, device=device)
    packed_place = np.empty_like(plan.token_order)
    packed_place[plan.token_order] = np.arange(plan.token_order.shape[0])
    return run_packed(
        backbone,
        int64_tensor(input_ids[plan.token_order], device),
        plan,
        causal=False,
        fused=fused,
        keep=torch.from_numpy(packed_place[places]).to(device),
    )
