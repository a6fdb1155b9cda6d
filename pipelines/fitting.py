"""Encoders that are fitted on the texts of a prepared workspace without Ray: transforms and Sent2Vec.

Owns which texts are taken and where the result goes; the methods are in `tsdae_core`.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.collection import finished_manifest, sample_texts
from pipelines.errors import InputError
from pipelines.storage import Location
from tsdae_core.choices import PoolingMode
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.flow_config import FlowConfig
from tsdae_core.sent2vec_config import Sent2VecConfig
from tsdae_core.whitening_config import WhiteningConfig

# A flow's likelihood is told on at most so many of the vectors that it was fitted on.
_TOLD_VECTORS = 10_000


class Fitted(NamedTuple):
    """What a fit used and made.

    size: dimensions of the vectors, or words of Sent2Vec. notes: what a person should know of the fit.
    """

    num_texts: int
    size: int
    notes: tuple[str, ...] = ()


def fit_transform(
    config: WhiteningConfig | FlowConfig,
    workspace: Location,
    output: Path,
    *,
    encoder_folder: str,
    max_texts: int,
    seed: int,
    pooling: PoolingMode | None = None,
) -> Fitted:
    """Writes the encoder with a transform fitted on the corpus's vectors; the encoder itself stays as it is.

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
    notes: tuple[str, ...] = ()
    if isinstance(config, WhiteningConfig):
        from tsdae_core.whitening import fit_whitening

        encoder.heads.append(fit_whitening([vectors], num_dims=config.num_dims))
    else:
        notes = _append_flow(encoder, vectors, config, seed=seed)
    encoder.save(output)
    return Fitted(len(texts), encoder.dim, notes)


def _append_flow(
    encoder: SentenceEncoder, vectors: NDArray[np.float32], config: FlowConfig, *, seed: int
) -> tuple[str, ...]:
    """Fits a flow behind the encoder; returns what it gained, and a warning where that is next to nothing."""
    from tsdae_core.flow import fit_flow
    from tsdae_core.flow_fit import fit_of

    flow, _ = fit_flow(vectors, config, seed=seed)
    encoder.heads.append(flow)
    fit = fit_of(flow, vectors[:_TOLD_VECTORS])
    if not fit.is_standardisation:
        return (fit.in_words,)
    updates = config.num_epochs * -(-len(vectors) // config.batch_size)
    return (
        fit.in_words,
        f"WARNING: {updates:,} updates at rate {config.lr:g} leave the flow all but a standardisation; its "
        "authors use lr 1e-3: raise lr or num_epochs",
    )


def fit_sent2vec(
    config: Sent2VecConfig, workspace: Location, output: Path, *, max_texts: int, seed: int
) -> Fitted:
    """Writes a Sent2Vec model trained on the corpus.

    Raises:
        InputError: no prepared corpus, or an output that is not empty. ValueError: too little text.
    """
    from tsdae_core.sent2vec import train_sent2vec

    texts = _corpus_texts(workspace, max_texts)
    _refuse_full(output)
    model = train_sent2vec(texts, config, seed=seed)
    model.save(output)
    return Fitted(len(texts), len(model.words))


def _corpus_texts(workspace: Location, max_texts: int) -> list[str]:
    folder = workspace / "corpus"
    return sample_texts(folder, finished_manifest(folder, command="prepare"), max_texts)


def _refuse_full(output: Path) -> None:
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(f"'{output}' is not an empty folder; name another one")
