"""The packed way to run a BERT-shaped backbone: no padding outside attention, fused projections.

Owns the layout of packed sentences and the layer arithmetic; the weights stay in the Hugging Face modules.
Equal to `backbone.run_padded` up to rounding. Knows nothing of pooling, losses or where the vector that a
decoder adds comes from.

Shapes: B sentences, T packed tokens, D width, H heads, n sentences of a length group, L its padded length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tsdae_core.backbone import (
    AddVector,
    backbone_config,
    first_position,
    layers_of,
    recomputes_layers,
    word_embeddings,
)
from tsdae_core.keyed_dropout import LayerDropout, PassKeys, begin_pass, layer_dropout
from tsdae_core.packed_layer import LayerCalls, layer_calls
from tsdae_core.ragged import Int64s, expand_spans, offsets_of
from tsdae_core.token_table import TokenTable

_MAX_GROUPS = 8
_SENTENCES_PER_GROUP = 16


@dataclass(frozen=True)
class _Group:
    """A run of sentences of similar length: how to pad its tokens for attention and how to go back."""

    num_tokens: int
    num_sentences: int
    padded_length: int
    padded_from: Tensor | None
    real_at: Tensor | None
    key_mask: Tensor | None


@dataclass(frozen=True)
class PackedPlan:
    """Where each token of a packed batch is; sentences are sorted by length.

    Attributes:
        order: int64[B], packed sentence i is sentence ``order[i]`` of the caller.
        restore: int64[B] tensor, the inverse.
        token_order: int64[T], which token of the caller is at each packed place.
        first: int64[B] tensor, the place of each packed sentence's first token.
        positions: int64[T] tensor, 0-based position in the sentence.
        row_of_token: int64[T] tensor, the caller's sentence of each packed token.
    """

    order: Int64s
    restore: Tensor
    token_order: Int64s
    first: Tensor
    positions: Tensor
    row_of_token: Tensor
    groups: tuple[_Group, ...]


def plan_packing(lengths: Int64s, *, device: torch.device) -> PackedPlan:
    """Lay out sentences of the given positive lengths, int64[B]."""
    order = np.argsort(lengths, kind="stable").astype(np.int64)
    sorted_lengths = lengths[order]
    offsets = offsets_of(sorted_lengths)
    restore = np.empty_like(order)
    restore[order] = np.arange(order.shape[0])
    positions = expand_spans(np.zeros_like(sorted_lengths), sorted_lengths)

    def put(values: Int64s) -> Tensor:
        return torch.from_numpy(values).to(device)

    num_groups = int(np.clip(lengths.shape[0] // _SENTENCES_PER_GROUP, 1, _MAX_GROUPS))
    parts = np.array_split(sorted_lengths, num_groups)
    return PackedPlan(
        order=order,
        restore=put(restore),
        token_order=expand_spans(offsets_of(lengths)[:-1][order], sorted_lengths),
        first=put(offsets[:-1].copy()),
        positions=put(positions),
        row_of_token=put(np.repeat(order, sorted_lengths)),
        groups=tuple(_plan_group(part, device) for part in parts if part.shape[0]),
    )


def _plan_group(lengths: Int64s, device: torch.device) -> _Group:
    num, longest, total = lengths.shape[0], int(lengths[-1]), int(lengths.sum())
    if num * longest == total:
        return _Group(total, num, longest, None, None, None)
    real_at = expand_spans(np.arange(num, dtype=np.int64) * longest, lengths)
    padded_from = np.zeros(num * longest, dtype=np.int64)
    padded_from[real_at] = np.arange(total, dtype=np.int64)
    hidden = np.where(np.arange(longest) < lengths[:, None], 0.0, -np.inf).astype(np.float32)
    return _Group(
        total,
        num,
        longest,
        torch.from_numpy(padded_from).to(device),
        torch.from_numpy(real_at).to(device),
        torch.from_numpy(hidden).to(device)[:, None, None, :],
    )


class _Move(torch.autograd.Function):
    """Gather rows; the gradient is a gather too, because no real row is used twice."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, gather: Tensor, back: Tensor, pads_out: bool) -> Tensor:
        ctx.save_for_backward(back)
        ctx.pads_out = pads_out
        ctx.gather = gather
        ctx.num_rows = rows.shape[0]
        return rows.index_select(0, gather)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (back,) = ctx.saved_tensors
        if ctx.pads_out:
            return grads[0].index_select(0, back), None, None, None
        full = grads[0].new_zeros(ctx.num_rows, grads[0].shape[1])
        full.index_copy_(0, ctx.gather, grads[0])
        return full, None, None, None


def _pad(rows: Tensor, group: _Group) -> Tensor:
    if group.padded_from is None:
        return rows
    moved: Tensor = _Move.apply(rows, group.padded_from, group.real_at, True)  # type: ignore[no-untyped-call]
    return moved


def _unpad(rows: Tensor, group: _Group) -> Tensor:
    if group.real_at is None:
        return rows
    moved: Tensor = _Move.apply(rows, group.real_at, group.padded_from, False)  # type: ignore[no-untyped-call]
    return moved


@dataclass(frozen=True)
class FusedProjections:
    """The parts of every layer as they run, query, key and value side by side, and the token embeddings.

    Made once per step and shared by all passes through the backbone.
    """

    layers: tuple[LayerCalls, ...]
    table: TokenTable

    def first(self, num_layers: int) -> FusedProjections:
        """Return those of the first layers."""
        return FusedProjections(self.layers[:num_layers], self.table)


def fuse_projections(backbone: nn.Module, table: TokenTable | None = None) -> FusedProjections:
    """Make the parts of every layer ready for one step.

    ``table``, where the caller has one already, is of the backbone's token embeddings.
    """
    calls = tuple(layer_calls(layer) for layer in layers_of(backbone))
    return FusedProjections(calls, table or TokenTable(word_embeddings(backbone)))


