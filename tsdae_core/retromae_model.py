"""The model of RetroMAE: TSDAE's modules, and how the losses of encoder and decoder meet.

Shapes: B sentences, M tokens hidden from the encoder, N from the decoder, D width.
"""

from __future__ import annotations

import numpy as np

from tsdae_core.backbone import word_embeddings
from tsdae_core.batch import Batch
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.loss_sums import LossSums, int64_tensor
from tsdae_core.mlm_model import states_at
from tsdae_core.objective_model import ObjectiveModel
from tsdae_core.ragged import offsets_of
from tsdae_core.retromae import RetromaeConfig
from tsdae_core.tsdae_model import TsdaeModel


class RetromaeModel(ObjectiveModel):
    """TSDAE's modules, used RetroMAE's way; one LM head serves both sides."""

    def __init__(self, encoder: SentenceEncoder, *, config: RetromaeConfig, seed: int) -> None:
        super().__init__()
        if encoder.pooling != "cls":
            raise ValueError(f"retromae needs pooling cls, the encoder pools by {encoder.pooling}")
        self.tsdae = TsdaeModel(encoder, config=config.decoder(), seed=seed)

    def forward(self, batch: Batch) -> LossSums:
        """Return both losses summed over the tokens that they predict, and the number of those."""
        encoder, head = self.tsdae.encoder, self.tsdae.lm_head
        lengths = np.asarray(batch["lengths"], dtype=np.int64)
        first = offsets_of(lengths)[:-1]
        states = states_at(
            encoder.backbone,
            batch["input_ids"],
            lengths,
            np.concatenate([first, batch["target_places"]]),
            use_packed=encoder.use_packed,
            causal=encoder.attention == "causal",
        )
        vectors_BD, hidden_MD = states[: lengths.shape[0]], states[lengths.shape[0] :]
        for module in encoder.heads:
            vectors_BD = module(vectors_BD)
        decoded_TD, order = self.tsdae.decode(vectors_BD, batch["decoder_input_ids"], lengths, causal=False)
        place_of = np.empty_like(order)
        place_of[order] = np.arange(order.shape[0])
        places_N = int64_tensor(place_of[batch["decoder_target_places"]], decoded_TD.device)
        table_VE = word_embeddings(encoder.backbone).weight
        decoder_table_VE = word_embeddings(self.tsdae.decoder_backbone or encoder.backbone).weight
        device = table_VE.device
        loss = head.loss_sum(hidden_MD, int64_tensor(batch["target_ids"], device), embeddings_VE=table_VE)
        loss = loss + head.loss_sum(
            decoded_TD.index_select(0, places_N),
            int64_tensor(batch["decoder_target_ids"], device),
            embeddings_VE=decoder_table_VE,
        )
        return LossSums(loss, int(batch["target_ids"].shape[0] + batch["decoder_target_ids"].shape[0]))
