"""Encoding with products of 8-bit integers, on CPUs with VNNI instructions.

Owns the number format: weights with a scale per output, inputs with one scale per layer, sums in 32 bits;
what is between the products stays in float32. The scales of the inputs come from made-up sentences of random
tokens, so that they, and with them a vector, depend on the encoder and the vector's own text alone. Where the
inputs are token states, single columns are far larger than the others; part of their size is moved into the
weights (SmoothQuant, arXiv 2211.10438). The products are FBGEMM's, which comes with torch. No gradients.

Shapes: T tokens, I width of the inputs, O width of the outputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from tsdae_core.backbone import backbone_config, family_of, layers_of, word_embeddings
from tsdae_core.packed import FusedProjections
from tsdae_core.packed_layer import Rows, layer_calls
from tsdae_core.ragged import Ragged
from tsdae_core.token_table import TokenTable
from tsdae_core.tokens import special_frame

_ENGINE = "fbgemm"
_LARGEST_WEIGHT, _LARGEST_INPUT = 127, 255
# A column that is smaller than this in all sentences or weights counts as this large.
_SMALLEST_COLUMN = 1e-5
_NUM_SAMPLES, _SAMPLE_TOKENS = 16, 32


def is_supported() -> bool:
    """Tell whether sums are exact here: without VNNI, FBGEMM adds two products in 16 bits."""
    has_engine = _ENGINE in torch.backends.quantized.supported_engines
    return has_engine and bool(torch.cpu.get_capabilities().get("avx512_vnni", False))


def check_int8(backbone: nn.Module) -> None:
    """Check that a backbone can be run in 8 bits here.

    Raises:
        ValueError: if it has not BERT's shape, is not in float32 on a CPU, or the CPU lacks the instructions.
    """
    if not family_of(backbone).packed:
        kind = backbone_config(backbone).model_type
        raise ValueError(f"precision int8 is for backbones of BERT's shape, not {kind!r}; use float32")
    weight = next(backbone.parameters())
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        raise ValueError(
            f"precision int8 is for float32 weights on a CPU, these are {weight.dtype} on {weight.device}; "
            "use precision float32"
        )
    if not is_supported():
        raise ValueError("precision int8 needs a CPU with AVX-512 VNNI and torch's FBGEMM; use float32")


def int8_projections(backbone: nn.Module, run: Callable[[FusedProjections], object]) -> FusedProjections:
    """Return the backbone's parts with their weights in 8 bits, as the weights are now.

    ``run`` is called once, with parts in float32, and encodes `sample_sentences` with them.
    """
    linears: list[Int8Linear] = []

    def make(weight_OI: Tensor, bias_O: Tensor | None) -> Rows:
        linears.append(Int8Linear(weight_OI, bias_O))
        return linears[-1]

    calls = tuple(layer_calls(layer, make_linear=make) for layer in layers_of(backbone))
    fused = FusedProjections(calls, TokenTable(word_embeddings(backbone)))
    with torch.no_grad():
        run(fused)
        for linear in linears:
            linear.freeze()
    return fused


def sample_sentences(tokenizer: PreTrainedTokenizerFast, *, max_tokens: int) -> Ragged:
    """Return the ids of a few sentences of random ordinary tokens, special tokens around them."""
    ordinary = np.setdiff1d(np.arange(len(tokenizer)), tokenizer.all_special_ids)
    length = max(1, min(_SAMPLE_TOKENS, max_tokens - tokenizer.num_special_tokens_to_add()))
    ids = np.random.default_rng(0).choice(ordinary, size=(_NUM_SAMPLES, length))
    return special_frame(tokenizer).wrap(Ragged.from_rows(list(ids)))


class Int8Linear:
    """A linear layer, first in float32 and looking at its inputs, after `freeze` in 8 bits."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        self._weight = weight_OI.detach()
        self._bias = None if bias_O is None else bias_O.detach()
        self._lowest_I = self._highest_I = weight_OI.new_zeros(weight_OI.shape[1])
        self._shrink_I: Tensor | None = None
        self._scale, self._zero = 1.0, 0
        self._packed: Any = None

    def __call__(self, rows_TI: Tensor) -> Tensor:
        """Return ``rows @ weight.T + bias``, [T, O] in float32."""
        if self._packed is None:
            lowest, highest = torch.aminmax(rows_TI, dim=0)
            self._lowest_I = torch.minimum(self._lowest_I, lowest)
            self._highest_I = torch.maximum(self._highest_I, highest)
            return F.linear(rows_TI, self._weight, self._bias)
        rows = rows_TI if self._shrink_I is None else rows_TI * self._shrink_I
        out: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            rows, self._scale, self._zero, self._packed
        )
        return out

    def freeze(self) -> None:
        """Choose the scales by the inputs seen so far; larger ones will be cut off."""
        weight, lowest, highest = self._weight, self._lowest_I, self._highest_I
        if weight.shape[1] < weight.shape[0]:  # token states; elsewhere the pass over them costs too much
            inputs = torch.maximum(highest, -lowest).clamp_min(_SMALLEST_COLUMN)
            grow = (inputs / weight.abs().amax(0).clamp_min(_SMALLEST_COLUMN)).sqrt()
            weight, lowest, highest = weight * grow, lowest / grow, highest / grow
            self._shrink_I = grow.reciprocal()
        low, high = float(lowest.min()), float(highest.max())
        self._scale = max(high - low, _SMALLEST_COLUMN) / _LARGEST_INPUT
        self._zero = round(-low / self._scale)
        self._packed = _pack(weight, self._bias)


def _pack(weight_OI: Tensor, bias_O: Tensor | None) -> Any:
    scales_O = (weight_OI.abs().amax(1) / _LARGEST_WEIGHT).clamp_min(torch.finfo(torch.float32).tiny)
    zeros_O = torch.zeros_like(scales_O, dtype=torch.int64)
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = _ENGINE  # decides the layout
    try:
        with warnings.catch_warnings():
            # torch announces that a later version drops such tensors; pyproject.toml bounds the version.
            warnings.filterwarnings("ignore", message="torch.quantize_per_tensor")
            quantized = torch.quantize_per_channel(weight_OI, scales_O, zeros_O, 0, torch.qint8)
        return torch.ops.quantized.linear_prepack(quantized, bias_O)
    finally:
        torch.backends.quantized.engine = before