def run_packed(
    backbone: nn.Module,
    ids_T: Tensor,
    plan: PackedPlan,
    *,
    causal: bool,
    fused: FusedProjections,
    add_vector: AddVector | None = None,
    keep: Tensor | None = None,
    views_B: Int64s | None = None,
) -> Tensor:
    """Return the last hidden states [T, D] in packed order.

    Args:
        backbone: of a family with ``packed=True``.
        ids_T: int64 ids in packed order.
        plan: the layout.
        causal: hide later tokens of the same sentence.
        fused: from `fuse_projections` on the same weights; with those of the first layers only, no other
            layer runs.
        add_vector: called as ``add_vector(layer_index, hidden_TD)`` after each self-attention block.
        keep: int64 packed places; the last layer finishes only these, and only they are returned.
        views_B: see `keyed_dropout.begin_pass`.

    After `backbone.recompute_layers` a layer is computed again in the backward pass.
    """
    positions = plan.positions + first_position(backbone)
    embed = backbone.get_submodule("embeddings")
    rows_TE = fused.table.rows(ids_T)
    keys = begin_pass(ids_T, plan.row_of_token, plan.positions, num_rows=plan.order.shape[0], views_B=views_B)
    with layer_dropout(keys, -1):
        hidden_TD: Tensor = embed(inputs_embeds=rows_TE[None], position_ids=positions[None])[0]
    project = getattr(backbone, "embeddings_project", None)
    if project is not None:
        hidden_TD = project(hidden_TD)
    num_layers = len(fused.layers)
    recompute = recomputes_layers(backbone) and torch.is_grad_enabled()
    for index, (layer, calls) in enumerate(zip(layers_of(backbone), fused.layers, strict=False)):
        last = index == num_layers - 1
        call = partial(
            _run_layer,
            layer=layer,
            calls=calls,
            plan=plan,
            causal=causal,
            keys=keys,
            index=index,
            add=None if add_vector is None else partial(add_vector, index),
            keep=keep if last else None,
        )
        hidden_TD = checkpoint(call, hidden_TD, use_reentrant=False) if recompute else call(hidden_TD)
    return hidden_TD


def _run_layer(
    hidden_TD: Tensor,
    *,
    layer: nn.Module,
    calls: LayerCalls,
    plan: PackedPlan,
    causal: bool,
    keys: PassKeys | None,
    index: int,
    add: Callable[[Tensor], Tensor] | None,
    keep: Tensor | None,
) -> Tensor:
    with layer_dropout(keys, index) as dropout:
        context_TD = attend(calls.project(hidden_TD), plan, layer, causal=causal, keyed=dropout)
        if keep is not None:
            context_TD, hidden_TD = context_TD.index_select(0, keep), hidden_TD.index_select(0, keep)
            if dropout is not None:
                dropout.keys = dropout.keys.index_select(0, keep)
        hidden_TD = calls.attention_output(context_TD, hidden_TD)
        if add is not None:
            hidden_TD = add(hidden_TD)
        out: Tensor = calls.output(calls.intermediate(hidden_TD), hidden_TD)
    return out


def attend(
    qkv_TE: Tensor,
    plan: PackedPlan,
    layer: nn.Module,
    *,
    causal: bool,
    keyed: LayerDropout | None,
    masks: Sequence[Tensor] | None = None,
) -> Tensor:
    """Return what the layer's attention gives [T, D], before its output projection.

    Args:
        qkv_TE: queries, keys and values side by side, in packed order.
        plan: the layout.
        layer: whose heads and dropout these are.
        causal: hide later tokens of the same sentence.
        keyed: the dropout of the layer, where it is keyed.
        masks: for each group of the plan bool[n, 1, L, L], true where a query sees a key; every query, also
            of padding, sees one. None for all keys of its sentence.
    """
    attention = layer.get_submodule("attention.self")
    num_heads = int(backbone_config(attention).num_attention_heads)
    dropout = attention.get_submodule("dropout")
    assert isinstance(dropout, nn.Dropout)
    dropout_prob = dropout.p if attention.training else 0.0
    width = qkv_TE.shape[1] // 3
    sizes = [group.num_tokens for group in plan.groups]
    pieces = torch.split(qkv_TE, sizes)
    run: Callable[..., Tensor] = F.scaled_dot_product_attention
    keys: Sequence[Tensor | None] = [None] * len(sizes)
    if keyed is not None and dropout_prob > 0.0:
        keys, site = torch.split(keyed.keys, sizes), keyed.site()
    contexts = []
    for number, (piece, group, keys_G) in enumerate(zip(pieces, plan.groups, keys, strict=True)):
        if keys_G is not None and keyed is not None:
            run = partial(keyed.attention, keys_BL=_pad_keys(keys_G, group), site=site)
        shape = (group.num_sentences, group.padded_length, 3, num_heads, width // num_heads)
        query, key, value = _pad(piece, group).view(shape).permute(2, 0, 3, 1, 4).unbind(0)
        # Right padding and a causal mask: a real query never reaches a padded key.
        mask = None if causal or group.key_mask is None else group.key_mask.to(query.dtype)
        if masks is not None:
            mask = masks[number]
        context = run(query, key, value, attn_mask=mask, dropout_p=dropout_prob, is_causal=causal)
        contexts.append(_unpad(context.transpose(1, 2).reshape(-1, width), group))
    return torch.cat(contexts) if len(contexts) > 1 else contexts[0]


def _pad_keys(keys_G: Tensor, group: _Group) -> Tensor:
    padded = keys_G if group.padded_from is None else keys_G.index_select(0, group.padded_from)
    return padded.view(group.num_sentences, group.padded_length)
