"""The model of RetroMAE's enhanced decoding (arXiv 2205.12035, section 3.3).

Two streams go into one Transformer layer. Queries come from the sentence vector with each position's
embedding, keys and values from the sentence itself, whose first token gives its place to the vector; every
position attends under its own mask, and every token is predicted. The layer has BERT's shape; embeddings and
LM head are the encoder's.

Shapes: B sentences, T packed tokens, M tokens hidden from the encoder, N tokens to rebuild, D width, n
sentences of a length group, L its padded length.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tsdae_core.backbone import (
    FAMILIES,
    backbone_config,
    family_of,
    first_position,
    layers_of,
    new_backbone,
    recomputes_layers,
    word_embeddings,
)
from tsdae_core.batch import Batch
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.hashing import fold_key
from tsdae_core.keyed_dropout import PassKeys, begin_pass, layer_dropout
from tsdae_core.lm_head import LmHead
from tsdae_core.loss_sums import LossSums, int64_tensor
from tsdae_core.objective_model import ObjectiveModel
from tsdae_core.packed import PackedPlan, attend, fuse_projections, plan_packing
from tsdae_core.ragged import Int64s, offsets_of
from tsdae_core.retromae_model import vectors_and_states
from tsdae_core.token_table import TokenTable
from tsdae_core.tsdae import Tie


class EnhancedRetromaeModel(ObjectiveModel):
    """Encoder, LM head and the decoder's layer.

    Attributes:
        encoder: the sentence encoder being trained.
        lm_head: the checkpoint's head, or a fresh one where it had none; it serves both sides.
        layer: None when tied.

    Raises:
        ValueError: for a backbone without BERT's shape, or vectors of another width than its own.
    """

    def __init__(self, encoder: SentenceEncoder, *, tie: Tie, seed: int) -> None:
        super().__init__()
        backbone = encoder.backbone
        config = backbone_config(backbone)
        if not family_of(backbone).packed or getattr(backbone, "embeddings_project", None) is not None:
            packed = ", ".join(name for name, family in FAMILIES.items() if family.packed)
            raise ValueError(
                f"decoding enhanced needs a backbone of BERT's shape ({packed}), with embeddings as wide as "
                f"its layers, which this {config.model_type} has not; use decoding basic"
            )
        if encoder.dim != int(config.hidden_size):
            raise ValueError(
                f"decoding enhanced needs vectors of the backbone's width {config.hidden_size}, got "
                f"{encoder.dim} (a Dense module after pooling?); use decoding basic"
            )
        self.encoder = encoder
        self.layer = _decoder_layer(backbone, tie, seed)
        self.lm_head = copy.deepcopy(encoder.lm_head) or LmHead.for_backbone(
            backbone, seed=fold_key("lm_head", seed) >> 1
        )
        self.to(encoder.device, word_embeddings(backbone).weight.dtype)

    def forward(self, batch: Batch) -> LossSums:
        """Return both losses summed over the tokens that they predict, and the number of those."""
        backbone = self.encoder.backbone
        table = TokenTable(word_embeddings(backbone))
        fused = fuse_projections(backbone, table) if self.encoder.use_packed else None
        vectors_BD, hidden_MD = vectors_and_states(self.encoder, batch, fused=fused)
        decoded_ND = self._decode(vectors_BD, batch, table)
        targets_M = int64_tensor(batch["target_ids"], decoded_ND.device)
        targets_N = int64_tensor(batch["decoder_target_ids"], decoded_ND.device)
        loss = self.lm_head.loss_sum(hidden_MD, targets_M, table=table)
        loss = loss + self.lm_head.loss_sum(decoded_ND, targets_N, table=table)
        return LossSums(loss, int(targets_M.shape[0] + targets_N.shape[0]))

    def _decode(self, vectors_BD: Tensor, batch: Batch, table: TokenTable) -> Tensor:
        """Return the decoder's states [N, D] of the tokens at ``decoder_target_places``."""
        backbone, device = self.encoder.backbone, vectors_BD.device
        lengths = np.asarray(batch["lengths"], dtype=np.int64)
        plan = plan_packing(lengths, device=device)
        ids_T = int64_tensor(np.asarray(batch["decoder_input_ids"])[plan.token_order], device)
        place_of = np.empty_like(plan.token_order)
        place_of[plan.token_order] = np.arange(plan.token_order.shape[0])
        query_TD, context_TD, keys = _streams(backbone, vectors_BD, ids_T, plan, table)
        run = partial(
            _run_layer,
            layer=self.layer or layers_of(backbone)[0],
            plan=plan,
            seen=_seen_by_group(batch["decoder_seen"], lengths, plan, device),
            keys=keys,
            keep=torch.from_numpy(place_of[np.asarray(batch["decoder_target_places"])]).to(device),
        )
        if recomputes_layers(backbone) and torch.is_grad_enabled():
            again: Tensor = checkpoint(run, query_TD, context_TD, use_reentrant=False)
            return again
        return run(query_TD, context_TD)


