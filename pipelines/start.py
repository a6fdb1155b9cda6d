"""The starting encoder of a run, resolved once into the workspace so that every worker loads the same files.

`small` is the encoder that ships with the project, `scratch` is built here from a sample of the corpus, and
anything else is a folder, local or a URL, or a hub name.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.collection import sample_texts
from pipelines.config import RunConfig
from pipelines.config_values import config_to_dict
from pipelines.errors import InputError
from pipelines.manifest import Manifest, StageFolder
from pipelines.model_config import ModelConfig
from pipelines.progress import Reporter
from pipelines.storage import Location, is_url, without_credentials
from tsdae_core.pretrained import small_encoder_path

if TYPE_CHECKING:
    from tsdae_core.encoder import SentenceEncoder

START_FOLDER = "start"
# Settings of the model section that later stages look at and the start does not.
_NOT_ITS_OWN = ("word_unit",)
_SAMPLE_ROWS = 50_000


def resolve_start(
    config: RunConfig, workspace: Location, corpus: Manifest, corpus_folder: Location, *, reporter: Reporter
) -> Manifest:
    """Writes `start/`, the encoder (and its language-model head, if any) that training begins with.

    `corpus` is the manifest of `corpus_folder`, which is looked at where the start is made from it.

    Raises:
        InputError: the named encoder cannot be loaded.
    """
    model = config.model
    shown = without_credentials(model.start)
    plain = {key: value for key, value in config_to_dict(model).items() if key not in _NOT_ITS_OWN}
    plain["start"] = shown  # what tells encoders apart is their digest
    settings = {"model": plain, "seed": config.seed}
    inputs = _inputs(model, corpus)
    stage = StageFolder(workspace / START_FOLDER, stage="start", config=settings, inputs=inputs)
    if (manifest := stage.finished()) is not None:
        return manifest
    stage.begin()
    if model.start == "scratch":
        reporter.note("start: training a tokenizer and building a new encoder")
        encoder = _scratch(model, corpus_folder, corpus, seed=config.seed)
    else:
        reporter.note(f"start: loading {shown}")
        encoder = load_start(model)
    if encoder.is_tuned and config.train.labels is None and config.train.objective != "protected":
        reporter.note(
            "start: WARNING: this is a tuned sentence encoder, where TSDAE works badly; start from its plain "
            "checkpoint and tune it (NLI, STS) afterwards"
        )
    num_added = _add_words(model, encoder, corpus_folder, corpus, reporter)
    with tempfile.TemporaryDirectory(prefix="tsdae-start-") as folder:
        encoder.save(Path(folder), lm_head=encoder.lm_head)
        files = stage.folder.upload_folder(Path(folder))
    return stage.finish(counts={"dim": encoder.dim, "tokens_added": num_added}, files=files)


def _inputs(model: ModelConfig, corpus: Manifest) -> dict[str, str]:
    """What the start depends on beside its settings."""
    inputs: dict[str, str] = {}
    if model.start == "scratch" or model.mine_tokens:
        inputs["corpus"] = corpus.digest
    if model.start != "scratch":
        inputs["checkpoint"] = describe_start(model.start)
    if model.add_tokens_file is not None:
        place = Location.parse(model.add_tokens_file)
        if not place.exists():
            raise InputError(f"there is no file '{model.add_tokens_file}' (model.add_tokens_file)")
        inputs["added_tokens"] = place.sha256()
    return inputs


def _add_words(
    model: ModelConfig, encoder: SentenceEncoder, folder: Location, corpus: Manifest, reporter: Reporter
) -> int:
    """Extends the vocabulary as configured; returns by how many words."""
    from tsdae_core.vocabulary import add_tokens, mine_tokens, read_tokens

    words: list[str] = []
    if model.add_tokens_file is not None:
        words += read_tokens(model.add_tokens_file)
    if model.mine_tokens:
        texts = sample_texts(folder, corpus, _SAMPLE_ROWS)
        words += mine_tokens(
            texts, encoder.tokenizer, num_tokens=model.mine_tokens, min_count=model.mine_min_count
        )
    num_added = add_tokens(encoder, words)
    if words:
        examples = ", ".join(words[:5])
        reporter.note(f"start: {num_added:,} words added to the vocabulary ({examples} ...)")
    return num_added


def load_start(model: ModelConfig) -> SentenceEncoder:
    """The encoder that `model.start` names, as the settings beside it want it; not for `scratch`.

    Raises:
        InputError: there is none, or it is not supported.
    """
    from tsdae_core.encoder import SentenceEncoder

    try:
        with _source(model.start) as source:
            return SentenceEncoder.load(
                source, pooling=model.pooling, max_tokens=model.max_tokens, attention=model.attention
            )
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot load model.start '{without_credentials(model.start)}': {_first_line(error)} "
            "(it may be small, scratch, a folder or its URL, or a hub name where there is a network)"
        ) from error


@contextmanager
def _source(start: str) -> Iterator[str]:
    """What the core can load: a local folder, which may be a copy for the while, or a hub name."""
    if is_url(start):
        with Location.parse(start).as_local_folder() as folder:
            yield str(folder)
    else:
        yield str(small_encoder_path()) if start == "small" else start


def _scratch(model: ModelConfig, folder: Location, corpus: Manifest, *, seed: int) -> SentenceEncoder:
    from tsdae_core.scratch import build_scratch_encoder, train_tokenizer

    texts = sample_texts(folder, corpus, _SAMPLE_ROWS)
    tokenizer = train_tokenizer(texts, vocab_size=model.scratch.vocab_size)
    encoder = build_scratch_encoder(model.scratch, tokenizer, pooling=model.pooling, seed=seed, texts=texts)
    encoder.max_tokens = min(model.max_tokens, model.scratch.max_tokens)
    return encoder


def describe_start(start: str) -> str:
    """Tells a changed checkpoint from an unchanged one; hub names stand for themselves."""
    if not is_url(start):
        folder = small_encoder_path() if start == "small" else Path(start)
        if not folder.is_dir():
            return start
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return ", ".join(f"{p.relative_to(folder)} {Location.parse(p).sha256()}" for p in files)
    place = Location.parse(start)
    found = [Location(place.filesystem, info.path) for info in place.files(recursive=True)]
    digests = (f"{file.path.removeprefix(place.path + '/')} {file.sha256()}" for file in found)
    return ", ".join(digests) or start


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
