"""Dropout whose masks are a function of step, sentence and token, and of nothing else.

torch draws masks from a generator in the order of the rows, so that they, and with them the weights, depend
on how a global batch is cut over workers and micro-batches. Here every token has a key, made of the step's
key, the ids of its sentence, its position and the pass (a sentence is encoded, then decoded); key and place
in the network choose one of 4,096 random masks. Owns the keys and both kinds of dropout, of states and of
attention weights. Knows nothing of backbones or objectives.

Shapes: B sentences, T tokens, L padded length, H heads, D width, R rows of a mask.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tsdae_core.hashing import fold_key
from tsdae_core.ragged import Int64s

_NUM_MASKS = 4096
_COLUMNS = 512
# Dropouts of one layer and one pass, at most.
_SITES = 64


class _Step:
    """A step under way: its key and the passes of the present micro-batch."""

    def __init__(self, key: int) -> None:
        self.key, self.num_passes = key, 0


_STEPS: list[_Step] = []


@contextmanager
def keyed_dropout(key: int | None) -> Iterator[None]:
    """Run one micro-batch's forward pass with masks by key; None leaves dropout to torch's generator."""
    if key is None:
        yield
        return
    _STEPS.append(_Step(key))
    try:
        yield
    finally:
        _STEPS.pop()


@dataclass(frozen=True)
class PassKeys:
    """The keys of one pass through a backbone.

    Attributes:
        tokens: int64[T], or [B, L] where the backbone pads.
        seed: of the pass, for what belongs to no token.
    """

    tokens: Tensor
    seed: int


def begin_pass(
    ids_T: Tensor, row_T: Tensor, positions_T: Tensor, *, num_rows: int, views_B: Int64s | None = None
) -> PassKeys | None:
    """Return the keys of the T tokens of one pass through a backbone, or None outside of a step.

    Args:
        ids_T: int64 token ids.
        row_T: int64 number of each token's sentence, below ``num_rows``.
        positions_T: int64 position of each token in its sentence.
        num_rows: B.
        views_B: int64[B], different for equal sentences whose masks are to differ.
    """
    if not _STEPS:
        return None
    step = _STEPS[-1]
    step.num_passes += 1
    seed = fold_key("pass", step.key, step.num_passes) >> 1
    content_T = _mix(ids_T * _ODD[0] + positions_T * _ODD[1])
    content_B = torch.zeros(num_rows, dtype=torch.int64, device=ids_T.device).index_add_(0, row_T, content_T)
    if views_B is not None:
        content_B = content_B + torch.from_numpy(np.array(views_B)).to(ids_T.device) * _ODD[2]
    tokens = _mix(_mix(content_B + seed).index_select(0, row_T) + positions_T * _ODD[1])
    return PassKeys(tokens, seed)


@contextmanager
def layer_dropout(keys: PassKeys | None, index: int) -> Iterator[LayerDropout | None]:
    """Enter the dropout of layer ``index`` (-1 for what is before the first), where there are keys."""
    if keys is None:
        yield None
        return
    with LayerDropout(keys, index) as dropout:
        yield dropout


class LayerDropout(TorchFunctionMode):
    """While entered, dropout draws by key.

    Attributes:
        keys: int64 keys of the rows that states have now: [T], or [B, L] where a backbone pads.
    """

    def __init__(self, keys: PassKeys, index: int) -> None:
        super().__init__()
        self.keys, self._seed = keys.tokens, keys.seed
        self._site = (index + 1) * _SITES

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Replace the two functions that drop; run all others."""
        del types
        kwargs = kwargs or {}
        if func is F.dropout:
            return self._dropout(*args, **kwargs)
        if func is F.scaled_dot_product_attention and kwargs.get("dropout_p", 0.0) > 0.0:
            return self.attention(*args, keys_BL=self.keys, **kwargs)
        return func(*args, **kwargs)

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keys_BL: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        site: int | None = None,
    ) -> Tensor:
        """Return `scaled_dot_product_attention`, with weights dropped by the queries' keys [B, L]."""
        if enable_gqa:
            repeats = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-1, -2)
        if is_causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            scores = scores.masked_fill(~seen, -torch.inf)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        weights = self.drop_weights(
            scores.softmax(-1), keys_BL, dropout_p, self.site() if site is None else site
        )
        out: Tensor = weights.to(value.dtype) @ value
        return out

    def site(self) -> int:
        """Return the number of the next dropout of this layer."""
        self._site += 1
        return self._site

    def drop_weights(self, weights_BHLK: Tensor, keys_BL: Tensor, prob: float, site: int) -> Tensor:
        """Drop attention weights; a query's mask is the same however many padded keys follow."""
        num_heads, num_keys = weights_BHLK.shape[1], weights_BHLK.shape[3]
        heads_H1 = torch.arange(num_heads, device=keys_BL.device)[:, None] * _ODD[1]
        rows = _mask_rows(keys_BL[:, None, :] + heads_H1, site)
        masks = _attention_masks(num_keys, prob, weights_BHLK.device, weights_BHLK.dtype)
        return _drop(weights_BHLK, masks, rows)

    def _dropout(
        self, states: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        site = self.site()
        if not training or p == 0.0:
            return F.dropout(states, p, training, inplace)
        shape, keys = states.shape, self.keys
        if keys.ndim == 2 and states.ndim == 4 and (shape[0], shape[2]) == tuple(keys.shape):
            return self.drop_weights(states, keys, p, site)
        if keys.ndim == 1 and shape[0] == keys.shape[0]:
            width = states[0].numel()
        elif shape[:2] == (keys.shape if keys.ndim == 2 else (1, *keys.shape)):
            width = states[0, 0].numel()
        else:  # rows that are no tokens, such as relative positions: one mask for the whole step
            generator = torch.Generator(states.device).manual_seed(fold_key("rows", self._seed, site) >> 1)
            kept = torch.rand(shape, generator=generator, device=states.device) >= p
            return states * kept.to(states.dtype) / (1.0 - p)
        masks = _state_masks(width, p, states.device, states.dtype)
        return _drop(states, masks, _mask_rows(keys.reshape(-1), site))


def has_dropout(model: nn.Module) -> bool:
    """Tell whether a model in train mode drops anything, by its modules and its backbones' configurations."""
    for module in model.modules():
        if isinstance(module, nn.Dropout) and module.p > 0.0:
            return True
        settings = vars(config) if (config := getattr(module, "config", None)) is not None else {}
        if any(
            "drop" in name and isinstance(value, float) and value > 0.0 for name, value in settings.items()
        ):
            return True
    return False


class _Drop(torch.autograd.Function):
    """Masks are looked up again in the backward pass, so that only their numbers are kept."""

    @staticmethod
    def forward(ctx: Any, states_RW: Tensor, masks: Tensor, rows_R: Tensor) -> Tensor:
        ctx.save_for_backward(rows_R)
        ctx.masks = masks
        return states_RW * masks.index_select(0, rows_R)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (rows_R,) = ctx.saved_tensors
        return grads[0] * ctx.masks.index_select(0, rows_R).to(grads[0].dtype), None, None


def _drop(states: Tensor, masks: Tensor, rows: Tensor) -> Tensor:
    dropped: Tensor = _Drop.apply(states.reshape(rows.numel(), -1), masks, rows.reshape(-1))  # type: ignore[no-untyped-call]
    return dropped.view(states.shape)


def _mask_rows(keys: Tensor, site: int) -> Tensor:
    return _mix(keys + _signed(site * 0x9E3779B97F4A7C15)) & (_NUM_MASKS - 1)


@functools.lru_cache(maxsize=64)
def _state_masks(width: int, prob: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    return _random_masks(width, prob, seed=0).to(device, dtype)


@functools.lru_cache(maxsize=256)
def _attention_masks(num_keys: int, prob: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Masks whose first columns do not depend on their number."""
    blocks = [
        _random_masks(_COLUMNS, prob, seed=1 + number) for number in range((num_keys - 1) // _COLUMNS + 1)
    ]
    return torch.cat(blocks, 1)[:, :num_keys].to(device, dtype, memory_format=torch.contiguous_format)


@functools.lru_cache(maxsize=8)
def _random_masks(width: int, prob: float, *, seed: int) -> Tensor:
    """[4096, width] of 0 with the probability, else 1 / (1 - probability)."""
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(_NUM_MASKS, width, generator=generator) >= prob
    return kept.float() / (1.0 - prob)


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


_ODD = tuple(_signed(value) for value in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93))


def _mix(value: Tensor) -> Tensor:
    """The finaliser of splitmix64 (Steele et al. 2014) on int64, whose products wrap around."""
    value = (value ^ (value >> 30 & (1 << 34) - 1)) * _ODD[0]
    value = (value ^ (value >> 27 & (1 << 37) - 1)) * _ODD[1]
    return value ^ (value >> 31 & (1 << 33) - 1)
