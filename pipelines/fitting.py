"""Encoders that are fitted on the texts of a prepared workspace without Ray: transforms and Sent2Vec.

Owns which texts are taken and where the result goes; the methods are in `tsdae_core`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pipelines.collection import finished_manifest, sample_texts
from pipelines.errors import InputError
from pipelines.storage import Location
from tsdae_core.choices import PoolingMode
from tsdae_core.encoder import SentenceEncoder

TransformKind = Literal["whitening", "flow"]


def fit_transform(
    kind: TransformKind,
    workspace: Location,
    output: Path,
    *,
    encoder_folder: str,
    num_dims: int | None,
    max_texts: int,
    seed: int,
    pooling: PoolingMode | None = None,
) -> tuple[int, int]:
    """Writes the encoder with a transform fitted on the corpus's vectors; returns texts used and dimensions.

    Raises:
        InputError: no prepared corpus, an encoder that cannot be loaded, or an output that is not empty.
    """
    texts = _corpus_texts(workspace, max_texts)
    _refuse_full(output)
    try:
        encoder = SentenceEncoder.load(encoder_folder, pooling=pooling)
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"cannot load the encoder '{encoder_folder}': {reason}") from error
    vectors = encoder.encode(texts)
    if kind == "whitening":
        from tsdae_core.whitening import fit_whitening

        encoder.heads.append(fit_whitening([vectors], num_dims=num_dims))
    else:
        from tsdae_core.flow import fit_flow

        encoder.heads.append(fit_flow(vectors, seed=seed)[0])
    encoder.save(output)
    return len(texts), encoder.dim


def fit_sent2vec(
    workspace: Location, output: Path, *, dim: int, num_epochs: int, min_count: int, max_texts: int, seed: int
) -> tuple[int, int]:
    """Writes a Sent2Vec model trained on the corpus; returns texts used and words with a vector.

    Raises:
        InputError: no prepared corpus, or an output that is not empty. ValueError: too little text.
    """
    from tsdae_core.sent2vec import Sent2VecConfig, train_sent2vec

    texts = _corpus_texts(workspace, max_texts)
    _refuse_full(output)
    config = Sent2VecConfig(dim=dim, num_epochs=num_epochs, min_count=min_count)
    model = train_sent2vec(texts, config, seed=seed)
    model.save(output)
    return len(texts), len(model.words)


def _corpus_texts(workspace: Location, max_texts: int) -> list[str]:
    folder = workspace / "corpus"
    return sample_texts(folder, finished_manifest(folder, command="prepare"), max_texts)


def _refuse_full(output: Path) -> None:
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(f"'{output}' is not an empty folder; name another one")
