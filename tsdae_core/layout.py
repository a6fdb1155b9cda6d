"""The sentence-transformers folder layout: reading it and writing it, JSON and safetensors only.

Owns file names and keys of that format. Knows nothing of training. A plain transformers checkpoint is a
folder without modules.json.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from huggingface_hub import snapshot_download
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tsdae_core.pooling import Dense, DenseConfig, Normalize, PoolingMode

logger = logging.getLogger(__name__)

_WANTED = ["*.json", "*.txt", "*.model", "*.safetensors"]
_UNWANTED = ["onnx/*", "openvino/*", "*.onnx", "coreml/*", "flax*", "tf_*"]
_LEGACY_POOLING: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
}


@dataclass(frozen=True)
class FolderParts:
    """What a model folder says beside the backbone; None where it says nothing."""

    transformer: Path
    pooling: PoolingMode | None
    max_tokens: int | None
    heads: tuple[nn.Module, ...]


def local_folder(path_or_hub_id: str | Path) -> Path:
    """Return the folder itself, or a local snapshot of the hub repository.

    Raises:
        ValueError: if it is neither an existing folder nor something that can be downloaded.
    """
    folder = Path(path_or_hub_id)
    if folder.is_dir():
        return folder
    try:
        snapshot = Path(
            snapshot_download(str(path_or_hub_id), allow_patterns=_WANTED, ignore_patterns=_UNWANTED)
        )
        if not any(snapshot.rglob("*.safetensors")):
            snapshot = Path(
                snapshot_download(str(path_or_hub_id), allow_patterns=[*_WANTED, "pytorch_model*.bin"])
            )
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{str(path_or_hub_id)!r} is no folder here and the hub did not give it: {error}"
        ) from error
    return snapshot


def read_folder(folder: Path) -> FolderParts:
    """Read modules.json and what it points at.

    Raises:
        ValueError: for modules other than Transformer, Pooling (one of cls, mean, max), Dense, Normalize and
            our own Flow.
    """
    if not (folder / "modules.json").is_file():
        return FolderParts(folder, None, None, ())
    transformer, pooling, max_tokens = folder, None, None
    heads: list[nn.Module] = []
    for module in json.loads((folder / "modules.json").read_text()):
        kind, place = module["type"].rsplit(".", 1)[-1], folder / module["path"]
        if kind == "Transformer":
            transformer = place
            max_tokens = _read_max_tokens(place)
        elif kind == "Pooling":
            pooling = _read_pooling(place)
        elif kind == "Dense":
            heads.append(_read_dense(place))
        elif kind == "Normalize":
            heads.append(Normalize())
        elif kind == "Flow":
            from tsdae_core.flow import read_flow  # its library is loaded only where a folder has a flow

            heads.append(read_flow(place))
        else:
            raise ValueError(
                f"{folder} has a module {module['type']!r}; "
                "only Transformer, Pooling, Dense, Normalize and our Flow are known"
            )
    return FolderParts(transformer, pooling, max_tokens, tuple(heads))


def extra_packages(folder: Path) -> list[str]:
    """The distributions that loading this folder imports beside those that every encoder needs."""
    if not (folder / "modules.json").is_file():
        return []
    kinds = {
        module["type"].rsplit(".", 1)[-1] for module in json.loads((folder / "modules.json").read_text())
    }
    return ["zuko"] if "Flow" in kinds else []


def write_folder(
    folder: Path,
    *,
    state: dict[str, Tensor],
    pooling: PoolingMode,
    width: int,
    max_tokens: int,
    heads: list[nn.Module],
) -> None:
    """Write the weights and the files beside config.json and the tokenizer's."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(_detached(state), folder / "model.safetensors", metadata={"format": "pt"})
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    flags = {name: mode == pooling for name, mode in _LEGACY_POOLING.items()}
    _write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **flags})
    for head in heads:
        name = f"{len(modules)}_{type(head).__name__}"
        (folder / name).mkdir(exist_ok=True)
        if isinstance(head, Dense):
            _write_dense(folder / name, head)
        elif type(head).__name__ == "Flow":
            _write_flow(folder / name, head)
        modules.append((name, type(head).__name__))
    listing = [
        {"idx": index, "name": str(index), "path": path, "type": f"{_package_of(kind)}.{kind}"}
        for index, (path, kind) in enumerate(modules)
    ]
    _write_json(folder / "modules.json", listing)
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_tokens, "do_lower_case": False})
    about = {"__version__": {"pytorch": str(torch.__version__)}, "similarity_fn_name": "cosine"}
    _write_json(folder / "config_sentence_transformers.json", about)


def _package_of(kind: str) -> str:
    return "tsdae_core.flow" if kind == "Flow" else "sentence_transformers.models"


def _write_flow(place: Path, head: nn.Module) -> None:
    from tsdae_core.flow import Flow, write_flow

    assert isinstance(head, Flow)
    write_flow(place, head)


def _detached(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().cpu().contiguous() for name, value in state.items()}


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")


def _read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def _read_max_tokens(place: Path) -> int | None:
    path = place / "sentence_bert_config.json"
    config = _read_json(path) if path.is_file() else {}
    if config.get("do_lower_case"):
        logger.warning("%s asks for lower-casing before the tokenizer; it is not applied", path)
    value = config.get("max_seq_length")
    return None if value is None else int(value)


def _read_pooling(place: Path) -> PoolingMode:
    config = _read_json(place / "config.json")
    modes: list[PoolingMode] = [mode for name, mode in _LEGACY_POOLING.items() if config.get(name)]
    modern = config.get("pooling_mode")
    if modern is not None:
        named = [modern] if isinstance(modern, str) else list(modern)
        modes = [mode for mode in get_args(PoolingMode) if named == [mode]]
    if len(modes) != 1:
        raise ValueError(f"{place} pools by {modes or config}; exactly one of cls, mean, max is supported")
    return modes[0]


def _read_dense(place: Path) -> Dense:
    config = _read_json(place / "config.json")
    if config.get("use_residual"):
        raise ValueError(f"{place} is a Dense module with a residual connection, which is not supported")
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rsplit(".", 1)[-1]
    has_bias = bool(config.get("bias", True))
    dense = Dense(DenseConfig(int(config["in_features"]), int(config["out_features"]), has_bias, activation))
    weights = place / "model.safetensors"
    if weights.is_file():
        dense.load_state_dict(load_file(weights))
    else:
        dense.load_state_dict(torch.load(place / "pytorch_model.bin", map_location="cpu", weights_only=True))
    return dense


def _write_dense(place: Path, dense: Dense) -> None:
    config = dense.config
    activation = getattr(torch.nn, config.activation)
    content = {
        "in_features": config.in_features,
        "out_features": config.out_features,
        "bias": config.bias,
        "activation_function": f"{activation.__module__}.{activation.__name__}",
    }
    _write_json(place / "config.json", content)
    save_file(_detached(dict(dense.state_dict())), place / "model.safetensors", metadata={"format": "pt"})
