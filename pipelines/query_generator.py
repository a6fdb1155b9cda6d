"""A sequence-to-sequence model that writes queries for passages, by nucleus sampling under keyed seeds.

As docT5query (Nogueira and Lin 2019) and GPL (arXiv 2112.07577) use one. Knows nothing of shards or files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pipelines.errors import InputError
from pipelines.pseudo_labels_config import PseudoLabelsConfig
from pipelines.storage import Location, is_url
from tsdae_core.hashing import fold_key


class QueryGenerator:
    """The model with its tokenizer, loaded once and asked many times."""

    def __init__(self, model: Any, tokenizer: Any, config: PseudoLabelsConfig) -> None:
        self._model, self._tokenizer, self._config = model, tokenizer, config

    @classmethod
    def load(cls, config: PseudoLabelsConfig, *, device: str = "cpu") -> QueryGenerator:
        """Loads the generator onto a device.

        Raises:
            InputError: there is no such model, or it is no sequence-to-sequence model.
        """
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        try:
            with local_model(config.generator) as source:
                tokenizer = AutoTokenizer.from_pretrained(source)
                model = AutoModelForSeq2SeqLM.from_pretrained(source)
        except (OSError, ValueError) as error:
            raise cannot_load("generator", config.generator, error) from error
        return cls(model.eval().to(device), tokenizer, config)

    def generate(
        self, passages: Sequence[str], row_ids: Sequence[int], *, num_queries: int, seed: int
    ) -> list[list[str]]:
        """So many queries, as they are sampled, for each passage, in the order of the passages.

        A function of these passages with their ids and the seed: batches are cut by length and id, and each
        has a seed of its own, so that neither the process nor what it did before counts.
        """
        import torch

        config = self._config
        texts = [config.prefix + passage for passage in passages]
        ids = self._tokenizer(texts, truncation=True, max_length=config.max_passage_tokens)["input_ids"]
        order = sorted(range(len(ids)), key=lambda i: (len(ids[i]), row_ids[i]))
        size = max(1, config.batch_size // num_queries)
        queries: list[list[str]] = [[] for _ in passages]
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            inputs = self._tokenizer.pad({"input_ids": [ids[i] for i in rows]}, return_tensors="pt")
            torch.manual_seed(fold_key("queries", seed, row_ids[rows[0]]) >> 1)
            with torch.no_grad():
                sampled = self._model.generate(
                    input_ids=inputs["input_ids"].to(self._model.device),
                    attention_mask=inputs["attention_mask"].to(self._model.device),
                    do_sample=True,
                    num_beams=1,
                    top_p=config.top_p,
                    top_k=config.top_k,
                    temperature=config.temperature,
                    max_new_tokens=config.max_query_tokens,
                    num_return_sequences=num_queries,
                )
            written = self._tokenizer.batch_decode(sampled, skip_special_tokens=True)
            for place, row in enumerate(rows):
                queries[row] = written[place * num_queries : (place + 1) * num_queries]
        return queries


def check_models(config: PseudoLabelsConfig) -> None:
    """Refuses what cannot be loaded, by the models' configurations alone: before hours of other work.

    Raises:
        InputError: a model is not there or of another kind, or sentence-transformers is not installed.
    """
    from importlib.util import find_spec

    from transformers import AutoConfig

    if find_spec("sentence_transformers") is None:
        raise InputError("pseudo-labels need sentence-transformers: pip install 'tsdae-ray[rerank]'")
    found: dict[str, Any] = {}
    for kind in ("generator", "cross_encoder"):
        name = getattr(config, kind)
        try:
            with local_model(name) as source:
                found[kind] = AutoConfig.from_pretrained(source)
        except (OSError, ValueError) as error:
            raise cannot_load(kind, name, error) from error
    if not found["generator"].is_encoder_decoder:
        raise InputError(
            f"labels.generate.generator '{config.generator}' is a {found['generator'].model_type}; name a "
            "sequence-to-sequence model (T5, BART ...) that writes queries"
        )
    if found["cross_encoder"].num_labels != 1:
        raise InputError(
            f"labels.generate.cross_encoder '{config.cross_encoder}' gives "
            f"{found['cross_encoder'].num_labels} values for a pair; margins need one with a single value"
        )


@contextmanager
def local_model(name: str) -> Iterator[str]:
    """What a library can load: the name as it is, or for a URL a copy for the while."""
    if not is_url(name):
        yield name
        return
    with Location.parse(name).as_local_folder() as folder:
        yield str(folder)


def cannot_load(kind: str, name: str, error: Exception) -> InputError:
    """The error for a model that cannot be loaded, in one line."""
    reason = str(error).strip().split("\n")[0]
    return InputError(
        f"cannot load labels.generate.{kind} '{name}': {reason} (a folder or its URL, or a hub name where "
        "there is a network)"
    )