def _decoder_layer(backbone: nn.Module, tie: Tie, seed: int) -> nn.Module | None:
    if tie == "tied":
        return None
    if tie == "untied":
        return copy.deepcopy(layers_of(backbone)[0])
    config = copy.deepcopy(backbone_config(backbone))
    config.num_hidden_layers = 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(fold_key("scratch-decoder", seed) >> 1)
        return layers_of(new_backbone(config))[0]


def _streams(
    backbone: nn.Module, vectors_BD: Tensor, ids_T: Tensor, plan: PackedPlan, table: TokenTable
) -> tuple[Tensor, Tensor, PassKeys | None]:
    """Return queries and context, both [T, D] in packed order, and the dropout keys of the queries."""
    embed = backbone.get_submodule("embeddings")
    positions_1T = (plan.positions + first_position(backbone))[None]

    def stream(rows_TD: Tensor) -> tuple[Tensor, PassKeys | None]:
        keys = begin_pass(ids_T, plan.row_of_token, plan.positions, num_rows=plan.order.shape[0])
        with layer_dropout(keys, -1):
            return embed(inputs_embeds=rows_TD[None], position_ids=positions_1T)[0], keys

    context_TD, _ = stream(table.rows(ids_T))
    query_TD, keys = stream(vectors_BD.index_select(0, plan.row_of_token))
    first_BD = vectors_BD.index_select(0, plan.row_of_token.index_select(0, plan.first))
    return query_TD, context_TD.index_copy(0, plan.first, first_BD.to(context_TD.dtype)), keys


def _run_layer(
    query_TD: Tensor,
    context_TD: Tensor,
    *,
    layer: nn.Module,
    plan: PackedPlan,
    seen: Sequence[Tensor],
    keys: PassKeys | None,
    keep: Tensor,
) -> Tensor:
    attention = layer.get_submodule("attention.self")
    query, key, value = (attention.get_submodule(name) for name in ("query", "key", "value"))
    with layer_dropout(keys, 0) as dropout:
        qkv_TE = torch.cat([query(query_TD), key(context_TD), value(context_TD)], dim=1)
        attended_TD = attend(qkv_TE, plan, layer, causal=False, keyed=dropout, masks=seen)
        attended_ND, query_ND = attended_TD.index_select(0, keep), query_TD.index_select(0, keep)
        if dropout is not None:
            dropout.keys = dropout.keys.index_select(0, keep)
        hidden_ND = layer.get_submodule("attention.output")(attended_ND, query_ND)
        inner = layer.get_submodule("intermediate")(hidden_ND)
        out: Tensor = layer.get_submodule("output")(inner, hidden_ND)
    return out


def _seen_by_group(
    packed_bits: NDArray[Any], lengths: Int64s, plan: PackedPlan, device: torch.device
) -> list[Tensor]:
    """Return bool[n, 1, L, L] for each length group of the plan; padding sees the first place alone."""
    offsets = offsets_of(lengths**2)
    bits = np.unpackbits(np.asarray(packed_bits, dtype=np.uint8), count=int(offsets[-1])).astype(np.bool_)
    masks, begin = [], 0
    for group in plan.groups:
        longest = group.padded_length
        seen_nLL = np.zeros((group.num_sentences, longest, longest), dtype=np.bool_)
        seen_nLL[:, :, 0] = True
        for place, row in enumerate(plan.order[begin : begin + group.num_sentences].tolist()):
            length = int(lengths[row])
            square = bits[offsets[row] : offsets[row + 1]].reshape(length, length)
            seen_nLL[place, :length, :length] = square
        begin += group.num_sentences
        masks.append(torch.from_numpy(seen_nLL[:, None]).to(device))
    return masks
