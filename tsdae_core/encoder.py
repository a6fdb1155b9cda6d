"""The sentence encoder: texts to vectors, and ids to vectors with gradients.

Owns backbone, tokenizer, pooling and the modules after it, loading, saving and the fingerprint. Knows nothing
of noise, decoders or objectives; it only remembers the LM head its checkpoint came with, for whoever trains.

Shapes: B sentences, T packed tokens, D width.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tsdae_core.backbone import backbone_config, family_of, max_positions
from tsdae_core.choices import Attention, EncodePrecision
from tsdae_core.head_files import (
    HEAD_FILE,
    fits_class,
    is_trained_for_language,
    load_pretrained,
    masked_lm_state,
    write_head,
)
from tsdae_core.int8 import check_int8, int8_projections, sample_sentences
from tsdae_core.layout import local_folder, read_folder, write_folder
from tsdae_core.lm_head import LmHead
from tsdae_core.packed import FusedProjections, fuse_projections, plan_packing, run_packed
from tsdae_core.padded import run_padded
from tsdae_core.pooling import Dense, Normalize, PoolingMode, pool
from tsdae_core.ragged import Int64s, Ragged, offsets_of
from tsdae_core.tokens import special_frame, tokenize_texts

logger = logging.getLogger(__name__)

_DEFAULT_MAX_TOKENS = 512
_BLOCK_TEXTS = 8192
# Kept in config.json, where other programs leave it alone.
_ATTENTION_KEY = "tsdae_attention"
_NOT_FINGERPRINTED = (
    "_name_or_path",
    "transformers_version",
    "architectures",
    "dtype",
    "torch_dtype",
    _ATTENTION_KEY,
)


class SentenceEncoder(nn.Module):
    """A Transformer with pooling.

    Attributes:
        backbone: the Hugging Face model, without pooler.
        tokenizer: its fast tokenizer.
        pooling: ``cls``, ``mean`` or ``max``.
        max_tokens: longest input, special tokens included.
        attention: ``bidirectional``, or ``causal``, which only decoder-only backbones can choose.
        use_packed: run the packed path where the backbone has BERT's shape (same numbers, faster).
        is_tuned: True when the folder looks like a finished sentence encoder: pooling, no LM head.
        lm_head: the LM head that came with the checkpoint, or None. Not a submodule: an objective that
            trains it adopts it.
    """

    def __init__(
        self,
        backbone: nn.Module,
        tokenizer: PreTrainedTokenizerFast,
        *,
        pooling: PoolingMode,
        max_tokens: int,
        attention: Attention = "bidirectional",
        normalize: bool = False,
        heads: Sequence[nn.Module] = (),
        lm_head: LmHead | None = None,
        is_tuned: bool = False,
    ) -> None:
        super().__init__()
        if pooling not in get_args(PoolingMode):
            raise ValueError(
                f"pooling {pooling!r} is unknown; choose one of {', '.join(get_args(PoolingMode))}"
            )
        if max_tokens < 1:
            raise ValueError(f"max_tokens={max_tokens} must be positive")
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.pooling: PoolingMode = pooling
        limit = max_positions(backbone)
        if limit is not None and max_tokens > limit:
            raise ValueError(
                f"max_tokens={max_tokens} is more than the backbone's {limit} positions; lower it"
            )
        self.max_tokens = max_tokens
        _check_attention(attention, backbone, pooling)
        self.attention: Attention = attention
        self.heads = nn.ModuleList(heads)
        if normalize and not any(isinstance(head, Normalize) for head in heads):
            self.heads.append(Normalize())
        self.use_packed = family_of(backbone).packed
        self.is_tuned = is_tuned
        self._lm_head: tuple[LmHead | None] = (lm_head,)

    @classmethod
    def load(
        cls,
        path_or_hub_id: str | Path,
        *,
        pooling: PoolingMode | None = None,
        max_tokens: int | None = None,
        attention: Attention | None = None,
        device: str = "cpu",
    ) -> SentenceEncoder:
        """Load a plain transformers checkpoint or a sentence-transformers folder, local or from the hub.

        Args:
            path_or_hub_id: where it is.
            pooling: overrides the folder's own; a plain checkpoint without it pools by ``cls``, the paper's.
            max_tokens: overrides the folder's own; capped by the backbone's positions.
            attention: overrides the folder's own; a folder that says nothing encodes bidirectionally.
            device: a torch device.

        Raises:
            ValueError: for a missing model, an unsupported backbone, module or choice.
        """
        parts = read_folder(local_folder(path_or_hub_id))
        tokenizer = AutoTokenizer.from_pretrained(str(parts.transformer))
        backbone, head = load_pretrained(str(parts.transformer))
        wanted = parts.max_tokens or min(tokenizer.model_max_length, _DEFAULT_MAX_TOKENS)
        wanted = wanted if max_tokens is None else max_tokens
        encoder = cls(
            backbone,
            tokenizer,
            pooling=pooling or parts.pooling or "cls",
            max_tokens=min(wanted, max_positions(backbone) or wanted),
            attention=attention or _stored_attention(backbone),
            heads=parts.heads,
            lm_head=head,
            is_tuned=parts.pooling is not None and not is_trained_for_language(parts.transformer, head),
        )
        return encoder.to(device).eval()

    @property
    def lm_head(self) -> LmHead | None:
        """The pretrained LM head remembered for training."""
        return self._lm_head[0]

    @property
    def dim(self) -> int:
        """Width of the sentence vectors."""
        sizes = [head.config.out_features for head in self.heads if isinstance(head, Dense)]
        return sizes[-1] if sizes else int(backbone_config(self.backbone).hidden_size)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.backbone.parameters()).device

    def embed(
        self,
        ids: NDArray[Any],
        lengths: Int64s,
        *,
        fused: FusedProjections | None = None,
        views: Int64s | None = None,
    ) -> Tensor:
        """Return sentence vectors [B, dim] with gradients.

        Args:
            ids: integer ids [T] with special tokens, sentence after sentence.
            lengths: int64[B], all positive.
            fused: projections already fused in this step, if any.
            views: int64[B], different for equal sentences that are to meet different dropout.
        """
        if self.use_packed:
            vectors = self._embed_packed(ids, lengths, fused, views)
        else:
            ids_T = torch.from_numpy(ids.astype(np.int64)).to(self.device)
            lengths_B = torch.from_numpy(lengths.astype(np.int64)).to(self.device)
            hidden_TD = run_padded(
                self.backbone, ids_T, lengths_B, causal=self.attention == "causal", views_B=views
            )
            rows = torch.repeat_interleave(torch.arange(len(lengths), device=self.device), lengths_B)
            first = torch.from_numpy(offsets_of(lengths)[:-1].copy()).to(self.device)
            vectors = pool(hidden_TD, first, rows, mode=self.pooling)
        for head in self.heads:
            vectors = head(vectors)
        return vectors

    def _embed_packed(
        self, ids: NDArray[Any], lengths: Int64s, fused: FusedProjections | None, views: Int64s | None
    ) -> Tensor:
        plan = plan_packing(lengths, device=self.device)
        hidden_TD = run_packed(
            self.backbone,
            torch.from_numpy(ids.astype(np.int64)[plan.token_order]).to(self.device),
            plan,
            causal=False,
            fused=fused or fuse_projections(self.backbone),
            keep=plan.first if self.pooling == "cls" else None,
            views_B=views,
        )
        if self.pooling == "cls":
            return hidden_TD.index_select(0, plan.restore)
        return pool(hidden_TD, plan.first.index_select(0, plan.restore), plan.row_of_token, mode=self.pooling)

    def encode(
        self,
        texts: Iterable[str],
        *,
        batch_tokens: int = 4096,
        normalize: bool | None = None,
        precision: EncodePrecision = "float32",
    ) -> NDArray[np.float32]:
        """Return float32[n, dim], row i for the i-th text.

        Args:
            texts: any iterable; it is read in large blocks, sorted by length inside a block.
            batch_tokens: tokens per forward pass, padding included.
            normalize: scale to length 1; None does what the encoder's own modules do.
            precision: ``int8`` multiplies in 8-bit integers: faster, less exact (`int8_projections`).

        Raises:
            ValueError: if ``batch_tokens`` is not positive, ``precision`` is unknown, or backbone or
                machine are not fit for it.
        """
        if batch_tokens < 1:
            raise ValueError(f"batch_tokens={batch_tokens} must be positive")
        if precision not in get_args(EncodePrecision):
            known = ", ".join(get_args(EncodePrecision))
            raise ValueError(f"precision {precision!r} is unknown; choose one of {known}")
        was_training = self.training
        self.eval()
        try:
            fused = self._int8_projections() if precision == "int8" else None
            blocks = [
                self._encode_block(block, batch_tokens, fused) for block in _blocks(texts, _BLOCK_TEXTS)
            ]
        finally:
            self.train(was_training)
        vectors = np.concatenate(blocks) if blocks else np.empty((0, self.dim), dtype=np.float32)
        if normalize:
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = vectors / np.maximum(norms, np.float32(1e-12))
        return vectors

    def _int8_projections(self) -> FusedProjections:
        check_int8(self.backbone)
        sample = sample_sentences(self.tokenizer, max_tokens=self.max_tokens)
        return int8_projections(
            self.backbone, lambda fused: self.embed(sample.values, sample.lengths, fused=fused)
        )

    def _encode_block(
        self, texts: list[str], batch_tokens: int, fused: FusedProjections | None
    ) -> NDArray[np.float32]:
        tokens = tokenize_texts(texts, self.tokenizer, max_tokens=self.max_tokens)
        with torch.inference_mode():
            return self.encode_ids(tokens.ids, batch_tokens=batch_tokens, fused=fused)

    def encode_ids(
        self, ids: Ragged, *, batch_tokens: int, fused: FusedProjections | None = None
    ) -> NDArray[np.float32]:
        """Return float32[B, D], vectors of token ids without special tokens, in their order.

        The mode (train, eval) and the precision (autocast) are the caller's; no gradient is kept. ``fused``
        are projections made before; None makes them.

        Raises:
            ValueError: for an empty text where the tokenizer adds no special token.
        """
        framed = special_frame(self.tokenizer).wrap(ids)
        if not framed.lengths.all():
            raise ValueError("a text has no tokens at all and the tokenizer adds none; drop empty texts")
        order = np.argsort(framed.lengths, kind="stable").astype(np.int64)
        vectors = np.empty((len(ids), self.dim), dtype=np.float32)
        with torch.no_grad():
            if fused is None and self.use_packed:
                fused = fuse_projections(self.backbone)
            for rows in _length_batches(framed, order, batch_tokens):
                batch = framed.take(rows)
                out = self.embed(batch.values, batch.lengths, fused=fused)
                vectors[rows] = out.float().cpu().numpy()
        return vectors

    def save(self, folder: str | Path, *, lm_head: LmHead | None = None) -> None:
        """Write the sentence-transformers layout into ``folder`` (made if missing).

        Args:
            folder: loads with ``SentenceTransformer(folder)`` and ``AutoModel.from_pretrained(folder)``,
                except for a few backbones, which is logged.
            lm_head: also written, so that training can go on from here with the head it had: under the names
                of the backbone's MaskedLM class, or, where that cannot hold it, in a file of its own.
        """
        folder = Path(folder)
        body = family_of(self.backbone).kind == "body"
        both_ways = body and self.attention == "bidirectional"
        if both_ways or backbone_config(self.backbone).model_type == "bart":
            logger.warning(
                "other programs run this backbone differently (%s), so %s gives other vectors there; load it "
                "with SentenceEncoder.load",
                "causally" if body else "decoder included",
                folder,
            )
        state, architecture = masked_lm_state(self.backbone, lm_head)
        config = backbone_config(self.backbone)
        write_folder(
            folder,
            state=state,
            pooling=self.pooling,
            width=int(config.hidden_size),
            max_tokens=self.max_tokens,
            heads=list(self.heads),
        )
        content = config.to_dict() | {
            "architectures": [architecture],
            "dtype": str(_dtype(state)).split(".")[-1],
        }
        content.pop("_name_or_path", None)
        if body:
            content[_ATTENTION_KEY] = self.attention
        (folder / HEAD_FILE).unlink(missing_ok=True)
        if lm_head is not None and not fits_class(self.backbone, lm_head):
            write_head(folder / HEAD_FILE, lm_head)
        (folder / "config.json").write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
        self.tokenizer.save_pretrained(str(folder))

    def fingerprint(self) -> str:
        """Return the sha256 hex digest of all that decides a vector (weights, config, tokenizer)."""
        config = backbone_config(self.backbone).to_dict()
        for name in _NOT_FINGERPRINTED:
            config.pop(name, None)
        heads = [vars(head.config) if isinstance(head, Dense) else type(head).__name__ for head in self.heads]
        about = {"config": config, "pooling": self.pooling, "max_tokens": self.max_tokens, "heads": heads}
        about["attention"] = self.attention
        about["frame"] = repr(special_frame(self.tokenizer))
        about["vocab"] = sorted(self.tokenizer.get_vocab().items())
        digest = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode())
        for name, value in sorted(self.state_dict().items()):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def load_lm_head(path_or_hub_id: str | Path) -> LmHead | None:
    """Return the pretrained LM head of a checkpoint, or None (logged) where it has none."""
    return load_pretrained(str(read_folder(local_folder(path_or_hub_id)).transformer))[1]


def _blocks(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    iterator = iter(texts)
    while block := list(islice(iterator, size)):
        yield block


def _length_batches(framed: Ragged, order: Int64s, batch_tokens: int) -> Iterator[Int64s]:
    """Cut rows, sorted by length, so that rows times longest row stays within the budget."""
    begin = 0
    for end in range(1, order.shape[0] + 1):
        full = end == order.shape[0] or (end + 1 - begin) * int(framed.lengths[order[end]]) > batch_tokens
        if full:
            yield order[begin:end]
            begin = end


def _stored_attention(backbone: nn.Module) -> Attention:
    stored: Attention = getattr(backbone_config(backbone), _ATTENTION_KEY, "bidirectional")
    return stored


def _check_attention(attention: Attention, backbone: nn.Module, pooling: PoolingMode) -> None:
    if attention not in get_args(Attention):
        raise ValueError(
            f"attention {attention!r} is unknown; choose one of {', '.join(get_args(Attention))}"
        )
    if attention == "bidirectional":
        return
    if family_of(backbone).kind != "body":
        raise ValueError("attention 'causal' is for decoder-only backbones; use 'bidirectional' for this one")
    if pooling == "cls":
        raise ValueError(
            "with attention 'causal' the first token sees nothing of the text; pool by mean or max"
        )


def _dtype(state: dict[str, Tensor]) -> torch.dtype:
    return next(value.dtype for value in state.values() if value.is_floating_point())
