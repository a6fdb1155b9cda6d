"""Rebuild texts from sentence vectors: a look at what a vector holds, for debugging.

Greedy and beam search with the TSDAE decoder (paper, section 3.1), without a key cache: meant for a few
sentences, not for corpora.

Shapes: B sentences, K beams, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tsdae_core.backbone import word_embeddings
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.tokens import SpecialFrame, special_frame
from tsdae_core.tsdae import Tie, TsdaeConfig
from tsdae_core.tsdae_model import TsdaeModel


def reconstruct(
    model: TsdaeModel, vectors_BS: Tensor, *, max_tokens: int | None = None, num_beams: int = 1
) -> list[str]:
    """Return the most likely text for each sentence vector.

    Args:
        model: encoder and decoder; its mode is left as it was.
        vectors_BS: float [B, dim], not normalised unless the encoder normalises.
        max_tokens: longest text, special tokens included; the encoder's own limit by default.
        num_beams: hypotheses kept per sentence; 1 is greedy.

    Raises:
        ValueError: if the tokenizer puts no token before a sentence, or a number is outside its range.
    """
    frame = special_frame(model.encoder.tokenizer)
    if not frame.prefix:
        raise ValueError("reconstruction needs a tokenizer that starts every sentence with a special token")
    if num_beams < 1:
        raise ValueError(f"num_beams={num_beams} must be at least 1")
    limit = model.encoder.max_tokens if max_tokens is None else max_tokens
    if not len(frame) < limit <= model.encoder.max_tokens:
        raise ValueError(
            f"max_tokens={limit} must be {len(frame) + 1} to {model.encoder.max_tokens}, with special tokens"
        )
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            rows = [_search(model, vector[None], frame, limit, num_beams) for vector in vectors_BS]
    finally:
        model.train(was_training)
    texts: list[str] = model.encoder.tokenizer.batch_decode(rows, skip_special_tokens=True)
    return texts


def model_from_weights(encoder: SentenceEncoder, weights: dict[str, Tensor]) -> TsdaeModel:
    """Return the trained encoder and decoder that a training state holds.

    Args:
        encoder: of the right shape, such as the one training started from; its weights are replaced.
        weights: by name, as `checkpoint.read_weights` returns them.

    Raises:
        ValueError: if they hold no decoder, or do not fit the encoder.
    """
    layers = {name.split(".")[1] for name in weights if name.startswith("bottleneck.")}
    if not layers:
        raise ValueError("these weights hold no decoder; only the tsdae objective trains one")
    tie: Tie = "tied"
    if any(name.startswith("decoder_backbone.") for name in weights):
        head = {name.removeprefix("lm_head.") for name in weights if name.startswith("lm_head.")}
        is_own = encoder.lm_head is not None and head == set(encoder.lm_head.state_dict())
        tie = "untied" if is_own else "scratch"
    config = TsdaeConfig(tie=tie, num_decoder_layers=len(layers))
    model = TsdaeModel(encoder, config=config, seed=0)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"these weights do not fit this encoder: {error}") from error
    return model.eval()


def _search(
    model: TsdaeModel, vector_1S: Tensor, frame: SpecialFrame, limit: int, num_beams: int
) -> list[int]:
    """Return the ids of the best hypothesis by mean log-probability per token."""
    stop = frame.suffix[0] if frame.suffix else None
    beams: list[tuple[float, list[int]]] = [(0.0, list(frame.prefix))]
    finished: list[tuple[float, list[int]]] = []
    for _ in range(limit - len(frame)):
        logprobs_KV = _next_token_logprobs(model, vector_1S, [ids for _, ids in beams])
        best_KN, ids_KN = logprobs_KV.topk(num_beams, dim=1)
        grown = [
            (score + float(best_KN[row, place]), [*ids, int(ids_KN[row, place])])
            for row, (score, ids) in enumerate(beams)
            for place in range(num_beams)
        ]
        grown.sort(key=lambda beam: -beam[0])
        finished += [beam for beam in grown[:num_beams] if beam[1][-1] == stop]
        beams = [beam for beam in grown if beam[1][-1] != stop][: num_beams - len(finished)]
        if not beams:
            break
    start = len(frame.prefix)
    return max(finished + beams, key=lambda beam: beam[0] / max(1, len(beam[1]) - start))[1]


def _next_token_logprobs(model: TsdaeModel, vector_1S: Tensor, beams: list[list[int]]) -> Tensor:
    """Return log-probabilities [K, V] of the token after each beam; all beams have the same length."""
    ids = np.asarray(beams, dtype=np.int64)
    lengths = np.full(ids.shape[0], ids.shape[1], dtype=np.int64)
    hidden_TD, order = model.decode(vector_1S.expand(ids.shape[0], -1), ids.reshape(-1), lengths)
    place = np.empty(order.shape[0], dtype=np.int64)
    place[order] = np.arange(order.shape[0])
    last = torch.from_numpy(place[np.cumsum(lengths) - 1]).to(hidden_TD.device)
    table = word_embeddings(model.decoder_backbone or model.encoder.backbone).weight
    logits_KV = model.lm_head.logits(hidden_TD.index_select(0, last), embeddings_VE=table)
    logprobs_KV: Tensor = logits_KV.log_softmax(dim=-1)
    return logprobs_KV
