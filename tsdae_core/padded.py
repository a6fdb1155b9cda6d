"""The general way to run a backbone: through its own forward, on padded batches, with a mask of ours.

Owns the masks (the causal one is 4-D and additive) and what is done around each layer: adding a vector to the
finished self-attention block, and computing the layer again in the backward pass. Knows nothing of pooling,
losses or where the vector that a decoder adds comes from.

Shapes: B sentences, L padded length, T real tokens of all sentences, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tsdae_core.backbone import (
    AddVector,
    family_of,
    first_position,
    layers_of,
    recomputes_layers,
    window_reach,
    word_embeddings,
)
from tsdae_core.keyed_dropout import PassKeys, begin_pass, layer_dropout
from tsdae_core.ragged import Int64s

_Forward = Callable[..., Any]
# What is added to a layer has dropout of its own, numbered beyond all layers.
_VECTOR_LAYERS = 1 << 16


def run_padded(
    backbone: nn.Module,
    ids_T: Tensor,
    lengths_B: Tensor,
    *,
    causal: bool,
    add_vector: AddVector | None = None,
    views_B: Int64s | None = None,
) -> Tensor:
    """Run the backbone through its own forward and return the last hidden states of real tokens [T, D].

    Args:
        backbone: a Hugging Face encoder.
        ids_T: int64 token ids, sentence after sentence.
        lengths_B: int64 lengths, none of them zero.
        causal: hide later tokens of the same sentence from earlier ones.
        add_vector: called as ``add_vector(layer_index, hidden)`` after each self-attention block, with the
            states of B sentences of L tokens, padding included, in B x L rows.
        views_B: see `keyed_dropout.begin_pass`.

    Raises:
        ValueError: if the backbone's own gradient checkpointing is on, which would lose ``add_vector``.
    """
    if getattr(backbone, "is_activation_checkpointing", False):
        raise ValueError(
            "the backbone's own gradient checkpointing forgets the decoder's vector; switch it off and call "
            "enable_gradient_checkpointing() of the training model"
        )
    real_BL = real_mask(lengths_B)
    ids_BL = ids_T.new_zeros(real_BL.shape)
    ids_BL[real_BL] = ids_T
    keys = _keys(ids_T, real_BL, views_B)
    with (
        layer_dropout(keys, -1),
        _around_layers(backbone, add_vector, keys),
        _precision(backbone),
    ):
        hidden_BLD = _forward(backbone, ids_BL, real_BL, causal=causal)
    return hidden_BLD[real_BL]


def _keys(ids_T: Tensor, real_BL: Tensor, views_B: Int64s | None) -> PassKeys | None:
    """The tokens' dropout keys [B, L], 0 on padding."""
    row_T, position_T = real_BL.nonzero(as_tuple=True)
    keys = begin_pass(ids_T, row_T, position_T, num_rows=real_BL.shape[0], views_B=views_B)
    if keys is None:
        return None
    keys_BL = keys.tokens.new_zeros(real_BL.shape)
    keys_BL[real_BL] = keys.tokens
    return replace(keys, tokens=keys_BL)


def _precision(backbone: nn.Module) -> AbstractContextManager[Any]:
    if family_of(backbone).autocast:
        return nullcontext()
    return torch.autocast(word_embeddings(backbone).weight.device.type, enabled=False)


def _forward(backbone: nn.Module, ids_BL: Tensor, real_BL: Tensor, *, causal: bool) -> Tensor:
    if causal and family_of(backbone).mask_dims == 3:
        return _run_with_3d_mask(backbone, ids_BL, real_BL)
    inputs: dict[str, Any] = {"input_ids": ids_BL, "attention_mask": _mask(backbone, real_BL, causal=causal)}
    if family_of(backbone).positions != "own":
        positions_L = torch.arange(real_BL.shape[1], device=ids_BL.device) + first_position(backbone)
        inputs["position_ids"] = positions_L.expand(real_BL.shape)
    hidden_BLD: Tensor = backbone(**inputs).last_hidden_state
    return hidden_BLD


def _run_with_3d_mask(backbone: nn.Module, ids_BL: Tensor, real_BL: Tensor) -> Tensor:
    embed, encode = backbone.get_submodule("embeddings"), backbone.get_submodule("encoder")
    if getattr(encode, "conv", None) is not None:
        raise ValueError("this DeBERTa has a convolution, which sees later tokens; choose one without")
    embedded = embed(input_ids=ids_BL, token_type_ids=torch.zeros_like(ids_BL), mask=real_BL.long())
    seen_BLL = (real_BL[:, None, :] & _earlier(real_BL)).long()
    hidden_BLD: Tensor = encode(embedded, seen_BLL, return_dict=True).last_hidden_state
    return hidden_BLD


