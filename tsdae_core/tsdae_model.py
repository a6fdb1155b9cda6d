"""The model of the TSDAE objective: encoder, bottleneck decoder, LM head, and the summed loss of a batch.

Two paths give the same numbers: packed for BERT-shaped backbones, padded through the backbone's own forward
for the rest.

Shapes: B sentences, T tokens, D width, S width of the sentence vector.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tsdae_core.backbone import (
    backbone_config,
    check_num_layers,
    keep_first_layers,
    new_backbone,
    word_embeddings,
)
from tsdae_core.batch import Batch
from tsdae_core.decoder import build_bottleneck, decode_packed, decode_padded
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.hashing import fold_key
from tsdae_core.lm_head import LmHead
from tsdae_core.loss_sums import LossSums, int64_tensor
from tsdae_core.objective_model import ObjectiveModel
from tsdae_core.packed import FusedProjections, fuse_projections, plan_packing
from tsdae_core.ragged import Int64s, offsets_of
from tsdae_core.token_table import TokenTable
from tsdae_core.tsdae import LossUnit, TsdaeConfig, count_targets


class TsdaeModel(ObjectiveModel):
    """Encoder, bottleneck decoder and LM head.

    Attributes:
        encoder: the sentence encoder being trained.
        lm_head: the checkpoint's head, or a fresh one where it had none.
        bottleneck: one module per decoder layer.
        decoder_backbone: None when tied.
        loss_per: unit of the number that comes with the loss.
    """

    def __init__(self, encoder: SentenceEncoder, *, config: TsdaeConfig, seed: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.loss_per: LossUnit = config.loss_per
        if config.num_decoder_layers is not None:
            check_num_layers(encoder.backbone, config.num_decoder_layers)
        self.decoder_backbone = _decoder_backbone(encoder.backbone, config, seed)
        backbone = self.decoder_backbone or encoder.backbone
        self.bottleneck = build_bottleneck(
            backbone,
            vector_width=encoder.dim,
            seed=fold_key("bottleneck", seed) >> 1,
            num_layers=config.num_decoder_layers,
            init=config.bottleneck_init,
        )
        head = encoder.lm_head if config.tie != "scratch" else None
        self.lm_head = copy.deepcopy(head) or LmHead.for_backbone(
            backbone, seed=fold_key("lm_head", seed) >> 1
        )
        self.to(encoder.device, word_embeddings(backbone).weight.dtype)

    def forward(self, batch: Batch) -> LossSums:
        """Return the summed reconstruction loss and the number of its unit, see ``TsdaeConfig.loss_per``."""
        fused = fuse_projections(self.encoder.backbone) if self.encoder.use_packed else None
        vectors_BS = self.encoder.embed(batch["source_ids"], batch["source_lengths"], fused=fused)
        return self.reconstruct(
            vectors_BS,
            batch["target_ids"],
            batch["target_lengths"],
            decoder_ids=batch.get("decoder_ids"),
            fused=fused if self.decoder_backbone is None else None,
        )

    def reconstruct(
        self,
        vectors_BS: Tensor,
        target_ids: NDArray[Any],
        target_lengths: Int64s,
        *,
        decoder_ids: NDArray[Any] | None = None,
        fused: FusedProjections | None = None,
    ) -> LossSums:
        """Return the summed loss of rebuilding targets (with special tokens) from sentence vectors.

        ``decoder_ids``, where given, are the decoder's inputs instead of the targets themselves; ``fused``
        is of the decoder's backbone.
        """
        backbone = self.decoder_backbone or self.encoder.backbone
        table = TokenTable(word_embeddings(backbone)) if fused is None else fused.table
        if fused is None and self.encoder.use_packed:
            fused = fuse_projections(backbone, table)
        lengths = np.asarray(target_lengths, dtype=np.int64)
        offsets = offsets_of(lengths)
        is_input = np.ones(target_ids.shape[0], dtype=np.bool_)
        is_input[offsets[1:] - 1] = False
        is_label = np.ones(target_ids.shape[0], dtype=np.bool_)
        is_label[offsets[:-1]] = False
        input_ids = (target_ids if decoder_ids is None else decoder_ids)[is_input]
        hidden_TD, order = self.decode(vectors_BS, input_ids, lengths - 1, fused=fused)
        labels_T = int64_tensor(target_ids[is_label][order], hidden_TD.device)
        loss_sum = self.lm_head.loss_sum(hidden_TD, labels_T, table=table)
        return LossSums(loss_sum, count_targets(lengths, self.loss_per))

    def decode(
        self,
        vectors_BS: Tensor,
        input_ids: NDArray[Any],
        lengths: Int64s,
        *,
        fused: FusedProjections | None = None,
        causal: bool = True,
    ) -> tuple[Tensor, Int64s]:
        """Return decoder states [T, D] and, for each, the index of its token in ``input_ids`` (int64[T]).

        ``fused`` is of the decoder's backbone.
        """
        backbone = self.decoder_backbone or self.encoder.backbone
        if not self.encoder.use_packed:
            ids_T, lengths_B = (
                int64_tensor(input_ids, vectors_BS.device),
                int64_tensor(lengths, vectors_BS.device),
            )
            hidden_TD = decode_padded(backbone, self.bottleneck, vectors_BS, ids_T, lengths_B, causal=causal)
            return hidden_TD, np.arange(input_ids.shape[0], dtype=np.int64)
        fused = fused or fuse_projections(backbone)
        plan = plan_packing(lengths, device=vectors_BS.device)
        ids_T = int64_tensor(input_ids[plan.token_order], vectors_BS.device)
        hidden_TD = decode_packed(
            backbone, self.bottleneck, vectors_BS, ids_T, plan, fused=fused, causal=causal
        )
        return hidden_TD, plan.token_order


def _decoder_backbone(backbone: nn.Module, config: TsdaeConfig, seed: int) -> nn.Module | None:
    if config.tie == "tied":
        return None
    if config.tie == "untied":
        decoder = copy.deepcopy(backbone)
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(fold_key("scratch-decoder", seed) >> 1)
            decoder = new_backbone(backbone_config(backbone))
    if config.num_decoder_layers is not None:
        keep_first_layers(decoder, config.num_decoder_layers)
    return decoder
