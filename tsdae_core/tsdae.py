"""The TSDAE objective (arXiv 2104.06979): rebuild a sentence from the vector of its damaged copy.

Owns the batch layout and the model that turns a batch into a summed loss. Two paths give the same numbers:
packed for BERT-shaped backbones, padded through the backbone's own forward for the rest.

Shapes: B sentences, T tokens, D width, S width of the sentence vector.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from tsdae_core.backbone import (
    backbone_config,
    check_num_layers,
    keep_first_layers,
    new_backbone,
    word_embeddings,
)
from tsdae_core.batch import Batch, LossSums, cut_batch, int64_tensor
from tsdae_core.decoder import BottleneckInit, build_bottleneck, decode_packed, decode_padded
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.hashing import fold_key, keyed_uniform
from tsdae_core.lm_head import LmHead
from tsdae_core.noise import NoiseConfig, apply_noise, noise_vocabulary
from tsdae_core.objective_model import ObjectiveModel
from tsdae_core.packed import FusedProjections, fuse_projections, plan_packing
from tsdae_core.ragged import Int64s, Ragged, expand_spans, offsets_of
from tsdae_core.tokens import TokenizedTexts, special_frame

logger = logging.getLogger(__name__)

_LENGTHS_OF = {
    "source_ids": "source_lengths",
    "target_ids": "target_lengths",
    "decoder_ids": "target_lengths",
}

Tie = Literal["tied", "untied", "scratch"]
LossUnit = Literal["token", "sentence"]


@dataclass(frozen=True, kw_only=True)
class TsdaeConfig:
    """Choices of the TSDAE objective; pooling belongs to the encoder, dropout to its checkpoint.

    Attributes:
        noise: damage done to the encoder's input.
        tie: ``tied`` runs the encoder's own backbone as decoder, ``untied`` a copy of it, ``scratch`` a
            freshly initialised one.
        num_decoder_layers: None for as many as the encoder; fewer (the first ones) make a weaker decoder that
            leans more on the vector. A tied one then runs the encoder's first layers, without a copy.
        decoder_mask_ratio: share of the decoder's input tokens shown as the mask token, which weakens it too
            (RetroMAE, arXiv 2205.12035, masks its decoder's input). Never a special token.
        bottleneck_init: how the modules that add the sentence vector start: ``random``, as in the reference,
            or ``identity``, which adds the vector itself. From random weights the decoder must first learn to
            read the vector, and until then it pulls the encoder away from what it knew; with minutes of
            training instead of the paper's 100,000 steps that is the whole run.
        loss_per: what the summed loss of a step is divided by: its target ``token`` count, or its
            ``sentence`` count, which is the paper's sum over the tokens of a sentence.

    Raises:
        ValueError: for an unknown ``tie`` or ``loss_per``, or a number outside its range.
    """

    noise: NoiseConfig = field(default_factory=NoiseConfig)
    tie: Tie = "tied"
    num_decoder_layers: int | None = None
    decoder_mask_ratio: float = 0.0
    bottleneck_init: BottleneckInit = "random"
    loss_per: LossUnit = "token"

    def __post_init__(self) -> None:
        if self.tie not in get_args(Tie):
            raise ValueError(f"tie {self.tie!r} is unknown; choose one of {', '.join(get_args(Tie))}")
        if self.bottleneck_init not in get_args(BottleneckInit):
            raise ValueError(
                f"bottleneck_init {self.bottleneck_init!r} is unknown; choose one of "
                f"{', '.join(get_args(BottleneckInit))}"
            )
        if self.loss_per not in get_args(LossUnit):
            raise ValueError(
                f"loss_per {self.loss_per!r} is unknown; choose one of {', '.join(get_args(LossUnit))}"
            )
        if self.num_decoder_layers is not None and self.num_decoder_layers < 1:
            raise ValueError(f"num_decoder_layers={self.num_decoder_layers} must be at least 1")
        if not 0.0 <= self.decoder_mask_ratio < 1.0:
            raise ValueError(f"decoder_mask_ratio={self.decoder_mask_ratio} must lie in [0, 1)")


class TsdaeObjective:
    """Batches and model of TSDAE; holds arrays only, so it pickles into CPU tasks."""

    name = "tsdae"
    group_size = 1

    def __init__(self, tokenizer: PreTrainedTokenizerFast, config: TsdaeConfig) -> None:
        self.config = config
        self.frame = special_frame(tokenizer)
        self.vocab = noise_vocabulary(tokenizer)
        if config.decoder_mask_ratio > 0 and self.vocab.mask_id is None:
            raise ValueError("decoder_mask_ratio needs a tokenizer with a mask token; set it to 0")

    def make_batch(self, tokens: TokenizedTexts, row_ids: Int64s, *, seed: int, epoch: int) -> Batch:
        """Return ``row_ids`` [B], ``source_ids`` and ``target_ids`` (int32, framed), and lengths.

        With a decoder mask also ``decoder_ids``: ``target_ids`` as the decoder's input shows them.

        Args:
            tokens: B texts without special tokens.
            row_ids: int64[B], keys of the noise.
            seed: run seed.
            epoch: noise differs between epochs.

        Raises:
            ValueError: if a text is so empty that there is nothing to predict.
        """
        noisy = apply_noise(
            tokens, row_ids, seed=seed, epoch=epoch, config=self.config.noise, vocab=self.vocab
        )
        source, target = self.frame.wrap(noisy), self.frame.wrap(tokens.ids)
        if len(tokens) and int(target.lengths.min()) < 2:
            raise ValueError("a text has no token to predict; drop empty texts before training")
        batch: Batch = {
            "row_ids": np.asarray(row_ids, dtype=np.int64),
            "source_ids": source.values,
            "source_lengths": source.lengths,
            "target_ids": target.values,
            "target_lengths": target.lengths,
        }
        if self.config.decoder_mask_ratio > 0:
            batch["decoder_ids"] = self._masked(target, batch["row_ids"], seed=seed, epoch=epoch)
        return batch

    def make_batches(
        self, tokens: TokenizedTexts, row_ids: Int64s, bounds: Int64s, *, seed: int, epoch: int
    ) -> list[Batch]:
        """Return `make_batch` of the rows [bounds[i], bounds[i + 1]) for each i; made as one, then cut."""
        whole = self.make_batch(tokens, row_ids, seed=seed, epoch=epoch)
        return cut_batch(whole, bounds, lengths_of={k: v for k, v in _LENGTHS_OF.items() if k in whole})

    def _masked(self, target: Ragged, row_ids: Int64s, *, seed: int, epoch: int) -> NDArray[np.int32]:
        assert self.vocab.mask_id is not None
        lengths = target.lengths - len(self.frame)
        places = expand_spans(target.offsets[:-1] + len(self.frame.prefix), lengths)
        position = expand_spans(np.zeros_like(lengths), lengths)
        key = fold_key("decoder-mask", seed, epoch)
        hidden = keyed_uniform(key, np.repeat(row_ids, lengths), position) < self.config.decoder_mask_ratio
        if not self.frame.prefix:
            hidden &= position > 0  # nothing else tells the decoder where a sentence begins
        ids = target.values.astype(np.int32)
        ids[places[hidden]] = self.vocab.mask_id
        return ids

    def num_targets(self, batch: Batch) -> int:
        """Return what the summed loss is divided by: all tokens of a target but its first, or sentences."""
        return _num_targets(batch["target_lengths"], self.config.loss_per)

    def build_model(self, encoder: SentenceEncoder, *, seed: int) -> TsdaeModel:
        """Put the encoder (not a copy) and the decoder's own modules into one trainable module."""
        if encoder.is_tuned:
            logger.warning(
                "the start model is a tuned sentence encoder, where TSDAE works badly; start from a plain "
                "checkpoint, train TSDAE on the target texts first, then NLI and STS"
            )
        return TsdaeModel(encoder, config=self.config, seed=seed)


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
            fused=fused,
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

        ``decoder_ids``, where given, are the decoder's inputs instead of the targets themselves.
        """
        lengths = np.asarray(target_lengths, dtype=np.int64)
        offsets = offsets_of(lengths)
        is_input = np.ones(target_ids.shape[0], dtype=np.bool_)
        is_input[offsets[1:] - 1] = False
        is_label = np.ones(target_ids.shape[0], dtype=np.bool_)
        is_label[offsets[:-1]] = False
        input_ids = (target_ids if decoder_ids is None else decoder_ids)[is_input]
        hidden_TD, order = self.decode(vectors_BS, input_ids, lengths - 1, fused=fused)
        labels_T = int64_tensor(target_ids[is_label][order], hidden_TD.device)
        embeddings_VE = word_embeddings(self.decoder_backbone or self.encoder.backbone).weight
        loss_sum = self.lm_head.loss_sum(hidden_TD, labels_T, embeddings_VE=embeddings_VE)
        return LossSums(loss_sum, _num_targets(lengths, self.loss_per))

    def decode(
        self,
        vectors_BS: Tensor,
        input_ids: NDArray[Any],
        lengths: Int64s,
        *,
        fused: FusedProjections | None = None,
        causal: bool = True,
    ) -> tuple[Tensor, Int64s]:
        """Return decoder states [T, D] and, for each, the index of its token in ``input_ids`` (int64[T])."""
        backbone = self.decoder_backbone or self.encoder.backbone
        if not self.encoder.use_packed:
            ids_T, lengths_B = (
                int64_tensor(input_ids, vectors_BS.device),
                int64_tensor(lengths, vectors_BS.device),
            )
            hidden_TD = decode_padded(backbone, self.bottleneck, vectors_BS, ids_T, lengths_B, causal=causal)
            return hidden_TD, np.arange(input_ids.shape[0], dtype=np.int64)
        if fused is None or self.decoder_backbone is not None:
            fused = fuse_projections(backbone)
        plan = plan_packing(lengths, device=vectors_BS.device)
        ids_T = int64_tensor(input_ids[plan.token_order], vectors_BS.device)
        hidden_TD = decode_packed(
            backbone, self.bottleneck, vectors_BS, ids_T, plan, fused=fused, causal=causal
        )
        return hidden_TD, plan.token_order


def _num_targets(target_lengths: Int64s, loss_per: LossUnit) -> int:
    num_sentences = int(target_lengths.shape[0])
    return num_sentences if loss_per == "sentence" else int(target_lengths.sum()) - num_sentences


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
