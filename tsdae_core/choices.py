"""Choices that a configuration and a model share; apart from the models, whose files import torch."""

from __future__ import annotations

from typing import Literal

# How token states become the sentence vector.
PoolingMode = Literal["cls", "mean", "max"]
# How a backbone looks at a text when it encodes; every decoder is causal.
Attention = Literal["bidirectional", "causal"]
# How the modules that add the sentence vector start; `tsdae.TsdaeConfig` tells what it means.
BottleneckInit = Literal["random", "identity"]
# In what the products of an encoder are computed.
EncodePrecision = Literal["float32", "int8"]