@contextmanager
def _around_layers(
    backbone: nn.Module, add_vector: AddVector | None, keys: PassKeys | None
) -> Iterator[None]:
    """Lead every layer call of one forward through us; the n-th call of any layer belongs to index n."""
    recompute = recomputes_layers(backbone) and torch.is_grad_enabled()
    if add_vector is None and not recompute and keys is None:
        yield
        return
    path, indices = family_of(backbone).attention, count()

    def call(layer: nn.Module, forward: _Forward, *args: Any, **kwargs: Any) -> Any:
        index = next(indices)
        add = None if add_vector is None else partial(_add, add_vector, index, keys)
        run = partial(
            _with_vector, layer.get_submodule(path), forward, add, partial(layer_dropout, keys, index)
        )
        if not recompute:
            return run(*args, **kwargs)
        return checkpoint(run, *args, use_reentrant=False, **kwargs)

    distinct = dict.fromkeys(layers_of(backbone))
    before = {layer: vars(layer).get("forward") for layer in distinct}
    for layer in distinct:
        vars(layer)["forward"] = partial(call, layer, layer.forward)
    try:
        yield
    finally:
        for layer, own in before.items():
            del vars(layer)["forward"]
            if own is not None:
                vars(layer)["forward"] = own


def _add(add_vector: AddVector, index: int, keys: PassKeys | None, hidden_RD: Tensor) -> Tensor:
    """Add the vector to B x L rows, whose dropout is no layer's own."""
    flat = None if keys is None else replace(keys, tokens=keys.tokens.flatten())
    with layer_dropout(flat, _VECTOR_LAYERS + index):
        return add_vector(index, hidden_RD)


def _with_vector(
    attention: nn.Module,
    forward: _Forward,
    add: Callable[[Tensor], Tensor] | None,
    dropout: Callable[[], AbstractContextManager[Any]],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Call a layer with its attention block hooked, here and whenever it is computed again."""

    def hook(_module: nn.Module, _args: Any, output: Any) -> Any:
        assert add is not None
        hidden_BLD: Tensor = output[0] if isinstance(output, tuple) else output
        changed = add(hidden_BLD.flatten(0, 1)).view_as(hidden_BLD)
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    with dropout(), nullcontext() if add is None else attention.register_forward_hook(hook):
        return forward(*args, **kwargs)


def _earlier(real_BL: Tensor) -> Tensor:
    length = real_BL.shape[1]
    return torch.ones(length, length, dtype=torch.bool, device=real_BL.device).tril()


def real_mask(lengths_B: Tensor) -> Tensor:
    """Return bool[B, L], True on real tokens of right-padded rows."""
    return torch.arange(int(lengths_B.max()), device=lengths_B.device) < lengths_B[:, None]


def _mask(backbone: nn.Module, real_BL: Tensor, *, causal: bool) -> Tensor | dict[str, Tensor]:
    """Return the mask that makes the backbone look both ways, or back only, within its layers' windows.

    Ours are [B, 1, L, L] with 0 where a query sees a key and the lowest number elsewhere: additive, because
    several families read a boolean 4-D mask wrongly and leak later tokens.
    """
    if not causal and family_of(backbone).kind != "body":
        return real_BL.long()  # the backbone makes its own of it
    seen_BLL = real_BL[:, None, :].expand(-1, real_BL.shape[1], -1)
    if causal:
        seen_BLL = seen_BLL & _earlier(real_BL)
    dtype, reach = word_embeddings(backbone).weight.dtype, window_reach(backbone)
    full = _additive(seen_BLL, dtype)
    if reach is None:
        return full
    places_L = torch.arange(real_BL.shape[1], device=real_BL.device)
    near_LL = (places_L[:, None] - places_L).abs() <= reach
    return {"full_attention": full, "sliding_attention": _additive(seen_BLL & near_LL, dtype)}


def _additive(seen_BLL: Tensor, dtype: torch.dtype) -> Tensor:
    mask = torch.zeros(seen_BLL.shape, dtype=dtype, device=seen_BLL.device)
    return mask.masked_fill_(~seen_BLL, torch.finfo(dtype).min)[:, None]
