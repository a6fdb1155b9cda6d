"""The model of RetroMAE's basic decoding: TSDAE's modules, and how the losses of encoder and decoder meet.

Shapes: B sentences, M tokens hidden from the encoder, N from the decoder, D width.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from tsdae_core.backbone import word_embeddings
from tsdae_core.batch import Batch
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.loss_sums import LossSums, int64_tensor
from tsdae_core.mlm_model import states_at
from tsdae_core.objective_model import ObjectiveModel
from tsdae_core.packed import FusedProjections, fuse_projections
from tsdae_core.ragged import offsets_of
from tsdae_core.retromae import RetromaeConfig
from tsdae_core.token_table import TokenTable
from tsdae_core.tsdae_model import TsdaeModel


class RetromaeModel(ObjectiveModel):
    """TSDAE's modules, used RetroMAE's way; one LM head serves both sides."""

    def __init__(self, encoder: SentenceEncoder, *, config: RetromaeConfig, seed: int) -> None:
        super().__init__()
        self.tsdae = TsdaeModel(encoder, config=config.decoder(), seed=seed)

    def forward(self, batch: Batch) -> LossSums:
        """Return both losses summed over the tokens that they predict, and the number of those."""
        encoder, head = self.tsdae.encoder, self.tsdae.lm_head
        backbone = self.tsdae.decoder_backbone or encoder.backbone
        table = TokenTable(word_embeddings(encoder.backbone))
        decoder_table = TokenTable(word_embeddings(backbone)) if self.tsdae.decoder_backbone else table
        fused = fused_decoder = None
        if encoder.use_packed:
            fused = fused_decoder = fuse_projections(encoder.backbone, table)
            if self.tsdae.decoder_backbone:
                fused_decoder = fuse_projections(backbone, decoder_table)
        vectors_BD, hidden_MD = vectors_and_states(encoder, batch, fused=fused)
        lengths = np.asarray(batch["lengths"], dtype=np.int64)
        decoded_TD, order = self.tsdae.decode(
            vectors_BD, batch["decoder_input_ids"], lengths, fused=fused_decoder, causal=False
        )
        place_of = np.empty_like(order)
        place_of[order] = np.arange(order.shape[0])
        places_N = int64_tensor(place_of[batch["decoder_target_places"]], decoded_TD.device)
        targets_M = int64_tensor(batch["target_ids"], decoded_TD.device)
        targets_N = int64_tensor(batch["decoder_target_ids"], decoded_TD.device)
        loss = head.loss_sum(hidden_MD, targets_M, table=table)
        loss = loss + head.loss_sum(decoded_TD.index_select(0, places_N), targets_N, table=decoder_table)
        return LossSums(loss, int(batch["target_ids"].shape[0] + batch["decoder_target_ids"].shape[0]))


def vectors_and_states(
    encoder: SentenceEncoder, batch: Batch, *, fused: FusedProjections | None
) -> tuple[Tensor, Tensor]:
    """Return, from one pass, the sentence vectors [B, D] and the states of the encoder's targets [M, D].

    Without ``fused`` the backbone's own forward runs.
    """
    lengths = np.asarray(batch["lengths"], dtype=np.int64)
    states = states_at(
        encoder.backbone,
        batch["input_ids"],
        lengths,
        np.concatenate([offsets_of(lengths)[:-1], batch["target_places"]]),
        fused=fused,
        causal=encoder.attention == "causal",
    )
    vectors_BD, hidden_MD = states[: lengths.shape[0]], states[lengths.shape[0] :]
    for module in encoder.heads:
        vectors_BD = module(vectors_BD)
    return vectors_BD, hidden_MD
